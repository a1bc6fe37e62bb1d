"""The tape: a block's operators, and the memory program that eager autograd makes of them.

Reference counts of storages: who reads, saves and discards a value of a tape.

A block is written like model code: every operator call names what it reads, what it writes, what it keeps for
backward and what it needs only while it runs. From that one list follow the forward program, the backward program
and their recomputed forms, with the reference counting of eager PyTorch:

* a value dies after its last reader unless an operator saved it or a Python variable still holds it (`hold`);
* a gradient is allocated by the operator that produces it, passed on without a copy by additions and views, summed
  in place when nobody else holds it and into a new tensor when somebody does; a view holds the tensor it looks at
  [pytorch torch/csrc/autograd/input_buffer.cpp, `accumulate`, `can_accumulate_inplace`];
* what an operator saved dies when its backward has run, the gradient of its output likewise.

What eager autograd keeps alive between forward and backward follows from these counts (see `graph`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Concatenate, ParamSpec

from msgspec import Struct

from vramcast.domain.program import Alloc, Basis, Category, Free, Node, Tensor
from vramcast.errors import Note


class Value:
    """One activation of a block. A view has a gradient of its own, and the storage of the value it looks at."""

    __slots__ = ("gradient_bytes", "name", "num_bytes", "storage", "tensor")

    def __init__(
        self, name: str, num_bytes: int, gradient_bytes: int, tensor: Tensor, storage: Value | None = None
    ) -> None:
        self.name = name
        self.num_bytes = num_bytes
        self.gradient_bytes = gradient_bytes  # 0: nothing flows back into it
        self.tensor = tensor
        self.storage: Value = self if storage is None else storage


class Operator(Struct):
    """One call on the tape."""

    name: str
    inputs: Sequence[Value]
    outputs: Sequence[Value]
    saved: Sequence[Value] = ()
    extra: Sequence[Value] = ()  # storages born here only to be saved: masks, statistics
    temporaries: Sequence[Tensor] = ()  # alive beside the outputs while it runs forward
    backward_temporaries: Sequence[Tensor] = ()  # alive beside the new gradients while it runs backward
    passes_gradient: bool = False  # the output's gradient is the inputs' gradient (add, view, cast to same type)
    slices_gradient: bool = False  # the inputs' gradients are views of the output's gradient (cat, stack)
    views_gradient: bool = False  # the inputs' gradients are views of new tensors: never summed in place
    reuses_gradient: bool = False  # the first input's gradient is written into the output's gradient
    weight_gradients: Sequence[Tensor] = ()  # produced by backward, handed to the lowering's sink
    gradient_storages: Sequence[tuple[Value, Value]] = ()  # (input, saved value its gradient is written into)
    saved_weight_gradients: Sequence[Value] = ()  # extras that forward computed and backward hands to the sink
    differentiable: bool = True
    flops: int = 0

    @property
    def gradients_left(self) -> tuple[Tensor, ...]:
        """Gradients of weights that its backward leaves behind."""
        return (*self.weight_gradients, *(value.tensor for value in self.saved_weight_gradients))


class Checkpoint(Struct):
    """A run of operators [start, stop) whose saved values are dropped and recomputed.

    `keep` names operators whose outputs survive (selective activation checkpointing); with `discard_output` the
    output dies too, once its reader has run, and comes back before that reader's backward
    (Megatron's CheckpointWithoutOutput).
    """

    start: int
    stop: int
    keep: Callable[[Operator], bool] | None = None
    discard_output: bool = False
    outputs_alive: bool = False  # reentrant checkpointing holds the recomputed outputs during backward


P = ParamSpec("P")


def _appending(make: Callable[P, Operator]) -> Callable[Concatenate[Graph, P], Value]:
    """The method of a graph that takes an operator's fields."""

    def call(graph: Graph, /, *fields: P.args, **more: P.kwargs) -> Value:
        operator = make(*fields, **more)
        graph.operators.append(operator)
        return operator.outputs[0] if operator.outputs else operator.inputs[0]

    return call


class Graph(Struct):
    """A block under construction."""

    owner: str
    source: str = ""
    operators: list[Operator] = []
    inputs: list[Value] = []
    outputs: list[Value] = []
    checkpoints: list[Checkpoint] = []
    rows: int = 0  # tokens of the block: tensors without a formula of their own are so many bytes for each

    def _per_row(self, num_bytes: int) -> str:
        if self.rows and num_bytes and num_bytes % self.rows == 0:
            return Note("{:,} tokens x {:,} B", self.rows, num_bytes // self.rows)
        return ""

    def tensor(self, name: str, num_bytes: int, category: Category = Category.TEMPORARIES, formula: str = "") -> Tensor:
        """A named tensor owned by this block."""
        return Tensor(
            name=name,
            num_bytes=num_bytes,
            category=category,
            owner=self.owner,
            basis=Basis.FORMULA,
            formula=formula or self._per_row(num_bytes),
            source=self.source,
        )

    def value(
        self, name: str, num_bytes: int, *, gradient_bytes: int | None = None, formula: str = "",
        category: Category = Category.ACTIVATIONS,
    ) -> Value:
        """A storage; its gradient has the same size unless said otherwise."""
        gradient = num_bytes if gradient_bytes is None else gradient_bytes
        return Value(name, num_bytes, gradient, self.tensor(name, num_bytes, category, formula))

    def view(self, of: Value, name: str, *, gradient_bytes: int | None = None) -> Value:
        """Another look at the storage of a value (slice, chunk), with a gradient of its own."""
        gradient = of.gradient_bytes if gradient_bytes is None else gradient_bytes
        return Value(name, of.num_bytes, gradient, of.tensor, of.storage)

    def input(
        self, name: str, num_bytes: int, *, gradient_bytes: int | None = None, tensor: Tensor | None = None
    ) -> Value:
        """A value the caller owns: it exists before the block runs."""
        value = self.value(name, num_bytes, gradient_bytes=gradient_bytes)
        if tensor is not None:
            value.tensor = tensor
        self.inputs.append(value)
        return value

    call = _appending(Operator)
    """Append one operator; returns its first output (of an operator without any, its first input)."""

    def hold(self, *values: Value) -> None:
        """A Python variable held these up to here: their last use is now."""
        self.operators.append(Operator(name="hold", inputs=values, outputs=(), differentiable=False))

    def checkpoint(
        self,
        start: int,
        *,
        keep: Callable[[Operator], bool] | None = None,
        discard_output: bool = False,
        outputs_alive: bool = False,
    ) -> None:
        """Recompute everything called since `start` (a former `len(operators)`)."""
        self.checkpoints.append(
            Checkpoint(start, len(self.operators), keep, discard_output=discard_output, outputs_alive=outputs_alive)
        )

    def returns(self, *values: Value) -> None:
        """What the block hands to its caller."""
        self.outputs.extend(values)

    @property
    def weight_gradients(self) -> tuple[Tensor, ...]:
        """Those that its backward leaves behind."""
        return tuple(tensor for operator in self.operators for tensor in operator.gradients_left)


def without_gradients(graph: Graph) -> None:
    """Take away what autograd does not keep where nothing learns before the graph: up to the first weight that does,
    nothing is saved and no gradient flows.

    Source: pytorch torch/csrc/autograd/function.h `collect_next_edges`: an operator has no node in the tape where none
    of its inputs needs a gradient
    """
    for value in graph.inputs:
        value.gradient_bytes = 0
    for operator in graph.operators:
        if operator.gradients_left or any(value.gradient_bytes for value in operator.inputs):
            continue
        for value in operator.outputs:
            value.gradient_bytes = 0
        operator.temporaries = (*operator.temporaries, *(value.tensor for value in operator.extra))
        operator.saved, operator.extra, operator.differentiable = (), (), False
    if not any(operator.differentiable for operator in graph.operators):
        graph.checkpoints.clear()


class Storages:
    """Reference counts of the block's storages, and the nodes that follow from them."""

    def __init__(self) -> None:
        self.nodes: list[Node] = []
        self.references: dict[Value, int] = {}

    def allocate(self, value: Value, references: int) -> None:
        self.references[value] = references
        if value.tensor.num_bytes:
            self.nodes.append(Alloc(value.tensor))
            if references == 0:
                self.nodes.append(Free(value.tensor))

    def adopt(self, value: Value, references: int) -> None:
        storage = value.storage
        self.references[storage] = self.references.get(storage, 0) + references

    def release(self, value: Value) -> None:
        storage = value.storage
        left = self.references[storage] - 1
        self.references[storage] = left
        if left == 0 and storage.tensor.num_bytes:  # what has no size is somebody else's: nothing is allocated for it
            self.nodes.append(Free(storage.tensor))

    def pass_all(self, tensors: Sequence[Tensor]) -> None:
        """All at once, and gone."""
        if tensors:
            self.nodes += [Alloc(tensor) for tensor in tensors]
            self.nodes += [Free(tensor) for tensor in tensors]


def regions_by_index(graph: Graph) -> dict[int, Checkpoint]:
    return {index: region for region in graph.checkpoints for index in range(region.start, region.stop)}


def external_inputs(graph: Graph, region: Checkpoint) -> list[Value]:
    """What a region reads but does not make, in order of first reading."""
    made: set[Value] = set()
    seen: dict[Value, None] = {}
    for operator in graph.operators[region.start : region.stop]:
        for value in operator.inputs:
            if value.storage not in made:
                seen.setdefault(value.storage)
        made.update(operator.outputs)
    return list(seen)


def discarded_values(graph: Graph) -> dict[Value, Checkpoint]:
    """Values whose storage dies after their reader and is recomputed for its backward."""
    return {
        value: region
        for region in graph.checkpoints
        if region.discard_output
        for value in graph.operators[region.stop - 1].outputs
    }


def saver_counts(graph: Graph) -> dict[Value, int]:
    """How many savers hold each value between forward and backward."""
    saves: dict[Value, int] = {}
    if not graph.checkpoints:
        for operator in graph.operators:
            for value in (*operator.saved, *operator.extra):
                saves[value.storage] = saves.get(value.storage, 0) + 1
        return saves
    regions, discarded = regions_by_index(graph), discarded_values(graph)

    def add(value: Value) -> None:
        storage = value.storage
        if storage not in discarded:
            saves[storage] = saves.get(storage, 0) + 1

    for index, operator in enumerate(graph.operators):
        region = regions.get(index)
        if region is None:
            for value in (*operator.saved, *operator.extra):
                add(value)
        elif region.keep is not None and region.keep(operator):
            for value in (*operator.outputs, *operator.extra):
                add(value)
    for region in graph.checkpoints:
        for value in external_inputs(graph, region):
            add(value)
    return saves
