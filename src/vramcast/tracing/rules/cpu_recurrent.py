"""One direction of one layer of an LSTM through oneDNN, as the CPU runs it: copies of weights, scratchpad, workspace.

oneDNN lays several arrays into one buffer, each on a page of its own, in rows whose length suits the cache. The
primitive of a layer knows one layer, one direction; torch calls it for each.

Leaves out bfloat16 and float16, whose kernels differ by machine, and CPUs without AVX2.

Symbols:  T steps   B batch   I input size   H hidden size
[layer] pytorch aten/src/ATen/native/mkldnn/RNN.cpp: `mkldnn_rnn_layer`, `mkldnn_rnn_layer_backward`
[ideep] intel/ideep@226df3a include/ideep/operators/lstm.hpp: which copies are made, in what order
[offsets] oneDNN v3.12 src/cpu/rnn/rnn_utils.cpp: `set_offsets`, `get_good_ld`, `set_good_strides`
[sizes] oneDNN v3.12 src/cpu/rnn/rnn_utils.hpp: `init_conf`, `set_workspace_sizes`
[book] oneDNN v3.12 src/cpu/rnn/ref_rnn.cpp: `init_scratchpad`, `init_brgemm`; src/common/memory_tracking.hpp: `book`
[packed] pytorch aten/src/ATen/native/PackedSequence.cpp `_pack_padded_sequence`
[brgemm] oneDNN v3.12 src/cpu/x64/rnn/rnn_brgemm_utils.cpp: `brgemm_calc_n_block`, `configure_brgemm`
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import groupby
from typing import Any, Final, NamedTuple

import torch

from vramcast.errors import InvalidSpec
from vramcast.tracing.call import Call, Rule
from vramcast.units import ceil_div

GATES: Final = 4
FLOAT_BYTES: Final = 4
PAGE_BYTES: Final = 4096
LINE_VALUES: Final = 64 // FLOAT_BYTES
"""Rows begin on a cache line [offsets]."""
ALIASED_VALUES: Final = 256
"""Rows of a multiple of so many values would share cache sets; they get a line more [offsets]."""
ALIGNMENT_BYTES: Final = 128
"""That every array booked in a scratchpad may be shifted by; the large one may be by a page [book]."""
POINTERS_BYTES: Final = 3 * (8 + ALIGNMENT_BYTES) + 8 * FLOAT_BYTES + ALIGNMENT_BYTES
"""Pointers to the weights of input, state and projection, and to the bias [book]."""
BATCH_ELEMENT_BYTES: Final = 40
"""Of a list of products, `brgemm_batch_element_t`: two pointers, two paddings, a compensation."""
MOST_MERGED: Final = 128
"""Batch from which on a step's product with the input is made alone in forward [sizes `merge_gemm_layer`]."""
VECTOR: Final = 16 if torch.backends.cpu.get_cpu_capability() == "AVX512" else 8
"""Floats in a vector register."""


class Layer(NamedTuple):
    """Sizes of one direction of one layer."""

    steps: int
    batch: int
    inputs: int
    hidden: int

    @property
    def gates(self) -> int:
        """Values of a row of gates."""
        return _row(GATES * self.hidden)

    def rows(self, width: int, steps: int = 1) -> int:
        """Of so many values, one for each sequence and step [bytes]."""
        return FLOAT_BYTES * steps * self.batch * width

    def states(self) -> tuple[int, int]:
        """Hidden states and cells of two layers, input and output, from before the first step on [sizes]; [bytes]."""
        states = 2 * (self.steps + 1)
        return self.rows(_row(max(self.inputs, self.hidden)), states), self.rows(self.hidden, states)

    def workspace(self) -> int:
        """Kept from forward for backward: gates, projections, states, cells and the gradients of the last three.

        >>> Layer(steps=7, batch=5, inputs=24, hidden=40).workspace()
        114688
        """
        hidden, cells = self.states()
        gates, projected = self.rows(self.gates, self.steps), self.rows(_row(self.hidden), self.steps)
        return _paged((gates, projected, hidden, cells, hidden, hidden, cells))

    def training_scratchpad(self, *, is_forward: bool) -> int:
        """Gates of all steps, or of one where steps go alone, projections and their gradients [bytes]."""
        steps = 1 if is_forward and self.batch >= MOST_MERGED else self.steps
        projected = self.rows(_row(self.hidden))
        return _booked(_paged((self.rows(self.gates, steps), projected, projected)))

    def inference_scratchpad(self) -> int:
        """States, cells, gates, projections; a list of products a thread [brgemm]; [bytes]."""
        is_merged = self.batch == 1 and self.steps > 1
        arrays = *self.states(), self.rows(self.gates, self.steps if is_merged else 1), self.rows(_row(self.hidden))
        is_fused = self.inputs == self.hidden and not is_merged
        products = 2 * (2 if is_fused else 1) * torch.get_num_threads()
        return _booked(_paged(arrays)) + products * BATCH_ELEMENT_BYTES + ALIGNMENT_BYTES

    def forward_copy(self, inputs: int) -> int:
        """Of a weight as forward in training reads it: a row for each input; 0 where that is how it lies [bytes]."""
        return 0 if inputs == 1 else FLOAT_BYTES * inputs * self.gates

    def backward_copy(self, inputs: int) -> int:
        """Of a weight as backward reads it: a row for each output; 0 where that is how it lies [bytes]."""
        return 0 if _row(inputs) == inputs else FLOAT_BYTES * GATES * self.hidden * _row(inputs)

    def gradient_copy(self, inputs: int) -> int:
        """Of a weight's gradient as backward writes it [bytes]."""
        return FLOAT_BYTES * inputs * self.gates

    def blocked_copy(self, inputs: int) -> int:
        """Of a weight as forward in inference reads it: outputs in blocks of two registers, or four [bytes]."""
        block = (4 if VECTOR == 8 and self.batch == 1 else 2) * VECTOR
        return FLOAT_BYTES * inputs * GATES * ceil_div(self.hidden, block) * block


def layer(call: Call) -> Any:
    """Output, last state, last cell; the workspace where gradients are recorded [layer]."""
    source, weight, recurrent, _, _, state, cell = call.args[:7]
    has_biases = call.args[12]
    sizes = Layer(source.size(0), source.size(1), source.size(2), weight.size(0) // GATES)
    out = call.empty((sizes.steps, sizes.batch, sizes.hidden), dtype=source.dtype)
    last, last_cell = (call.empty(each.size(), dtype=each.dtype) for each in (state, cell))
    call.scratch(weight.size(0) * FLOAT_BYTES, "sum of biases" if has_biases else "zero bias")
    if torch.is_grad_enabled():
        workspace = call.empty((sizes.workspace(),), dtype=torch.uint8)
        call.scratch(sizes.forward_copy(weight.size(1)), "weight in oneDNN's layout")
        call.scratch(sizes.forward_copy(recurrent.size(1)), "recurrent weight in oneDNN's layout")
        call.scratch(sizes.training_scratchpad(is_forward=True), "oneDNN scratchpad")
        return out, last, last_cell, workspace
    call.scratch(sizes.blocked_copy(weight.size(1)), "weight in oneDNN's layout")
    call.scratch(sizes.blocked_copy(recurrent.size(1)), "recurrent weight in oneDNN's layout")
    call.scratch(sizes.inference_scratchpad(), "oneDNN scratchpad")
    return out, last, last_cell, torch.empty(0, dtype=torch.uint8, device="meta")


def layer_backward(call: Call) -> Any:
    """Gradients of input, both weights, both biases, state and cell [layer]."""
    source, weight, recurrent, _, _, state, cell, out = call.args[:8]
    sizes = Layer(source.size(0), source.size(1), source.size(2), weight.size(0) // GATES)
    for gradient, like in zip(call.args[10:13], (out, state, cell), strict=True):
        if gradient is None or not gradient.is_contiguous():
            call.scratch(like.numel() * like.itemsize, "zeros or contiguous copy of a gradient")
    call.scratch(GATES * sizes.hidden * FLOAT_BYTES, "bias")
    if state.untyped_storage()._cdata == cell.untyped_storage()._cdata:
        call.scratch(cell.numel() * cell.itemsize, "copy of the cell")
    made = [call.empty(like.size(), dtype=torch.float32) for like in (source, state, cell, weight, recurrent)]
    grad_source, grad_state, grad_cell, grad_weight, grad_recurrent = made
    grad_bias = call.empty((GATES * sizes.hidden,), dtype=torch.float32)
    inputs = weight.size(1), recurrent.size(1)
    scratch = [call.scratch(sizes.backward_copy(count), "weight in oneDNN's layout") for count in inputs]
    scratch += [call.scratch(sizes.gradient_copy(count), "its gradient in oneDNN's layout") for count in inputs]
    scratch.append(call.scratch(GATES * sizes.hidden * FLOAT_BYTES, "gradient of the bias"))
    scratch.append(call.scratch(sizes.training_scratchpad(is_forward=False), "oneDNN scratchpad"))
    for block in reversed(scratch):
        call.release(block)
    other_bias = call.empty(grad_bias.size(), dtype=torch.float32)
    return grad_source, grad_weight, grad_recurrent, grad_bias, other_bias, grad_state, grad_cell


def pack(call: Call) -> Any:
    """Sizes of the steps, copies of the pieces that are not in one piece, then all in a row [packed].

    Raises: InvalidSpec where nobody computed the lengths
    """
    x, lengths, batch_first = call.args
    with call.simulation.kernels.running(False):
        known = call.simulation.values.of(lengths)
        if known is None:
            raise InvalidSpec("pack_padded_sequence needs the values of its lengths; give numbers, not results")
        ends = known.tolist()
        steps = torch.tensor([sum(end > step for end in ends) for step in range(ends[0])], device="cpu")
    sizes = call.empty(steps.size(), dtype=steps.dtype)
    call.simulation.values.set(sizes, steps)
    source, first = x.transpose(0, 1) if batch_first else x, 0
    for count, equal in groupby(steps.tolist()):
        piece = source[first : first + len(list(equal)), :count]
        first += piece.size(0)
        if not piece.is_contiguous():
            call.scratch(piece.nbytes, "piece of equal steps")
    return call.empty((sum(ends), *x.size()[2:]), dtype=x.dtype), sizes


def _row(values: int) -> int:
    """Length of a row that holds so many values [offsets `get_good_ld`]."""
    length = ceil_div(values, LINE_VALUES) * LINE_VALUES
    return length + LINE_VALUES if length % ALIASED_VALUES == 0 else length


def _paged(arrays: Iterable[int]) -> int:
    """Arrays one after the other, each and the end on a page [offsets]."""
    return sum(ceil_div(num_bytes, PAGE_BYTES) * PAGE_BYTES for num_bytes in arrays)


def _booked(num_bytes: int) -> int:
    return num_bytes + PAGE_BYTES + POINTERS_BYTES


RULES: Final[Mapping[str, Rule]] = {
    "aten._pack_padded_sequence": pack,
    "aten.mkldnn_rnn_layer": layer,
    "aten.mkldnn_rnn_layer_backward": layer_backward,
}
