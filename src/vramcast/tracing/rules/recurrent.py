"""cuDNN's recurrent networks: outputs, workspace, reserve, gradients in one buffer.

cuDNN does not publish what it keeps for backward. Assumed: for every value of a hidden state its gates, its cell and
itself; and as workspace the gates of all steps of one layer.

[rnn] pytorch aten/src/ATen/native/cudnn/RNN.cpp: `_cudnn_rnn`, `_cudnn_rnn_backward_input`,
`_cudnn_rnn_backward_weight`, `_cudnn_init_dropout_state`
[cell] pytorch aten/src/ATen/native/cuda/RNN.cu `_thnn_fused_lstm_cell_cuda`, `_thnn_fused_gru_cell_cuda`
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

import torch

from vramcast.tracing.call import Call, Rule
from vramcast.tracing.rules.layouts import contiguous_copy, num_bytes

GATES: Final = {0: 1, 1: 1, 2: 4, 3: 3}
"""cuDNN's modes: ReLU, tanh, LSTM, GRU."""
LSTM: Final = 2


class Network(NamedTuple):
    """Sizes of one call."""

    mode: int
    hidden: int
    projection: int
    layers: int
    directions: int
    batch: int
    steps: int  # of all sequences together, times the batch where they are padded

    @property
    def gate_values(self) -> int:
        """Of one layer, all steps, both directions [elements]."""
        return GATES[self.mode] * self.hidden * self.directions * self.steps

    @property
    def reserve_values(self) -> int:
        """Kept for backward [elements]."""
        kept = GATES[self.mode] + (2 if self.mode == LSTM else 1)
        return kept * self.hidden * self.directions * self.steps * self.layers


def cudnn_rnn(call: Call) -> Any:
    """Output, last states, workspace, reserve [rnn `_cudnn_rnn`]."""
    x, weight, _, buffer, hx, cx, mode, hidden, projection, layers, batch_first, _, training, both, sizes, _ = call.args
    network = _network(x, mode, hidden, projection, layers, both, sizes, batch_first=batch_first)
    width = (projection or hidden) * network.directions
    time_major = x.transpose(0, 1) if batch_first and not sizes else x
    contiguous_copy(call, time_major)
    out = call.empty((*time_major.size()[:-1], width), dtype=x.dtype)
    count = network.layers * network.directions
    hy = call.empty((count, network.batch, projection or hidden), dtype=hx.dtype)
    cy = call.empty((count, network.batch, hidden) if cx is not None else (0,), dtype=hx.dtype)
    if buffer is None:
        buffer = call.empty((sum(part.numel() for part in weight),), dtype=x.dtype)
    call.scratch(network.gate_values * x.dtype.itemsize, "cuDNN recurrent network, forward")
    reserve = call.empty((network.reserve_values * x.dtype.itemsize if training else 0,), dtype=torch.uint8)
    return out.transpose(0, 1) if batch_first and not sizes else out, hy, cy, reserve, buffer


def cudnn_rnn_backward(call: Call) -> Any:
    """Gradients of input and states, then of all weights in one buffer [rnn]."""
    x, weight, _, buffer, hx, cx, out, grad_out, grad_hy, grad_cy = call.args[:10]
    mode, hidden, projection, layers, batch_first, _, _, both, sizes = call.args[10:19]
    network = _network(x, mode, hidden, projection, layers, both, sizes, batch_first=batch_first)
    for missing, like in ((grad_out, out), (grad_hy, hx), (grad_cy, cx)):
        if missing is None and like is not None:
            call.scratch(num_bytes(like), "zeros for a gradient")
    flips = batch_first and not sizes
    size = x.transpose(0, 1).size() if flips else x.size()
    dx = call.empty(size, dtype=x.dtype)
    dhx = call.empty(hx.size(), dtype=hx.dtype)
    dcx = call.empty(cx.size(), dtype=cx.dtype) if cx is not None else None
    work = network.gate_values * x.dtype.itemsize
    call.release(call.scratch(work, "cuDNN recurrent network, gradient of the data"))
    gradients = _weight_gradients(call, weight, buffer, work) if call.args[21][3] else []
    return dx.transpose(0, 1) if flips else dx, dhx, dcx, gradients


def _weight_gradients(
    call: Call, weight: Sequence[torch.Tensor], buffer: torch.Tensor, work: int
) -> list[torch.Tensor]:
    """Views of one buffer [rnn `_cudnn_rnn_backward_weight`]."""
    whole = call.empty(buffer.size(), dtype=buffer.dtype)
    call.release(call.scratch(work, "cuDNN recurrent network, gradient of the weights"))
    gradients, offset = [], 0
    for part in weight:
        gradients.append(whole[offset : offset + part.numel()].view(part.size()))
        offset += part.numel()
    return gradients


def _network(
    x: torch.Tensor, mode: int, hidden: int, projection: int, layers: int, both: bool, sizes: Sequence[int], *,
    batch_first: bool,
) -> Network:
    batch = sizes[0] if sizes else x.size(0 if batch_first else 1)
    steps = x.size(0) if sizes else x.size(0) * x.size(1)
    return Network(mode, hidden, projection, layers, 2 if both else 1, batch, steps)


RULES: Final[Mapping[str, Rule]] = {
    "aten._cudnn_rnn": cudnn_rnn,
    "aten._cudnn_rnn_backward": cudnn_rnn_backward,
}
PLAIN: Final = frozenset({"aten._thnn_fused_lstm_cell", "aten._thnn_fused_gru_cell"})
