"""One batch on one or several GPUs: which layers lie where, what each does, how many sequences it holds.

[HF] transformers models/qwen2_vl/modeling_qwen2_vl.py `Qwen2VisionTransformerPretrainedModel`, models/whisper, t5
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from typing import Final, NamedTuple

from msgspec import Struct
from msgspec.structs import replace

from vramcast.blocks.ends import boundary, chained
from vramcast.blocks.parameters.model import named_parameters
from vramcast.blocks.parts import Sizes, project
from vramcast.blocks.transformer import decoder_layer
from vramcast.domain.cublas import blas_workspace
from vramcast.domain.device import FALLBACK_CONTEXT_BYTES
from vramcast.domain.job import Phase, RankProgram
from vramcast.domain.model import Attention, Head, Model, Stack, StoredWeights
from vramcast.domain.program import Alloc, Basis, Category, Free, Loop, Node, Program, Tensor, TensorsOf, extent
from vramcast.domain.serving import Deployment, ServeJob, ServingRank, Version
from vramcast.engines.serving.requests import generates
from vramcast.engines.serving.stages import Stage, stages
from vramcast.engines.serving.weights import Formats, loaded, total
from vramcast.engines.transformers.generation import head, inputs, kept, read, returned, sampler, steps
from vramcast.engines.transformers.settings import PRODUCTS, Settings, settings_of, sizes_of, weights
from vramcast.engines.transformers.versions import left_sentences, left_whole
from vramcast.errors import InvalidSpec, Note
from vramcast.operators.graph import Graph
from vramcast.operators.lowering import lower_inference
from vramcast.parallel.layout import balanced, modules_of, require_layers
from vramcast.states.storage import BITSANDBYTES, is_linear


def placed(model: Model, formats: Formats, gpus: int, release: Version) -> tuple[Stage, ...]:
    """Layers of each GPU in order; a GPU that would get none is left out.

    Args:
        release: of transformers

    Raises: InvalidSpec when there are more GPUs than layers
    """
    require_layers(model.num_layers, gpus)
    if gpus == 1:
        return stages((model.num_layers,))
    whole = Stage(0, model.num_layers, first=True, last=True)
    found = ((tensor.owner, tensor.num_bytes, repeats) for tensor, repeats in weights(model, formats, whole))
    packed = formats.quantised in BITSANDBYTES
    return stages(balanced(modules_of(found, model.main.name), gpus=gpus, release=release, packed=packed))


class Encoded(NamedTuple):
    """Towers' programs, and the states they leave for the main stack."""

    program: Program
    states: tuple[Tensor, ...]


def encoded(model: Model, settings: Settings) -> Encoded:
    """Every tower that this request runs.

    Raises: InvalidSpec when images have no size
    """
    nodes: list[Node] = []
    states: list[Tensor] = []
    for stack in model.stacks[:-1]:
        sizes = _sizes(model, stack, settings)
        if sizes is None:
            continue
        hidden = boundary(sizes, stack.name)
        nodes.append(Alloc(hidden))
        for run in stack.runs:
            graph = chained(decoder_layer(run.layer, sizes, owner=f"{stack.name}.layers"), hidden)
            nodes.append(Loop(run.count, lower_inference(graph), label="layers"))
        if stack.projector:
            graph, out = _projector(stack, sizes, hidden)
            nodes += lower_inference(graph, hold_inputs=False)
            states.append(out)
        else:
            states.append(hidden)
    return Encoded(tuple(nodes), tuple(states))


def _sizes(model: Model, stack: Stack, settings: Settings) -> Sizes | None:
    """None for towers that a text has no use for."""
    if settings.source:
        rows, length = settings.batch, settings.source
    else:
        length = _patches(stack, settings)
        rows = settings.batch * settings.images
    if not rows:
        return None
    if not length:
        raise InvalidSpec("images of {} may have any size; give --image-size, for example 1024", model.name)
    return replace(sizes_of(model, stack, settings, rows=rows, queries=length, keys=length), fused_gate=False)


def _patches(stack: Stack, settings: Settings) -> int:
    vision = stack.vision
    if vision is None:
        return settings.prompt
    if settings.image_size is not None and vision.patch:
        patches: int = (settings.image_size // vision.patch[-1]) ** 2 + int(vision.class_token)
        return patches
    return vision.positions or stack.positions


def _projector(stack: Stack, sizes: Sizes, hidden: Tensor) -> tuple[Graph, Tensor]:
    """Linears behind a tower; patches may be merged before, so rows are what the widths say."""
    graph = Graph(owner=f"{stack.name}.projector", rows=sizes.tokens)
    x = graph.input("hidden", sizes.residual_bytes, tensor=hidden)
    merged = max(1, stack.projector[0][0] // stack.hidden)
    tokens, whole = max(1, sizes.tokens // merged), replace(sizes, stored="full")
    for index, (columns, rows, bias) in enumerate(stack.projector):
        x = project(graph, f"projector.{index}", x, tokens=tokens, shape=(rows, columns), sizes=whole, bias=bias)
    graph.returns(x)
    return graph, x.storage.tensor


SECOND_HEADS: Final[dict[str, tuple[Version, bool]]] = {"awq-int4": ((4, 45), False), "fp8-block": ((4, 45), True)}
"""Format -> release from which loading a tied checkpoint was seen to hold a second head, and whether it stays."""

OFFLOADED_LAYERS: Final = 2
"""Layers of an offloaded cache that are on the card: the one in use and the next [cache_utils.py `OffloadedCache`]."""


def phases(
    model: Model, settings: Settings, stage: Stage, stored: StoredWeights | None = None
) -> dict[Phase, Program]:
    """Loading, and a call of generate (or of forward, where nothing is generated).

    Args:
        stored: headers of the checkpoint
    """
    return {Phase.LOAD: load(model, settings, stage, stored), Phase.SERVING: serve(model, settings, stage)}


def load(model: Model, settings: Settings, stage: Stage, stored: StoredWeights | None = None) -> Program:
    """Weights, rotary tables, kernels' buffers; newer releases first take the memory in one piece."""
    held = loaded(iter(weights(model, settings.formats, stage, stored=stored)))
    kept_always = (
        *_second_head(model, settings, stage), *_rotary_tables(model, settings, stage), *_buffer(model, settings)
    )
    if not settings.behaviour.warms_up:
        return (*held, *kept_always)
    # a quantised checkpoint warms up half [modeling_utils.py `caching_allocator_warmup`]
    half = settings.formats.quantised != settings.formats.whole
    piece = _tensor("warm-up of the allocator", total(held) // (2 if half else 1), Category.TEMPORARIES)
    return (Alloc(piece), Free(piece), *held, *kept_always)


def _second_head(model: Model, settings: Settings, stage: Stage) -> Program:
    """Quantised checkpoints of tied models that store the head too: it is tied again after loading, or stays."""
    if not (model.tied and stage.last and settings.formats.quantised in SECOND_HEADS):
        return ()
    size = model.vocab * model.hidden * settings.width
    head = Tensor(
        name="head beside the embedding", num_bytes=size, category=Category.WEIGHTS, owner="head",
        basis=Basis.MEASURED, formula=f"{model.vocab:,} x {model.hidden:,} x {settings.width} B",
        source="Qwen2.5 AWQ with 4.46.0 (two models), Qwen3 FP8 with 4.51.3 (three models)",
    )
    since, stays = SECOND_HEADS[settings.formats.quantised]
    if settings.version < since:
        return ()
    return (Alloc(head),) if stays else (Alloc(head), Free(head))


def _rotary_tables(model: Model, settings: Settings, stage: Stage) -> Iterator[Node]:
    """Cosines and sines of every position in every layer."""
    if not settings.behaviour.rotary_tables:
        return
    positions = max(model.context or 0, settings.total)
    for run in stage.runs(model):
        mixer = run.layer.mixer
        if isinstance(mixer, Attention) and mixer.rope:
            size = positions * int(mixer.head_dim * mixer.rope_fraction) * settings.width
            table = _tensor(
                "cos_cached, sin_cached", size, Category.WEIGHTS,
                Note("{:,} positions x {} x {} B, twice", positions, mixer.head_dim, settings.width),
            )
            yield Loop(run.count, (Alloc(table), Alloc(table)), label="layers")


def _buffer(model: Model, settings: Settings) -> Program:
    """The 16-bit copy that the largest packed weight is unpacked into."""
    product = PRODUCTS.get(settings.formats.quantised)
    if product is None or not product.buffer:
        return ()
    linears = [owned.parameter for owned in named_parameters(model) if is_linear(owned.parameter)]
    largest = max(parameter.shape[-2] * parameter.shape[-1] for parameter in linears)
    return (Alloc(_tensor("unpacked weight", 2 * largest, Category.WORKSPACES, f"{largest:,} x 2 B")),)


def workspace(settings: Settings) -> Tensor:
    """cuBLAS takes it at the first product and keeps it."""
    return blas_workspace(settings.workspace, whose="{:,} B for one handle")


def serve(model: Model, settings: Settings, stage: Stage) -> Program:
    """Prompts of all sequences at once, then their answers token by token."""
    queries = 1 if settings.source else settings.chunk  # a decoder behind an encoder starts with one token
    sizes = sizes_of(model, model.main, settings, rows=settings.rows, queries=queries, keys=queries)
    sizes = replace(sizes, source_len=settings.source)
    entering = inputs(model, settings, sizes)
    fixed = _fixed_cache(model, settings, stage)
    before = encoded(model, settings) if stage.first or settings.source else None
    hidden = boundary(sizes, model.main.name)
    passed = read(model, settings, stage, sizes, hidden)
    nodes: list[Node] = [Alloc(workspace(settings)), *map(Alloc, (*entering, *fixed))]
    if before is not None:
        nodes += before.program
    nodes += passed.program
    program, logits = _ended(model, settings, stage, sizes, hidden)
    nodes += program
    if logits is not None and not settings.behaviour.keeps_logits:
        nodes.append(Free(logits))
        logits = None
    nodes += steps(model, settings, stage, passed.held, logits)
    if before is not None:
        nodes += map(Free, before.states)
    return (*nodes, *map(Free, (*entering, *fixed)))


def _ended(
    model: Model, settings: Settings, stage: Stage, sizes: Sizes, hidden: Tensor
) -> tuple[Program, Tensor | None]:
    """What follows the last layer here, and the logits that the loop around forward holds on this GPU."""
    if model.head not in (Head.LM, Head.MLM):
        return (Free(hidden),), None
    program, logits = head(model, settings, sizes, hidden) if stage.last else ((Free(hidden),), None)
    if stage.first and stage.last:
        return (*program, *sampler(model, settings)), logits
    if stage.first:
        copy = returned(model, settings, sizes)
        return (*program, Alloc(copy), *sampler(model, settings)), copy
    return (program if logits is None else (*program, Free(logits))), None


def _fixed_cache(model: Model, settings: Settings, stage: Stage) -> tuple[Tensor, ...]:
    """Caches of the whole length: all layers' (static), or those of the layers on the card (offloaded)."""
    if settings.cache not in ("static", "offloaded") or not settings.generates:
        return ()
    found = tuple(
        tensor
        for layer in stage.layers(model)
        for tensor in kept(layer.mixer, settings, tokens=settings.total)
    )
    return found if settings.cache == "static" else found[: 2 * OFFLOADED_LAYERS]


_tensor: Final = TensorsOf(owner="process", source="transformers modeling_utils.py, models/*/modeling_*.py")


class Room(Struct, frozen=True, kw_only=True):
    """What one card leaves beside weights, and what each sequence takes of it at its highest point."""

    num_bytes: int  # of the card, less what is there without a sequence
    model: Model
    settings: Settings
    stage: Stage
    context: int  # asked for

    def sequence_bytes(self, tokens: int) -> int:
        """Cache and activations of one sequence of so many tokens, as many of them the answer's as were asked for.

        Activations of a batch are so many times those of one sequence, so that sequences add up.
        """
        return _sequence_bytes(self.model, self.settings, self.stage, tokens)

    @property
    def reported_tokens(self) -> dict[str, int]:
        """Sequences of the context asked for, in tokens."""
        return {"sequences x context": int(self.num_bytes / self.sequence_bytes(self.context) * self.context)}


@lru_cache(maxsize=256)
def _sequence_bytes(model: Model, settings: Settings, stage: Stage, tokens: int) -> int:
    answer = settings.total - settings.prompt
    prompt = max(1, tokens - answer)
    chunk = prompt if settings.chunk == settings.prompt else min(prompt, settings.chunk)
    alone = settings._replace(batch=1, prompt=prompt, chunk=chunk, total=max(prompt, tokens))
    if settings.source == settings.prompt:  # text encoders read the prompt
        alone = alone._replace(source=prompt)
    return extent(serve(model, alone, stage)).peak - workspace(settings).block_bytes


def deploy(job: ServeJob) -> Deployment:
    """The GPUs of a run, each with its layers.

    `engine_options`: "cache" (dynamic, static, quantized, offloaded), "beams" (count), "padded" (bool).
    """
    settings = settings_of(job)
    split = placed(job.model, settings.formats, job.plan.pp, job.version)
    ranks = (_rank(job, settings, stage, f"GPU {index}") for index, stage in enumerate(split))
    return Deployment(ranks=tuple(ranks), assumptions=tuple(_assumptions(job)))


def _rank(job: ServeJob, settings: Settings, stage: Stage, role: str) -> ServingRank:
    model = job.model
    as_stored = job.plan.weights is None and job.plan.dtype is None
    found = phases(model, settings, stage, job.weights if as_stored else None)
    program = RankProgram(role="all" if stage.first and stage.last else role, count=1, phases=found)
    if not generates(model):
        return ServingRank(program=program)
    gpu = job.cluster.gpu
    context = gpu.context_bytes or FALLBACK_CONTEXT_BYTES
    fixed = extent(found[Phase.LOAD]).net + workspace(settings).block_bytes + context
    room = Room(
        num_bytes=max(0, gpu.free_bytes - fixed), model=model, settings=settings, stage=stage, context=job.context
    )
    return ServingRank(program=program, cache=room, grows=True)


def _assumptions(job: ServeJob) -> Iterator[str]:
    yield "all sequences are one batch, equally long and without padding"
    if generates(job.model):
        yield "what growing caches leave free in PyTorch's allocator is given back before the card is full"
    if job.plan.pp > 1:
        yield 'layers lie on the GPUs as device_map="auto" balances them'
    if job.plan.weights in BITSANDBYTES:
        yield from left_sentences(job.model, left_whole(job.model.family, job.version), job.version)
