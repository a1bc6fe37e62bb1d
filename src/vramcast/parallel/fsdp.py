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
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise
from math import prod
from typing import Final, NamedTuple

from msgspec import Struct
from msgspec.structs import replace

from vramcast.domain.program import Alloc, Category, Free, Loop, Node, Program, Tensor
from vramcast.errors import Note
from vramcast.units import ceil_div

GATHER_STREAM: Final = "all-gather"
REDUCE_STREAM: Final = "reduce-scatter"
_SOURCE: Final = "pytorch torch/distributed/fsdp/_fully_shard/_fsdp_collectives.py"


class Fsdp(NamedTuple):
    """How weights are shared out."""

    ranks: int  # N
    gather_width: float = 2  # bytes of a gathered element (MixedPrecisionPolicy.param_dtype)
    compute_width: float = 2  # bytes of an element after copy-out
    reduce_width: int = 4  # bytes of a reduced element (MixedPrecisionPolicy.reduce_dtype)
    side_streams: bool = True  # communication allocates on streams of its own; False: collectives inside a graph


class Unit(NamedTuple):
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

        return self._replace(
            weights=(), reduce_input=replace(self.reduce_input, num_bytes=0), reduced=None,
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
