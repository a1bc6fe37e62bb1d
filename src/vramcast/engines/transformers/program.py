"""What one GPU does: load its weights, read the prompts, write the answers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from vramcast.blocks.ends import boundary
from vramcast.blocks.parameters import named_parameters
from vramcast.blocks.sizes import Sizes
from vramcast.domain.checkpoint import StoredWeights
from vramcast.domain.job import Phase
from vramcast.domain.model import Attention, Head, Model
from vramcast.domain.program import Alloc, Basis, Category, Free, Loop, Node, Program, Tensor
from vramcast.domain.serving import Version
from vramcast.engines.blas import blas_workspace
from vramcast.engines.serving.stages import Stage
from vramcast.engines.serving.weights import loaded, total
from vramcast.engines.transformers.answer import steps
from vramcast.engines.transformers.caches import kept
from vramcast.engines.transformers.prompt import head, inputs, read, returned, sampler
from vramcast.engines.transformers.settings import PRODUCTS, Settings, sizes_of
from vramcast.engines.transformers.towers import encoded
from vramcast.engines.transformers.weights import weights
from vramcast.states.storage import is_linear

SECOND_HEADS: Final[dict[str, tuple[Version, bool]]] = {"awq-int4": ((4, 45), False), "fp8-block": ((4, 45), True)}
"""Format -> release from which loading a tied checkpoint was seen to hold a second head, and whether it stays."""

OFFLOADED_LAYERS: Final = 2
"""Layers of an offloaded cache that are on the card: the one in use and the next [cache_utils.py `OffloadedCache`]."""


def phases(
    model: Model, settings: Settings, stage: Stage, stored: StoredWeights | None = None
) -> dict[Phase, Program]:
    """Loading, and a call of generate (or of forward, where nothing is generated).

    Args:
        model: the network
        settings: of the run
        stage: layers of this GPU
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
                f"{positions:,} positions x {mixer.head_dim} x {settings.width} B, twice",
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
    return blas_workspace(settings.workspace, whose="for one handle")


def serve(model: Model, settings: Settings, stage: Stage) -> Program:
    """Prompts of all sequences at once, then their answers token by token."""
    queries = 1 if settings.source else settings.chunk  # a decoder behind an encoder starts with one token
    sizes = sizes_of(model, model.main, settings, rows=settings.rows, queries=queries, keys=queries)
    sizes = sizes._replace(source_len=settings.source)
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
    found = _whole_caches(model, settings, stage)
    return found if settings.cache == "static" else found[: 2 * OFFLOADED_LAYERS]


def _whole_caches(model: Model, settings: Settings, stage: Stage) -> tuple[Tensor, ...]:
    return tuple(
        tensor
        for layer in stage.layers(model)
        for tensor in kept(layer.mixer, settings, tokens=settings.total)
    )


def _tensor(name: str, num_bytes: int, category: Category, formula: str = "") -> Tensor:
    return Tensor(
        name=name, num_bytes=num_bytes, category=category, owner="process", formula=formula,
        source="transformers modeling_utils.py, models/*/modeling_*.py",
    )
