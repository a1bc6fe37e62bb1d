"""Weights of one rank of a deployment: what an engine loads of a checkpoint, in the format it is stored in."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

from msgspec.structs import replace

from vramcast.blocks.parameters import named_parameters
from vramcast.domain.model import Attention, Layer, Model
from vramcast.domain.program import Alloc, Category, Loop, Program, Tensor
from vramcast.engines.serving.stages import Stage
from vramcast.parallel.layout import Layout
from vramcast.states.storage import format_for, format_of
from vramcast.states.weights import local_shape

CHECKPOINT_FORMATS: Final[dict[str, str]] = {
    "fp8": "fp8-block",
    "nvfp4": "nvfp4",
    "mxfp4": "mxfp4",
    "nf4": "nf4",
    "fp4": "nf4",
    "int8": "int8",
    "int4": "int4",
}
"""`Model.quantisation` -> key of FORMATS."""

SOURCE: Final = "the checkpoint's tensors under the plan; docs/serving.md"


class Formats(NamedTuple):
    """How a checkpoint's weights are stored on the card."""

    quantised: str  # of what quantisers convert
    whole: str  # of everything else


def formats_of(model: Model, *, weights: str | None, dtype: str | None) -> Formats:
    """The formats a question names, else the checkpoint's own."""
    whole = dtype or (model.dtype if model.dtype in ("bf16", "fp16", "fp32") else "bf16")
    if weights is not None:
        return Formats(weights, whole)
    if model.quantisation is None:
        return Formats(whole, whole)
    return Formats(CHECKPOINT_FORMATS.get(model.quantisation, model.quantisation), whole)


def weight_tensors(
    model: Model, *, layout: Layout, formats: Formats, stage: Stage, category: Category = Category.WEIGHTS
) -> Iterator[tuple[Tensor, int]]:
    """The weights of one rank with how many equal ones there are.

    Leaves out what no engine loads: a tied head's copy, rotary frequencies, multi-token-prediction modules.

    Args:
        model: the network
        layout: degrees of parallelism
        formats: how weights are stored
        stage: layers of the rank's pipeline stage
        category: where the ledger lists them
    """
    staged = stage_of(model, stage)
    for owner, parameter, repeats in named_parameters(staged):
        if not _on_stage(owner, model, stage):
            continue
        local = replace(layout, kv_heads=_kv_heads(staged, owner))
        shape = local_shape(parameter, local)
        stored = format_for(parameter, quantised=formats.quantised, whole=formats.whole)
        tensor = Tensor(
            name=parameter.path,
            num_bytes=format_of(stored).num_bytes(shape),
            category=category,
            owner=owner,
            formula=f"{' x '.join(f'{size:,}' for size in shape)} in {stored}",
            source=SOURCE,
        )
        yield tensor, repeats


def stage_of(model: Model, stage: Stage) -> Model:
    """The network with only the layers of a stage in its main stack."""
    main = replace(model.main, runs=tuple(stage.runs(model)))
    return replace(model, stacks=(*model.stacks[:-1], main))


def _on_stage(owner: str, model: Model, stage: Stage) -> bool:
    if owner.startswith(f"{model.main.name}.layers"):
        return True
    if owner == "head" or owner == model.main.name:
        return stage.last
    # a tied embedding is the head's weight too, so the last stage holds a copy
    return stage.first or (owner == "embedding" and model.tied and stage.last)


def _kv_heads(model: Model, owner: str) -> int:
    """Key/value heads of the layers of an owner; 0 where it has none."""
    layer = _layer_of(model, owner)
    return layer.mixer.num_kv_heads if layer is not None and isinstance(layer.mixer, Attention) else 0


def _layer_of(model: Model, owner: str) -> Layer | None:
    stack_name, dot, span = owner.partition(".layers.")
    if not dot:
        return None
    first = int(span.partition("-")[0])
    stack = next(stack for stack in model.stacks if stack.name == stack_name)
    for run in stack.runs:
        if first < run.count:
            return run.layer
        first -= run.count
    return None


def loaded(tensors: Iterator[tuple[Tensor, int]]) -> Program:
    """The program that allocates weights and keeps them."""
    return tuple(Loop(repeats, (Alloc(tensor),), label="layers") for tensor, repeats in tensors)


def total(program: Program) -> int:
    """Bytes of what a load program leaves, unrounded [bytes]."""
    return sum(
        node.tensor.num_bytes if isinstance(node, Alloc) else node.count * total(node.body)
        for node in program
        if isinstance(node, (Alloc, Loop))
    )
