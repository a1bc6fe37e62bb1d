"""From a tape to memory programs: forward, backward, recomputation.

The forward program leaves behind what backward will read; the backward program consumes it. Both count references
to storages as eager autograd does (see `graph`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import StrEnum

from msgspec import Struct

from vramcast.domain.program import Alloc, Free, Program, Tensor, live_at_end
from vramcast.operators.graph import (
    Checkpoint,
    Graph,
    Operator,
    Storages,
    Value,
    discarded_values,
    external_inputs,
    regions_by_index,
    saver_counts,
)


class WeightGradients(StrEnum):
    """Where the gradient of a weight goes when backward has computed it."""

    FUSED = "fused"  # the kernel adds into an existing buffer: nothing is allocated
    TRANSIENT = "transient"  # allocated, added into a buffer, freed
    KEPT = "kept"  # stays until the caller frees it (first backward, FSDP before reduce-scatter)


class Lowered(Struct, frozen=True):
    """The programs of one block. `gradient` is the tensor backward expects for each graph output."""

    forward: Program
    backward: Program
    saved: Program  # the Alloc nodes of what forward leaves behind (net effect), for summaries

    @property
    def loss_gradient(self) -> Program:
        """The gradient of the loss, which backward frees but nobody in it makes."""
        ends = live_at_end(self.forward + self.backward)
        return tuple(Alloc(tensor) for tensor, net in ends.items() if net < 0 and tensor.name == "grad.loss")


class Caller(Struct, frozen=True):
    """What user code around a block keeps alive; the default is a model between its neighbours."""

    leaves: tuple[Value, ...] = ()  # inputs the user owns: never freed, their gradients go to `.grad` or to the user
    accumulates: bool = True  # leaf gradients are added to existing `.grad`s; else returned (torch.autograd.grad)
    retains_graph: bool = False  # saved tensors outlive backward
    holds_gradients: bool = False  # the user's variables keep the gradients of the outputs


def lower(
    graph: Graph,
    *,
    weight_gradients: WeightGradients = WeightGradients.TRANSIENT,
    hold_inputs: bool = True,
    gradient: Tensor | None = None,
    caller: Caller | None = None,
) -> Lowered:
    """Forward and backward programs of a block in training.

    Args:
        weight_gradients: what becomes of each weight's gradient
        hold_inputs: the caller's variable keeps the inputs alive until the block returns
        gradient: the tensor that stands for the gradient of the (first) output and of the first input, so that
            blocks of one width chain; None gives each value its own
        caller: what the code around the block keeps alive

    Returns: programs that cancel out: backward frees what forward left and the gradient it was given.
    """
    user = caller or Caller()
    saves = saver_counts(graph)
    forward = _Forward(graph, saves, hold_inputs=hold_inputs, saving=True, leaves=user.leaves).run()
    backward = _Backward(graph, saves, weight_gradients, gradient, user).run()
    return Lowered(forward, backward, tuple(node for node in forward if isinstance(node, Alloc)))


def lower_inference(graph: Graph, *, hold_inputs: bool = True) -> Program:
    """The forward program without autograd: nothing is saved."""
    return _Forward(graph, {}, hold_inputs=hold_inputs, saving=False).run()


class _Forward:
    def __init__(
        self, graph: Graph, saves: Mapping[Value, int], *, hold_inputs: bool, saving: bool, leaves: Sequence[Value] = ()
    ) -> None:
        self.graph = graph
        self.storages = Storages()
        self.saves = saves
        self.saving = saving
        self.wanted = dict(saves)  # storage -> readers and savers
        wanted = self.wanted.get
        for operator in graph.operators:
            for value in operator.inputs:
                self.wanted[value.storage] = wanted(value.storage, 0) + 1
        for value in graph.outputs:
            self.wanted[value.storage] = wanted(value.storage, 0) + 1
        self.held = graph.inputs if hold_inputs else []
        self.leaves = leaves

    def run(self) -> Program:
        storages = self.storages
        for value in self.leaves:
            storages.adopt(value, 1)
        for value in self.graph.inputs:
            storages.adopt(value, self.wanted.get(value, 0) + (value in self.held))
        for operator in self.graph.operators:
            self._run_operator(operator)
        for value in self.held:
            storages.release(value)
        return tuple(storages.nodes)

    def _run_operator(self, operator: Operator) -> None:
        storages = self.storages
        for value in operator.outputs:
            if value.storage is value:
                storages.allocate(value, self.wanted.get(value, 1))
        if self.saving:
            for value in operator.extra:
                storages.allocate(value, self.saves.get(value, 0))
        storages.pass_all(operator.temporaries)
        for value in operator.inputs:
            storages.release(value)
        for value in operator.outputs:
            if value.storage is value and value not in self.wanted:
                storages.release(value)


class _Gradient:
    """One gradient storage and the number of places that refer to it."""

    __slots__ = ("is_view", "references", "storage", "tensor")

    def __init__(self, tensor: Tensor, storage: Value | None = None, *, is_view: bool = False) -> None:
        self.tensor = tensor
        self.references = 1
        self.is_view = is_view or storage is not None
        self.storage = storage  # the saved value it was written into


class _Backward:
    def __init__(
        self, graph: Graph, saves: Mapping[Value, int], policy: WeightGradients, gradient: Tensor | None,
        caller: Caller,
    ) -> None:
        self.graph = graph
        self.saves = saves
        self.caller = caller
        self.policy = policy
        self.boundary = gradient
        self.ends = (*graph.outputs[:1], *graph.inputs[:1])
        self.storages = Storages()
        self.regions = regions_by_index(graph)
        self.discarded = discarded_values(graph)
        self.recomputed: set[int] = set()
        self.held_outputs: dict[int, list[Value]] = {}
        self.gradients: dict[Value, _Gradient] = {}
        self.names: dict[Value, Tensor] = {}

    def run(self) -> Program:
        caller = self.caller
        for value, count in self.saves.items():
            self.storages.adopt(value, count + (value in caller.leaves))
        for value in self.graph.outputs:
            if value.gradient_bytes:
                self.gradients[value] = _Gradient(self._gradient_tensor(value))
                self.gradients[value].references += caller.holds_gradients
        first_readers = self._first_readers() if caller.accumulates else {}
        for index in range(len(self.graph.operators) - 1, -1, -1):
            if self.regions:
                self._before(index)
            self._run_operator(self.graph.operators[index])
            if self.regions:
                self._after(index)
            for value in first_readers.get(index, ()):
                if value in self.gradients:
                    self._drop(self.gradients.pop(value))
        if caller.retains_graph:
            for operator in self.graph.operators:
                self._release_saved(operator)
        self._name_input_gradients()
        return tuple(self.storages.nodes)

    def _first_readers(self) -> dict[int, list[Value]]:
        """After which operator's backward each leaf's gradient is complete and added to its `.grad`."""
        readers: dict[int, list[Value]] = {}
        for leaf in self.caller.leaves:
            for index, operator in enumerate(self.graph.operators):
                if operator.differentiable and leaf in operator.inputs:
                    readers.setdefault(index, []).append(leaf)
                    break
        return readers

    def _name_input_gradients(self) -> None:
        """A gradient that lies in another storage goes to the caller under the name the caller expects."""
        for value in self.graph.inputs:
            gradient = self.gradients.get(value)
            if gradient is None or value in self.caller.leaves:
                continue
            expected = self._gradient_tensor(value)
            if gradient.storage is not None or gradient.tensor is not expected:
                self._drop(gradient)
                self.storages.nodes.append(Alloc(expected))

    def _gradient_tensor(self, value: Value) -> Tensor:
        if self.boundary is not None and value in self.ends and value.gradient_bytes == self.boundary.num_bytes:
            return self.boundary
        named = self.names.get(value)
        if named is None:
            named = self.names[value] = self.graph.tensor(f"grad.{value.name}", value.gradient_bytes)
        return named

    def _before(self, index: int) -> None:
        """Recompute what this operator's backward needs and forward threw away."""
        region = self.regions.get(index)
        if region is not None and region.start not in self.recomputed and not region.discard_output:
            self._recompute(region)
        for value in self.graph.operators[index].inputs:
            source = self.discarded.get(value.storage)
            if source is not None and source.start not in self.recomputed and self.regions.get(index) is not source:
                self._recompute(source)

    def _recompute(self, region: Checkpoint) -> None:
        self.recomputed.add(region.start)
        operators = self.graph.operators[region.start : region.stop]
        reads: dict[Value, int] = {}
        savers: dict[Value, int] = {}
        for operator in operators:
            for value in operator.inputs:
                reads[value.storage] = reads.get(value.storage, 0) + 1
            for value in (*operator.saved, *operator.extra):
                savers[value.storage] = savers.get(value.storage, 0) + 1
        last = operators[-1]
        if region.discard_output:
            for index, operator in enumerate(self.graph.operators):
                if self.regions.get(index) is not region:
                    for value in (*operator.saved, *operator.extra):
                        if value.storage in last.outputs:
                            savers[value.storage] = savers.get(value.storage, 0) + 1
        if region.outputs_alive:
            self.held_outputs[region.start] = list(last.outputs)
            for value in last.outputs:
                savers[value.storage] = savers.get(value.storage, 0) + 1
        external = external_inputs(self.graph, region)
        for value in external:
            self.storages.adopt(value, reads.get(value, 0) + savers.get(value, 0))
        for operator in operators:
            self._rerun(operator, region, reads, savers)

    def _rerun(
        self, operator: Operator, region: Checkpoint, reads: dict[Value, int], savers: dict[Value, int]
    ) -> None:
        storages = self.storages
        kept = region.keep is not None and region.keep(operator)
        for value in (*(output for output in operator.outputs if output.storage is output), *operator.extra):
            wanted = reads.get(value, 0) + savers.get(value, 0)
            if kept:
                storages.adopt(value, wanted)
                storages.release(value)
            else:
                storages.allocate(value, wanted)
        if not kept:
            storages.pass_all(operator.temporaries)
        for value in operator.inputs:
            storages.release(value)

    def _after(self, index: int) -> None:
        """Give back what a region held, once its first operator is done."""
        region = self.regions.get(index)
        if region is None or index != region.start:
            return
        for value in self.held_outputs.pop(region.start, []):
            self.storages.release(value)
        for value in external_inputs(self.graph, region):
            if value not in self.discarded:
                self.storages.release(value)

    def _run_operator(self, operator: Operator) -> None:
        storages = self.storages
        if not operator.differentiable:
            return
        incoming = [self.gradients.pop(value) for value in operator.outputs if value in self.gradients]
        produced: list[tuple[Value, _Gradient]] = []
        if incoming:
            produced = self._input_gradients(operator, incoming)
            if self.policy is not WeightGradients.FUSED:
                storages.nodes += map(Alloc, operator.weight_gradients)
            storages.pass_all(operator.backward_temporaries)
            for gradient in incoming:
                self._drop(gradient)
        if not self.caller.retains_graph:
            self._release_saved(operator)
        for value, gradient in produced:
            self._deposit(value, gradient)
        if incoming and self.policy is WeightGradients.TRANSIENT:
            storages.nodes += map(Free, operator.weight_gradients)

    def _release_saved(self, operator: Operator) -> None:
        kept = operator.saved_weight_gradients if self.policy is WeightGradients.KEPT else ()
        for values in (operator.saved, operator.extra):
            for value in values:
                if value not in kept:
                    self.storages.release(value)

    def _input_gradients(self, operator: Operator, incoming: list[_Gradient]) -> list[tuple[Value, _Gradient]]:
        produced: list[tuple[Value, _Gradient]] = []
        reuse = operator.reuses_gradient
        written = dict(operator.gradient_storages)
        for value in operator.inputs:
            if not value.gradient_bytes:
                continue
            if value in written:
                storage = written[value].storage
                self.storages.adopt(storage, 1)
                produced.append((value, _Gradient(storage.tensor, storage)))
                continue
            same_size = value.gradient_bytes == operator.outputs[0].gradient_bytes
            if (operator.passes_gradient and same_size) or operator.slices_gradient or reuse:
                incoming[0].references += 1
                incoming[0].is_view |= operator.slices_gradient
                produced.append((value, incoming[0]))
                reuse = False
            else:
                tensor = self._gradient_tensor(value)
                self.storages.nodes.append(Alloc(tensor))
                produced.append((value, _Gradient(tensor, is_view=operator.views_gradient)))
        return produced

    def _deposit(self, value: Value, gradient: _Gradient) -> None:
        """Autograd's input buffer: the first gradient is kept, later ones are added."""
        present = self.gradients.get(value)
        if present is None:
            self.gradients[value] = gradient
            return
        if present.references > 1 or present.is_view:
            # somebody else still reads the first one, or holds its base: the sum gets its own storage
            tensor = self._gradient_tensor(value)
            self.storages.nodes.append(Alloc(tensor))
            self._drop(present)
            self.gradients[value] = _Gradient(tensor)
        self._drop(gradient)

    def _drop(self, gradient: _Gradient) -> None:
        gradient.references -= 1
        if gradient.references:
            return
        if gradient.storage is not None:
            self.storages.release(gradient.storage)
        else:
            self.storages.nodes.append(Free(gradient.tensor))
