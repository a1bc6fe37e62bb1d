"""FullyShardedDataParallel (FSDP1): one flat weight per unit.

Symbols:  N ranks   n elements of a unit
[FSDP1] pytorch torch/distributed/fsdp/_flat_param.py, _runtime_utils.py, read in 2.13:
* `FlatParamHandle.pre_unshard`, `unshard`: a shard that computes in another dtype is cast first; the flat weight is
  gathered whole on a stream of its own, and the cast shard dies;
* `_post_forward`: a unit's weight dies behind its forward, the root's does not (`_should_free_in_backward`);
* `_pre_backward_hook`, BackwardPrefetch.BACKWARD_PRE: the unit that ran before this one in forward is gathered before
  this one's backward. Adapters that are units of their own stand between two layers in that order: the next layer is
  gathered at the end only;
* `_post_backward_hook`, `_reduce_grad`: the gradients of a unit's views are concatenated, its weight dies, then the
  flat gradient is cast to the reduce dtype, scattered, and the share cast to the dtype of the weight;
* no_sync: flat gradients of all units stay unsharded until the last micro-batch;
* one rank: NO_SHARD, whatever was asked (_init_utils.py `_init_core_state`): the flat weight computes where it lies, or
  as its cast (`pre_unshard`, `needs_unshard`), and the flat gradient is the optimizer's (`_reduce_grad_no_shard`);
* `_register_post_backward_reshard_only_hook`: a hook on the inputs of a frozen unit holds the nodes that accumulate
  their gradients, and so inputs and gradients, until the end of backward, where they are leaves: that is so under
  reentrant checkpoints around the unit.
Frozen weights in a unit with learning ones share its flat gradient.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Final, NamedTuple

from vramcast.domain.program import Alloc, Category, Free, Loop, Node, Program, Tensor
from vramcast.errors import Note
from vramcast.parallel.fsdp import GATHER_STREAM, REDUCE_STREAM
from vramcast.units import ceil_div

_SOURCE: Final = "pytorch torch/distributed/fsdp/_flat_param.py"


class FlatUnit(NamedTuple):
    """One wrapped module."""

    flat: Tensor | None  # gathered weights; None: the shard itself computes
    gradient: Tensor  # unsharded flat gradient
    shard: Tensor
    shard_gradient: Tensor  # where nothing is sharded or cast, the unsharded one
    learns: bool = True
    low: Tensor | None = None  # the shard in the dtype that is gathered, where that is another
    wide: Tensor | None = None  # the unsharded gradient in the dtype that is reduced, where that is another
    reduced: Tensor | None = None  # this rank's share in the dtype that is reduced, where that is another
    on_host: bool = False  # the shard and its gradient: a gathered shard is copied to the card first


class FlatStage(NamedTuple):
    """`repeats` equal units with their programs."""

    unit: FlatUnit
    forward: Program
    backward: Program
    gradients: tuple[Tensor, ...] = ()  # of single weights, before they are concatenated
    repeats: int = 1
    leaves: FlatUnit | None = None  # adapters wrapped apart, all of one layer together
    leaf_gradients: tuple[Tensor, ...] = ()
    held: tuple[Tensor, ...] = ()  # what a hook keeps of each layer until the end of backward

    @property
    def units(self) -> tuple[FlatUnit, ...]:
        """The layer's own, and its adapters'."""
        return (self.unit,) if self.leaves is None else (self.unit, self.leaves)


def flat_unit(
    owner: str, *, elements: int, ranks: int, width: int, gathered: int | None = None, reduced: int | None = None,
    learns: bool = True, name: str = "", on_host: bool = False,
) -> FlatUnit:
    """Tensors of a unit of `elements` weights over `ranks` ranks.

    Args:
        owner: where the ledger lists them
        elements: of the flat weight [count]
        ranks: N
        width: bytes of an element of the shard, of its gradient and of the optimizer's states
        gathered: bytes of an element of the gathered weight and of its gradient; None: as `width`
        reduced: bytes of an element while gradients are reduced; None: as `gathered`
        learns: whether any weight in it has a gradient
        name: which unit of its owner it is
        on_host: CPUOffload(offload_params=True)
    """
    share = ceil_div(elements, ranks)
    compute = gathered or width
    reduce = reduced or compute
    formula = Note("{:,} x {} B over {} ranks", elements, width, ranks)

    def tensor(what: str, num_bytes: int, category: Category, stream: str = "") -> Tensor:
        return Tensor(
            name=f"{name} {what}".strip(), num_bytes=num_bytes, category=category, owner=owner, formula=formula,
            source=_SOURCE, stream=stream,
        )

    def cast(differs: bool, what: str, num_bytes: int, stream: str) -> Tensor | None:
        return tensor(what, num_bytes, Category.COMMUNICATION, stream) if differs else None

    whole, moved = ranks == 1, compute != width or on_host
    gradient = tensor("unsharded flat gradient", share * ranks * compute, Category.GRADIENTS)
    one_gradient = whole and compute == reduce == width
    return FlatUnit(
        cast(moved or not whole, "unsharded flat weight", share * ranks * compute, GATHER_STREAM),
        gradient,
        tensor("flat weight shard", share * width, Category.WEIGHTS),
        gradient if one_gradient else tensor("flat gradient shard", share * width, Category.GRADIENTS, REDUCE_STREAM),
        learns,
        cast(moved and not whole, "flat weight shard, cast", share * compute, GATHER_STREAM),
        cast(reduce != compute, "unsharded flat gradient, cast", share * ranks * reduce, REDUCE_STREAM),
        cast(reduce != width, "flat gradient shard, reduced", share * reduce, REDUCE_STREAM),
        on_host,
    )


def flat_gather(units: Sequence[FlatUnit]) -> Program:
    nodes: list[Node] = []
    for unit in units:
        around = () if unit.low is None else (unit.low,)
        nodes += [*map(Alloc, around), *map(Alloc, gathered_of(unit)), *map(Free, around)]
    return tuple(nodes)


def flat_release(units: Sequence[FlatUnit]) -> Program:
    return tuple(Free(flat) for unit in units for flat in gathered_of(unit))


def gathered_of(unit: FlatUnit) -> tuple[Tensor, ...]:
    """The weight that is made for a unit to compute with."""
    return () if unit.flat is None else (unit.flat,)


def flat_forward(stages: Sequence[FlatStage], *, reshard: bool = True) -> Program:
    """Each unit is gathered, computes and is freed; `reshard` False: it stays until its backward (SHARD_GRAD_OP)."""
    nodes: list[Node] = []
    for stage in stages:
        body = (*flat_gather(stage.units), *stage.forward, *(flat_release(stage.units) if reshard else ()))
        nodes.append(Loop(stage.repeats, body, label="layers"))
    return tuple(nodes)


def flat_backward(
    stages: Sequence[FlatStage], *, first: bool, synchronise: bool = False, reshard: bool = True,
    prefetch: bool = True, ahead: bool = False,
) -> Program:
    """Backward through all stages.

    Args:
        stages: in order of forward
        first: no gradients exist yet; else the new ones are added to them and freed
        synchronise: gradients are reduced; else flat gradients stay whole (no_sync)
        reshard: weights were freed behind forward
        prefetch: BackwardPrefetch.BACKWARD_PRE
        ahead: the last stage is gathered already
    """
    nodes: list[Node] = []
    order: list[FlatStage | None] = [*reversed(stages), None]
    for stage, after in pairwise(order):
        assert stage is not None
        for times, following in ((min(1, stage.repeats - 1), stage), (stage.repeats - 2, stage), (1, after)):
            if times <= 0:
                continue
            gathers = () if ahead or not reshard else flat_gather((stage.unit,))
            behind = flat_gather((following.unit,)) if following is not None and reshard and prefetch else ()
            early = not any(map(gathered_of, stage.units[1:]))  # its backward gathers the unit alone
            kept = [u.gradient for u in stage.units if u.learns and not first]
            body = (
                *gathers, *(behind if early else ()), *(flat_gather(stage.units[1:]) if reshard else ()),
                *stage.backward, *(() if early else behind), *_concatenated(stage), *flat_release(stage.units),
                *(_reduced(stage, first=first) if synchronise else map(Free, kept)),
                *map(Alloc, stage.held),
            )
            nodes += body if times == 1 else (Loop(times, body, label="layers"),)
            ahead = bool(behind)
    nodes += [Loop(stage.repeats, tuple(map(Free, stage.held))) for stage in stages if stage.held]
    return tuple(nodes)


def _concatenated(stage: FlatStage) -> Program:
    """Gradients of a unit's views become its flat gradient."""
    nodes: list[Node] = []
    for unit, gradients in zip(stage.units, (stage.gradients, stage.leaf_gradients), strict=False):
        if unit.learns:
            nodes += [Alloc(unit.gradient), *map(Free, gradients)]
    return tuple(nodes)


def flat_scatter(unit: FlatUnit, *, first: bool = True) -> Program:
    """The unsharded gradient of a unit is reduced and dies; `first`: no shard exists that the new one is added to."""
    nodes: list[Node] = []
    source = unit.gradient
    if unit.shard_gradient is source:
        return () if first and not unit.on_host else (Free(source),)
    if unit.wide is not None:
        nodes += [Alloc(unit.wide), Free(source)]
        source = unit.wide
    if unit.reduced is None:
        nodes += [Alloc(unit.shard_gradient), Free(source)]
    else:
        nodes += [Alloc(unit.reduced), Free(source), Alloc(unit.shard_gradient), Free(unit.reduced)]
    return (*nodes, *(() if first and not unit.on_host else (Free(unit.shard_gradient),)))


def _reduced(stage: FlatStage, *, first: bool) -> Program:
    return tuple(node for unit in stage.units if unit.learns for node in flat_scatter(unit, first=first))


def flat_reduce(stages: Sequence[FlatStage]) -> Program:
    """The last micro-batch's reduction of gradients kept unsharded."""
    return tuple(Loop(stage.repeats, _reduced(stage, first=True)) for stage in stages)


def shard_gradients(stages: Sequence[FlatStage]) -> tuple[tuple[Tensor, int], ...]:
    """What a synchronised backward leaves: tensors and how many."""
    return tuple((unit.shard_gradient, stage.repeats) for stage in stages for unit in stage.units if unit.learns)
