"""The answer: one token after the other, each step concatenating to every layer's cache.

[HF] transformers generation/utils.py `_sample`, cache_utils.py `DynamicLayer.update`, `QuantizedLayer.update`
"""

from __future__ import annotations

from collections.abc import Iterator

from vramcast.blocks.ends import boundary, chained
from vramcast.blocks.transformer import decoder_layer
from vramcast.domain.model import Layer, Model, Run
from vramcast.domain.program import Alloc, Free, Loop, Node, Program, Tensor
from vramcast.engines.serving.stages import Stage
from vramcast.engines.transformers.caches import crossed, kept, packed, states
from vramcast.engines.transformers.prompt import Held, sampler
from vramcast.engines.transformers.settings import Settings, sizes_of
from vramcast.operators.lowering import lower_inference


def steps(model: Model, settings: Settings, stage: Stage, held: tuple[Held, ...], logits: Tensor | None) -> Program:
    """From the prompt's cache to the last token: its last chunk, the first step, a jump, the last step.

    The steps between differ in length only; none of them holds more than the last one of its kind.

    Args:
        model: the network
        settings: of the run
        stage: layers of this GPU
        held: what the prompt left
        logits: of the prompt, which older releases hold until the first step has ended
    """
    nodes: list[Node] = []
    for tokens, queries in lengths(settings):
        step, held = _step(model, settings, stage, held, tokens, queries)
        nodes += step
        if logits is not None:
            nodes.append(Free(logits))
            logits = None
        if stage.first:
            nodes += sampler(model, settings)
    if logits is not None:
        nodes.append(Free(logits))
    return (*nodes, *(node for part in held for node in part.freed()))


def lengths(settings: Settings) -> Iterator[tuple[int, int]]:
    """Tokens in the cache after each step that is modelled, and how many of them are new."""
    if settings.chunk < settings.prompt:
        yield settings.prompt, settings.chunk
    first, last = settings.prompt + 1, settings.total - 1
    for tokens in sorted({first, last - 1, last}):
        if first <= tokens <= last:
            yield tokens, 1


def _step(
    model: Model, settings: Settings, stage: Stage, held: tuple[Held, ...], tokens: int, queries: int
) -> tuple[Program, tuple[Held, ...]]:
    """All layers of one GPU: what is cached afterwards replaces what was."""
    runs = tuple(stage.runs(model))
    after = tuple(Held(run.count, _cached(run.layer, settings, tokens)) for run in runs)
    bodies = tuple(_activations(model, settings, run, tokens, queries) for run in runs)
    if settings.behaviour.whole_cache or len(held) != len(after):
        born = (Loop(new.layers, (*map(Alloc, new.tensors), *body)) for new, body in zip(after, bodies, strict=True))
        return (*born, *(node for old in held for node in old.freed())), after
    nodes = (
        Loop(new.layers, (*_replaced(old.tensors, new.tensors), *body), label="layers")
        for old, new, body in zip(held, after, bodies, strict=True)
    )
    return tuple(nodes), after


def _cached(layer: Layer, settings: Settings, tokens: int) -> tuple[Tensor, ...]:
    fixed = (*crossed(layer, settings), *states(layer.mixer, settings))
    if settings.cache == "quantized":
        return (*packed(layer.mixer, settings, tokens=tokens), *fixed)
    if settings.cache == "dynamic":
        return (*kept(layer.mixer, settings, tokens=tokens), *fixed)
    return fixed


def _replaced(old: tuple[Tensor, ...], new: tuple[Tensor, ...]) -> Iterator[Node]:
    """One concatenation after the other: the new tensor exists before the old one dies."""
    for index in range(max(len(old), len(new))):
        yield from map(Alloc, new[index : index + 1])
        yield from map(Free, old[index : index + 1])


def _activations(model: Model, settings: Settings, run: Run, tokens: int, queries: int) -> Program:
    """The new tokens of every sequence through one layer, and what its cache unpacks for them."""
    sizes = sizes_of(model, model.main, settings, rows=settings.rows, queries=queries, keys=tokens)
    graph = decoder_layer(run.layer, sizes._replace(source_len=settings.source), owner=f"{model.main.name}.layers")
    hidden = boundary(sizes, model.main.name)
    inner = lower_inference(chained(graph, hidden))
    around: tuple[Tensor, ...] = ()
    if settings.cache == "quantized" and not settings.behaviour.reads_packed:  # unpacked, then joined with the newest
        around = kept(run.layer.mixer, settings, tokens=tokens) * 2
    return (Alloc(hidden), *map(Alloc, around), *inner, *map(Free, around), Free(hidden))
