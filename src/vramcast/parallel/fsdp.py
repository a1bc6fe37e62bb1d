"""Fully sharded data parallelism: gathers before use, reduce-scatters behind it.

Symbols:  N ranks of the shard group   n elements of a unit's weights, padded to N
[FSDP2] pytorch torch/distributed/fsdp/_fully_shard/_fsdp_collectives.py `foreach_all_gather`,
`foreach_all_gather_copy_out`, `foreach_reduce`; _fsdp_param_group.py `wait_for_unshard`, `post_backward`:
* a gather's input and output live on the copy-in stream; the copy-out makes a tensor per weight on the compute stream;
* in forward a gather's output lives until the next unit has been gathered, in backward until its own copy-out;
* the next unit of backward is gathered while this one computes;
* the reduce-scatter's input is made on the compute stream and lives until the next one, its output, the sharded
  gradient, on the reduce-scatter stream.
[FSDP1] pytorch torch/distributed/fsdp/_flat_param.py, _runtime_utils.py: one flat tensor per unit, gathered in place on
the unshard stream; the gradients of its views are concatenated into one flat gradient.

FullyShardedDataParallel (FSDP1): one flat weight per unit.

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

from collections.abc import Iterable, Sequence
from itertools import pairwise
from math import prod
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from vramcast.domain.program import Alloc, Category, Free, Loop, Node, Program, Tensor
from vramcast.errors import Note
from vramcast.units import ceil_div

GATHER_STREAM: Final = "all-gather"
REDUCE_STREAM: Final = "reduce-scatter"
_SOURCE: Final = "pytorch torch/distributed/fsdp/_fully_shard/_fsdp_collectives.py"


class Fsdp(Struct, frozen=True):
    """How weights are shared out."""

    ranks: int  # N
    gather_width: float = 2  # bytes of a gathered element (MixedPrecisionPolicy.param_dtype)
    compute_width: float = 2  # bytes of an element after copy-out
    reduce_width: int = 4  # bytes of a reduced element (MixedPrecisionPolicy.reduce_dtype)
    side_streams: bool = True  # communication allocates on streams of its own; False: collectives inside a graph


class Unit(Struct, frozen=True):
    """Weights that are gathered together: one fully_shard call."""

    flat: Tensor  # this rank's shard in the gather's dtype
    gathered: Tensor
    weights: tuple[Tensor, ...]  # unsharded, one per weight
    reduce_input: Tensor
    reduce_output: Tensor  # the sharded gradient
    accumulated: tuple[Tensor, ...]  # unsharded gradients in the reduce dtype, kept over micro-batches without sync
    reduced: Tensor | None = None  # the sharded gradient in the reduce dtype, where the weight has another

    @property
    def shared(self) -> bool:
        """Whether there is anything to gather."""
        return self.gathered.num_bytes > 0

    def outside(self, *, reduced: int, stored: int) -> Unit:
        """Weights that are used as they are stored, and whose gradients stay as backward leaves them.

        Args:
            reduced: bytes of an element of a reduced gradient
            stored: of a weight
        """
        def in_weights(tensor: Tensor) -> Tensor:
            return replace(tensor, num_bytes=tensor.num_bytes // reduced * stored)

        return replace(
            self, weights=(), reduce_input=replace(self.reduce_input, num_bytes=0), reduced=None,
            accumulated=tuple(map(in_weights, self.accumulated)),
        )


def unit(
    owner: str, shapes: Iterable[tuple[str, tuple[int, ...]]], plan: Fsdp, *, stored_width: int | None = None
) -> Unit:
    """The tensors of one unit.

    Args:
        owner: where the ledger lists them
        shapes: path and local shape (after tensor and expert parallelism) of each weight
        plan: group and element widths
        stored_width: bytes of an element of a shard, and so of its gradient; None: as gradients are reduced
    """
    named = [(path, prod(shape), _padded(shape, plan.ranks)) for path, shape in shapes]
    padded = sum(size for _, _, size in named)
    formula = Note("{:,} elements over {} ranks", padded, plan.ranks)

    def tensor(name: str, num_bytes: float, category: Category, stream: str = "") -> Tensor:
        return Tensor(
            name=name, num_bytes=round(num_bytes), category=category, owner=owner, formula=formula, source=_SOURCE,
            stream=stream if plan.side_streams else "",
        )

    alone, kind = plan.ranks == 1, Category.COMMUNICATION
    share = padded // plan.ranks
    cast = stored_width not in (None, plan.reduce_width)  # [FSDP2] `foreach_reduce`, "_to_dtype_if_needed"
    reduced = tensor("sharded gradients, reduced", share * plan.reduce_width, Category.GRADIENTS, REDUCE_STREAM)
    return Unit(
        tensor("all-gather input", 0 if alone else padded // plan.ranks * plan.gather_width, kind, GATHER_STREAM),
        tensor("all-gather output", 0 if alone else padded * plan.gather_width, kind, GATHER_STREAM),
        tuple(tensor(f"unsharded {path}", size * plan.compute_width, Category.WEIGHTS) for path, _, size in named),
        tensor("reduce-scatter input", padded * plan.reduce_width, kind),
        tensor("sharded gradients", share * (stored_width or plan.reduce_width), Category.GRADIENTS, REDUCE_STREAM),
        tuple(tensor(f"accumulated gradient of {p}", n * plan.reduce_width, Category.GRADIENTS) for p, n, _ in named),
        reduced if cast else None,
    )


def _padded(shape: tuple[int, ...], ranks: int) -> int:
    """Elements once the first dimension is padded to a multiple of the group."""
    rest = prod(shape[1:])
    return ceil_div(shape[0], ranks) * ranks * rest


class Stage(Struct, frozen=True):
    """`repeats` equal pieces of a model, each with its units and its programs."""

    units: tuple[Unit, ...]
    forward: Program
    backward: Program
    gradients: tuple[Tensor, ...] = ()  # unsharded weight gradients that backward leaves
    repeats: int = 1
    reshard: bool = True  # the weights are freed after forward
    label: str = "layers"


def gather(units: Sequence[Unit]) -> Program:
    nodes: list[Node] = []
    for piece in units:
        if piece.shared:
            nodes += [Alloc(piece.flat), Alloc(piece.gathered), Free(piece.flat)]
    return tuple(nodes)


def copy_out(units: Sequence[Unit]) -> Program:
    """One unsharded tensor per weight."""
    return tuple(Alloc(tensor) for piece in units for tensor in piece.weights)


def _drop_gathered(units: Sequence[Unit]) -> Program:
    return tuple(Free(piece.gathered) for piece in units if piece.shared)


def release(units: Sequence[Unit]) -> Program:
    return tuple(Free(tensor) for piece in units for tensor in piece.weights)


def drop_inputs(units: Sequence[Unit]) -> Program:
    """The inputs of finished reduce-scatters die."""
    return tuple(Free(piece.reduce_input) for piece in units)


def forward(stages: Sequence[Stage], *, prefetch: bool = False, before: tuple[Unit, ...] = ()) -> Program:
    """Forward through all stages with their gathers.

    Args:
        stages: in order of execution; the weights of stages with `reshard` False stay
        prefetch: explicit prefetching: the next stage is gathered before this one computes
        before: units whose gather's output still lives
    """
    nodes: list[Node] = []
    for stage in stages:
        nodes += _forward_body(stage, before, prefetch=prefetch)
        before = stage.units
        if stage.repeats > 1:
            nodes.append(Loop(stage.repeats - 1, _forward_body(stage, before, prefetch=prefetch), label=stage.label))
    nodes += _drop_gathered(before)
    return tuple(nodes)


def _forward_body(stage: Stage, before: tuple[Unit, ...], *, prefetch: bool) -> Program:
    late: Program = ()
    if prefetch:  # the next stage's weights are copied out only at its own turn
        late = gather(stage.units) + _drop_gathered(stage.units)
    return (
        *gather(stage.units), *_drop_gathered(before), *copy_out(stage.units), *late, *stage.forward,
        *(release(stage.units) if stage.reshard else ()),
    )


def backward(
    stages: Sequence[Stage], *, first: bool = True, synchronise: bool = True, ahead: bool = False
) -> Program:
    """Backward through all stages: gathers ahead, reduce-scatters behind.

    Args:
        stages: in order of forward
        first: no sharded gradients exist yet; else the new ones are added to them and freed
        synchronise: gradients are reduced; else they add up unsharded in the reduce dtype (set_requires_gradient_sync)
        ahead: the gather of the last stage has been issued
    """
    nodes: list[Node] = []
    order: list[Stage | None] = [*reversed(stages), None]
    inputs: tuple[Unit, ...] = ()  # whose reduce-scatter inputs live
    for stage, after in pairwise(order):
        assert stage is not None
        repeats = stage.repeats
        for times, following in ((repeats > 1, stage), (repeats - 2, stage), (1, after)):
            if times <= 0:
                continue
            body = _backward_body(stage, following, inputs, ahead=ahead, first=first, synchronise=synchronise)
            nodes += body if times == 1 else (Loop(times, body, label=stage.label),)
            ahead = following is not None and following.reshard
            inputs = stage.units if synchronise and stage.gradients else inputs
    nodes += drop_inputs(inputs)
    return tuple(nodes)


def _backward_body(
    stage: Stage, following: Stage | None, inputs: Sequence[Unit], *, ahead: bool, first: bool, synchronise: bool
) -> Program:
    nodes: list[Node] = []
    if stage.reshard:
        nodes += () if ahead else gather(stage.units)
        nodes += (*copy_out(stage.units), *_drop_gathered(stage.units))
    if following is not None and following.reshard:
        nodes += gather(following.units)
    nodes += stage.backward
    if not synchronise:
        return (*nodes, *_accumulate(stage, first=first), *release(stage.units))  # set_reshard_after_backward's default
    nodes += release(stage.units)
    return (*nodes, *reduce(stage, inputs, first=first))


def reduce(stage: Stage, inputs: Sequence[Unit] = (), *, first: bool = True) -> Program:
    """Reduce-scatter of a stage's gradients; `inputs` are the units whose reduction ran before."""
    if not stage.gradients:
        return ()
    summed = () if first else tuple(Free(piece.reduce_output) for piece in stage.units)
    return (
        *drop_inputs(inputs), *(Alloc(piece.reduce_input) for piece in stage.units), *map(Free, stage.gradients),
        *scattered(stage.units), *summed,
    )


def scattered(units: Sequence[Unit]) -> Program:
    """The shares that a reduce-scatter leaves, cast to the type of the weights."""
    nodes: list[Node] = []
    for piece in units:
        around = () if piece.reduced is None else (piece.reduced,)
        nodes += [*map(Alloc, around), Alloc(piece.reduce_output), *map(Free, around)]
    return tuple(nodes)


def scatter_accumulated(stages: Sequence[Stage]) -> Program:
    """Reduce-scatter of gradients that added up unsharded."""
    return tuple(
        Loop(
            stage.repeats,
            tuple(
                node for piece in stage.units for node in (
                    Alloc(piece.reduce_input), *map(Free, piece.accumulated), *scattered((piece,)),
                    Free(piece.reduce_input),
                )
            ),
        )
        for stage in reversed(stages)
        if stage.gradients
    )


def _accumulate(stage: Stage, *, first: bool) -> Program:
    born = [Alloc(tensor) for piece in stage.units for tensor in piece.accumulated] if first and stage.gradients else []
    return (*born, *map(Free, stage.gradients))


def sharded_gradients(stages: Sequence[Stage]) -> tuple[tuple[Tensor, int], ...]:
    """What a synchronised backward leaves: tensors and how many."""
    return tuple((piece.reduce_output, stage.repeats) for stage in stages if stage.gradients for piece in stage.units)


_FSDP1_SOURCE: Final = "pytorch torch/distributed/fsdp/_flat_param.py"


class FlatUnit(Struct, frozen=True):
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


class FlatStage(Struct, frozen=True):
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
            source=_FSDP1_SOURCE, stream=stream,
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
