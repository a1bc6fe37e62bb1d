"""The prompt: every position of every sequence through the layers of one GPU, and what it leaves cached.

[HF] transformers models/llama/modeling_llama.py `LlamaModel.forward`, generation/utils.py `_prefill`, `_sample`
[ChatGLM] zai-org/glm-4-9b-chat modeling_chatglm.py `GLMTransformer.forward`: "use tensor format to save cuda memory"
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

from vramcast.blocks.ends import chained, embedding, logits
from vramcast.blocks.sizes import Sizes
from vramcast.blocks.transformer import decoder_layer
from vramcast.domain.job import AttentionKernel
from vramcast.domain.model import Attention, Layer, Model, Run
from vramcast.domain.program import Alloc, Category, Free, Loop, Node, Program, Tensor
from vramcast.engines.serving.stages import Stage
from vramcast.engines.transformers.caches import crossed, head_elements, kept, packed, states
from vramcast.engines.transformers.settings import Settings
from vramcast.operators.graph import Graph
from vramcast.operators.lowering import lower_inference

SOURCE: Final = "transformers models/*/modeling_*.py, generation/utils.py"

INT64: Final = 8
FP32: Final = 4


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
    found = [_input(name, sizes.tokens * INT64) for name in ("input_ids", "attention_mask", "position_ids")]
    mixers = (run.layer.mixer for run in model.main.runs)
    rotary = max((mixer.head_dim for mixer in mixers if isinstance(mixer, Attention) and mixer.rope), default=0)
    width = sizes.tokens * rotary * sizes.numerics.compute
    found += [_input(name, width) for name in ("cosines", "sines")]
    if settings.attention is AttentionKernel.EAGER or settings.padded:
        found.append(_input("attention mask, 4 dimensions", sizes.tokens * sizes.seq_len * sizes.numerics.compute))
    return tuple(tensor for tensor in found if tensor.num_bytes)


def read(model: Model, settings: Settings, stage: Stage, sizes: Sizes, hidden: Tensor) -> Read:
    """The prompt through the layers of one GPU, from ids or arriving states to the leaving ones.

    Args:
        model: the network
        settings: of the run
        stage: layers of this GPU
        sizes: of the prompt
        hidden: the residual stream
    """
    embeds = _tensor("inputs_embeds", sizes.residual_bytes, Category.ACTIVATIONS, hidden.formula)
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
        graph = chained(decoder_layer(run.layer, sizes._replace(caches=caches), owner=owner), hidden)
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
        found += (_tensor("queries and keys behind cached values", size, Category.CACHE),)
    return found


def _stacked(run: Run, once: Program, cached: tuple[Tensor, ...]) -> Read:
    """Every layer's keys and values are joined, then appended to those of the layers before [ChatGLM]."""
    size = sum(tensor.num_bytes for tensor in cached)
    pair = _tensor("keys and values of one layer", size, Category.CACHE)
    nodes: list[Node] = []
    before: Tensor | None = None
    for index in range(run.count):
        after = _tensor("keys and values so far", size * (index + 1), Category.CACHE)
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
    return _tensor("logits from the last GPU", size, Category.ACTIVATIONS)


def sampler(model: Model, settings: Settings) -> Program:
    """The last logits in fp32, processed scores and probabilities of every sequence."""
    size = settings.rows * model.vocab * FP32
    found = [_tensor(name, size, Category.TEMPORARIES) for name in ("next token logits", "scores", "probabilities")]
    return (*map(Alloc, found), *map(Free, found))


def _input(name: str, num_bytes: int) -> Tensor:
    return _tensor(name, num_bytes, Category.INPUTS)


def _tensor(name: str, num_bytes: int, category: Category, formula: str = "") -> Tensor:
    return Tensor(name=name, num_bytes=num_bytes, category=category, owner="generate", formula=formula, source=SOURCE)
