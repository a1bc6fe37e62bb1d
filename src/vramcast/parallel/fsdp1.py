"""FullyShardedDataParallel (FSDP1): one flat weight per unit.

Symbols:  N ranks   n elements of a unit
[FSDP1] pytorch torch/distributed/fsdp/_flat_param.py `FlatParamHandle.unshard`: the flat weight is gathered in place;
_runtime_utils.py `_post_backward_hook`, `_accumulate_sharded_grad`. Frozen weights in a unit with learning ones share
its flat gradient. Under no_sync the flat gradients of all units stay unsharded until the last micro-batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from vramcast.domain.program import Alloc, Category, Free, Loop, Node, Program, Tensor
from vramcast.units import ceil_div

_SOURCE = "pytorch torch/distributed/fsdp/_flat_param.py"


class FlatUnit(NamedTuple):
    """One wrapped module."""

    flat: Tensor  # gathered weights
    gradient: Tensor  # unsharded flat gradient
    shard: Tensor
    shard_gradient: Tensor


class FlatStage(NamedTuple):
    """`repeats` equal units with their programs."""

    unit: FlatUnit
    forward: Program
    backward: Program
    gradients: tuple[Tensor, ...] = ()  # of single weights, before they are concatenated
    repeats: int = 1


def flat_unit(owner: str, *, elements: int, ranks: int, width: int) -> FlatUnit:
    """Tensors of a unit of `elements` weights of `width` bytes over `ranks` ranks."""
    padded = ceil_div(elements, ranks) * ranks
    formula = f"{elements:,} x {width} B over {ranks} ranks"

    def tensor(name: str, count: int, category: Category) -> Tensor:
        return Tensor(
            name=name, num_bytes=count * width, category=category, owner=owner, formula=formula, source=_SOURCE
        )

    return FlatUnit(
        tensor("unsharded flat weight", padded, Category.COMMUNICATION),
        tensor("unsharded flat gradient", padded, Category.GRADIENTS),
        tensor("flat weight shard", padded // ranks, Category.WEIGHTS),
        tensor("flat gradient shard", padded // ranks, Category.GRADIENTS),
    )


def flat_forward(stages: Sequence[FlatStage]) -> Program:
    """Each unit is gathered while the one before it computes, and freed after its forward."""
    nodes: list[Node] = []
    for stage in stages:
        flat = stage.unit.flat
        body = (Alloc(flat), Alloc(flat), *stage.forward, Free(flat), Free(flat))
        nodes.append(Loop(stage.repeats, body, label="layers"))
    return tuple(nodes)


def flat_backward(stages: Sequence[FlatStage], *, first: bool) -> Program:
    """Backward under no_sync: the next unit is gathered ahead, flat gradients stay whole or are added to those that do.

    Args:
        stages: in order of forward
        first: no flat gradients exist yet
    """
    nodes: list[Node] = []
    for stage in reversed(stages):
        flat, gradient = stage.unit.flat, stage.unit.gradient
        kept: tuple[Node, ...] = (Alloc(gradient), *map(Free, stage.gradients))
        if not first:
            kept = (*kept, Free(gradient))
        body = (Alloc(flat), Alloc(flat), *stage.backward, *kept, Free(flat), Free(flat))
        nodes.append(Loop(stage.repeats, body, label="layers"))
    return tuple(nodes)


def flat_reduce(stages: Sequence[FlatStage]) -> Program:
    """The last micro-batch's reduction of gradients kept unsharded."""
    return tuple(
        Loop(stage.repeats, (Alloc(stage.unit.shard_gradient), Free(stage.unit.gradient))) for stage in stages
    )
