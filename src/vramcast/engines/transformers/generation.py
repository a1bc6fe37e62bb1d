"""The prompt and the answer through the layers of one GPU, and what each layer keeps of all sequences.

Symbols:  R rows (sequences x beams)   N tokens kept   G key/value heads   D head width

[HF] transformers cache_utils.py `DynamicLayer`, `DynamicSlidingWindowLayer`, `StaticLayer`, `QuantizedLayer`;
transformers models/llama/modeling_llama.py `LlamaModel.forward`, generation/utils.py `_prefill`, `_sample`;
transformers generation/utils.py `_sample`, cache_utils.py `DynamicLayer.update`, `QuantizedLayer.update`
[ChatGLM] zai-org/glm-4-9b-chat modeling_chatglm.py `GLMTransformer.forward`: "use tensor format to save cuda memory"
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

from msgspec.structs import replace

from vramcast.blocks.ends import boundary, chained, embedding, logits
from vramcast.blocks.parts import Sizes
from vramcast.blocks.transformer import decoder_layer
from vramcast.domain.job import AttentionKernel
from vramcast.domain.model import Attention, Layer, LinearAttention, Mamba, Mixer, Model, MultiLatentAttention, Run
from vramcast.domain.program import Alloc, Category, Free, Loop, Node, Program, Tensor, TensorsOf
from vramcast.engines.serving.stages import Stage
from vramcast.engines.transformers.settings import Settings, sizes_of
from vramcast.errors import Note
from vramcast.operators.graph import Graph
from vramcast.operators.lowering import lower_inference
from vramcast.states.storage import state_bytes
from vramcast.units import FP32, INT64, ceil_div

SOURCE: Final = "transformers cache_utils.py"

QUANTISED_GROUP: Final = 64
"""Elements that share a scale and a zero of 16 bits each [cache_utils.py `QuantizedLayer.q_group_size`]."""

RESIDUAL: Final = 128
"""Newest tokens that a quantised cache keeps as they are [cache_utils.py `QuantizedLayer.residual_length`]."""

Tensors = tuple[Tensor, ...]


def head_elements(mixer: Mixer | None) -> tuple[int, int]:
    """Elements of keys and of values that one token adds to one layer.

    Latent attention is cached expanded, per head [HF] models/deepseek_v3/modeling_deepseek_v3.py.

    >>> head_elements(Attention(num_heads=32, num_kv_heads=8, head_dim=128))
    (1024, 1024)
    """
    match mixer:
        case Attention(shared_kv=False):
            return mixer.num_kv_heads * mixer.head_dim, mixer.num_kv_heads * (mixer.v_head_dim or mixer.head_dim)
        case MultiLatentAttention():
            inner = mixer.qk_nope_dim + mixer.qk_rope_dim
            return mixer.num_heads * inner, mixer.num_heads * mixer.v_head_dim
        case _:
            return 0, 0


def kept(mixer: Mixer | None, settings: Settings, *, tokens: int, whole: bool = False) -> Tensors:
    """Keys and values of one layer after so many tokens; nothing for layers without attention.

    Args:
        tokens: length of the sequences
        whole: a window does not cut yet: the prompt's tensors are cut by a view, which holds all of them
    """
    elements = head_elements(mixer)
    if not elements[0]:
        return ()
    found = tokens if whole else _in_window(mixer, settings, tokens)
    return tuple(
        _tensor(
            name, settings.rows * found * count * settings.cache_width,
            formula=Note("{} x {:,} tokens x {:,} x {} B", settings.rows, found, count, settings.cache_width),
        )
        for name, count in zip(("keys", "values"), elements, strict=True)
    )


def _in_window(mixer: Mixer | None, settings: Settings, tokens: int) -> int:
    limit = mixer.window if isinstance(mixer, Attention) and settings.behaviour.windowed_cache else None
    return tokens if limit is None else min(tokens, limit)


def crossed(layer: Layer, settings: Settings) -> Tensors:
    """Keys and values of the encoder's states, made once."""
    mixer = layer.cross_attention
    if mixer is None:
        return ()
    size = settings.rows * settings.source * mixer.num_kv_heads * mixer.head_dim * settings.cache_width
    return tuple(_tensor(f"{name} of the source", size) for name in ("keys", "values"))


def packed(mixer: Mixer | None, settings: Settings, *, tokens: int) -> Tensors:
    """Keys and values of one layer of a quantised cache: packed with scales and zeros, and the newest as they are."""
    found: list[Tensor] = []
    for name, count in zip(("keys", "values"), head_elements(mixer), strict=True):
        if not count:
            continue
        elements = settings.rows * tokens * count
        size = ceil_div(elements * settings.cache_bits, 8) + 2 * 2 * ceil_div(elements, QUANTISED_GROUP)
        formula = Note("{} x {:,} tokens x {:,} in {} bits", settings.rows, tokens, count, settings.cache_bits)
        found.append(_tensor(f"{name}, packed", size, formula=formula))
        if not settings.behaviour.reads_packed:
            newest = settings.rows * min(RESIDUAL, tokens) * count * settings.cache_width
            found.append(_tensor(f"{name}, newest", newest))
    return tuple(found)


def states(mixer: Mixer | None, settings: Settings) -> Tensors:
    """The fixed state of a layer without attention."""
    if not isinstance(mixer, (Mamba, LinearAttention)):
        return ()
    size = settings.rows * state_bytes(mixer, conv_width=settings.width, state_width=settings.width)
    return (_tensor("recurrent states", size, formula=Note("{} sequences", settings.rows)),)


_tensor: Final = TensorsOf(owner="cache.layers", category=Category.CACHE, source=SOURCE)
_prompted: Final = TensorsOf(
    owner="generate", category=Category.INPUTS, source="transformers models/*/modeling_*.py, generation/utils.py")


class Held(NamedTuple):
    """What equal layers keep between two forward passes."""

    layers: int
    tensors: tuple[Tensor, ...]

    def freed(self) -> Program:
        """The program that lets go of all of it."""
        return (Loop(self.layers, tuple(map(Free, self.tensors)), label="layers"),)


class Read(NamedTuple):
    """One pass over the prompt on one GPU."""

    program: Program
    held: tuple[Held, ...]  # one for each run of layers


def inputs(model: Model, settings: Settings, sizes: Sizes) -> tuple[Tensor, ...]:
    """Ids, mask and positions (int64), cosines and sines of the prompt, the mask of eager attention."""
    found = [_prompted(name, sizes.tokens * INT64) for name in ("input_ids", "attention_mask", "position_ids")]
    mixers = (run.layer.mixer for run in model.main.runs)
    rotary = max((mixer.head_dim for mixer in mixers if isinstance(mixer, Attention) and mixer.rope), default=0)
    width = sizes.tokens * rotary * sizes.numerics.compute
    found += [_prompted(name, width) for name in ("cosines", "sines")]
    if settings.attention is AttentionKernel.EAGER or settings.padded:
        found.append(_prompted("attention mask, 4 dimensions", sizes.tokens * sizes.seq_len * sizes.numerics.compute))
    return tuple(tensor for tensor in found if tensor.num_bytes)


def read(model: Model, settings: Settings, stage: Stage, sizes: Sizes, hidden: Tensor) -> Read:
    """The prompt through the layers of one GPU, from ids or arriving states to the leaving ones.

    Args:
        sizes: of the prompt
        hidden: the residual stream
    """
    embeds = _prompted("inputs_embeds", sizes.residual_bytes, Category.ACTIVATIONS, hidden.formula)
    nodes: list[Node] = []
    if stage.first:
        # the variable holds what the embedding made until the last layer has run
        nodes += [Alloc(embeds), *lower_inference(chained(embedding(model, sizes, learns=False), hidden))]
    else:
        nodes.append(Alloc(hidden))
    held: list[Held] = []
    for run, graph in _graphs(model, settings, stage, sizes, hidden):
        passed = _layers(run, graph, settings)
        nodes += passed.program
        held += passed.held
    if stage.first:
        nodes.append(Free(embeds))
    return Read(tuple(nodes), tuple(held))


def _graphs(
    model: Model, settings: Settings, stage: Stage, sizes: Sizes, hidden: Tensor
) -> Iterator[tuple[Run, Graph]]:
    """The stage's runs with their graphs; what a dynamic cache takes over is a further output."""
    owner = f"{model.main.name}.layers"
    for run in stage.runs(model):
        caches = settings.cache == "dynamic" and settings.generates and head_elements(run.layer.mixer)[0] > 0
        graph = chained(decoder_layer(run.layer, replace(sizes, caches=caches), owner=owner), hidden)
        _name_cached(graph, run.layer, settings)
        yield run, graph


def _name_cached(graph: Graph, layer: Layer, settings: Settings) -> None:
    """Outputs behind the residual stream are entries of the cache."""
    named = kept(layer.mixer, settings, tokens=settings.chunk, whole=True)
    named += crossed(layer, settings)
    for value, tensor in zip(graph.outputs[1:], named, strict=False):
        if value.storage is value and value.num_bytes == tensor.num_bytes:
            value.tensor = tensor


def _layers(run: Run, graph: Graph, settings: Settings) -> Read:
    """Equal layers, and what each of them keeps of the prompt."""
    once = lower_inference(graph)
    cached = tuple(value.storage.tensor for value in graph.outputs[1:])
    if settings.behaviour.stacks_prompt and cached:
        return _stacked(run, once, cached)
    more = _apart(run.layer, settings)
    program: Program = (Loop(run.count, (*once, *map(Alloc, more)), label="layers"),)
    return Read(program, (Held(run.count, cached + more),))


def _apart(layer: Layer, settings: Settings) -> tuple[Tensor, ...]:
    """What a layer keeps that is no output of its graph: states, packed copies, what cached views hold on to."""
    found = states(layer.mixer, settings)
    if not settings.generates:
        return found
    if settings.cache == "quantized":
        found += packed(layer.mixer, settings, tokens=settings.chunk)
    mixer = layer.mixer
    if settings.behaviour.values_in_views and settings.cache == "dynamic" and isinstance(mixer, Attention):
        width = mixer.head_dim * (mixer.num_heads + mixer.num_kv_heads)
        size = settings.rows * settings.chunk * width * settings.width
        found += (_prompted("queries and keys behind cached values", size, Category.CACHE),)
    return found


def _stacked(run: Run, once: Program, cached: tuple[Tensor, ...]) -> Read:
    """Every layer's keys and values are joined, then appended to those of the layers before [ChatGLM]."""
    size = sum(tensor.num_bytes for tensor in cached)
    pair = _prompted("keys and values of one layer", size, Category.CACHE)
    nodes: list[Node] = []
    before: Tensor | None = None
    for index in range(run.count):
        after = _prompted("keys and values so far", size * (index + 1), Category.CACHE)
        nodes += [*once, Alloc(pair), *map(Free, cached), Alloc(after), Free(pair)]
        if before is not None:
            nodes.append(Free(before))
        before = after
    assert before is not None
    return Read(tuple(nodes), (Held(1, (before,)),))


def positions(settings: Settings, sizes: Sizes) -> int:
    """Positions of every sequence whose logits forward returns."""
    return 1 if settings.behaviour.last_logits and settings.generates else sizes.seq_len


def head(model: Model, settings: Settings, sizes: Sizes, hidden: Tensor) -> tuple[Program, Tensor]:
    """Final norm and projection; the logits that forward returned live on."""
    found = settings.behaviour
    graph = logits(
        model, sizes, positions=positions(settings, sizes), upcasts=found.upcasts,
        clones=found.clones_logits and settings.generates,
    )
    return lower_inference(chained(graph, hidden), hold_inputs=False), graph.outputs[0].storage.tensor


def returned(model: Model, settings: Settings, sizes: Sizes) -> Tensor:
    """The logits of another GPU, copied to the one that gave the ids [Accelerate hooks.py `io_same_device`]."""
    width = FP32 if settings.behaviour.upcasts else settings.width
    size = sizes.batch * positions(settings, sizes) * model.vocab * width
    return _prompted("logits from the last GPU", size, Category.ACTIVATIONS)


def sampler(model: Model, settings: Settings) -> Program:
    """The last logits in fp32, processed scores and probabilities of every sequence."""
    size = settings.rows * model.vocab * FP32
    found = [_prompted(name, size, Category.TEMPORARIES) for name in ("next token logits", "scores", "probabilities")]
    return (*map(Alloc, found), *map(Free, found))


def steps(model: Model, settings: Settings, stage: Stage, held: tuple[Held, ...], logits: Tensor | None) -> Program:
    """From the prompt's cache to the last token: its last chunk, the first step, a jump, the last step.

    The steps between differ in length only; none of them holds more than the last one of its kind.

    Args:
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
    graph = decoder_layer(run.layer, replace(sizes, source_len=settings.source), owner=f"{model.main.name}.layers")
    hidden = boundary(sizes, model.main.name)
    inner = lower_inference(chained(graph, hidden))
    around: tuple[Tensor, ...] = ()
    if settings.cache == "quantized" and not settings.behaviour.reads_packed:  # unpacked, then joined with the newest
        around = kept(run.layer.mixer, settings, tokens=tokens) * 2
    return (Alloc(hidden), *map(Alloc, around), *inner, *map(Free, around), Free(hidden))
