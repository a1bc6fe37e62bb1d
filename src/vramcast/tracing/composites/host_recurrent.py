"""LSTM, GRU and plain recurrent networks as the CPU runs them: LSTM through oneDNN, the others step by step.

Step by step, the products of a layer's input with its weights are made at once for all steps; C++ does that for
tensors that call themselves the CPU's only.

[choice] pytorch aten/src/ATen/native/RNN.cpp: `use_mkldnn`, `lstm`
[steps] the same file: `SimpleCell`, `LSTMCell`, `GRUCell`, `FullLayer`, `PackedLayer`, `apply_layer_stack`
[onednn] pytorch aten/src/ATen/native/mkldnn/RNN.cpp: `mkldnn_rnn`
[packed] pytorch aten/src/ATen/native/PackedSequence.cpp
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import accumulate, groupby, islice
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import linear

if TYPE_CHECKING:
    from vramcast.tracing.simulation import Simulation

ONEDNN_LSTM: Final = 2
"""oneDNN's mode, as torch numbers it."""
Hidden = tuple[Tensor, ...]
"""The state, and the cell of an LSTM."""


class Weights(NamedTuple):
    """Of one direction of one layer."""

    source: Tensor
    state: Tensor
    source_bias: Tensor | None = None
    state_bias: Tensor | None = None
    projection: Tensor | None = None


class Settings(NamedTuple):
    """What the module was made with."""

    has_biases: bool
    num_layers: int
    dropout: float
    training: bool
    bidirectional: bool


Cell = Callable[[Tensor, Hidden, Weights], Hidden]


def _tanh(products: Tensor, hidden: Hidden, weights: Weights) -> Hidden:
    return (torch.tanh(linear(hidden[0], weights.state, weights.state_bias).add_(products)),)


def _relu(products: Tensor, hidden: Hidden, weights: Weights) -> Hidden:
    return (torch.relu(linear(hidden[0], weights.state, weights.state_bias).add_(products)),)


def _gru(products: Tensor, hidden: Hidden, weights: Weights) -> Hidden:
    inputs = products.unsafe_chunk(3, 1)
    states = linear(hidden[0], weights.state, weights.state_bias).unsafe_chunk(3, 1)
    reset = states[0].add_(inputs[0]).sigmoid_()
    update = states[1].add_(inputs[1]).sigmoid_()
    new = inputs[2].add(states[2].mul_(reset)).tanh_()
    return ((hidden[0] - new).mul_(update).add_(new),)


def _lstm(products: Tensor, hidden: Hidden, weights: Weights) -> Hidden:
    gates = linear(hidden[0], weights.state, weights.state_bias).add_(products).unsafe_chunk(4, 1)
    enter, forget, new, leave = gates[0].sigmoid_(), gates[1].sigmoid_(), gates[2].tanh_(), gates[3].sigmoid_()
    cell = (forget * hidden[1]).add_(enter * new)
    state = leave * cell.tanh()
    return state if weights.projection is None else torch.matmul(state, weights.projection.t()), cell


class Steps(NamedTuple):
    """How the steps of a layer follow one another."""

    walk: Callable[[Tensor, Hidden, Weights, Cell, bool], tuple[list[Tensor], Hidden]]
    join: Callable[[list[Tensor]], Tensor]


def _all_steps(
    products: Tensor, hidden: Hidden, weights: Weights, cell: Cell, backwards: bool
) -> tuple[list[Tensor], Hidden]:
    """Padded sequences, time first."""
    steps = products.unbind(0)
    outputs = []
    for step in reversed(steps) if backwards else steps:
        hidden = cell(step, hidden, weights)
        outputs.append(hidden[0])
    return outputs[::-1] if backwards else outputs, hidden


PADDED: Final = Steps(_all_steps, torch.stack)


def _packed_steps(sizes: Sequence[int]) -> Steps:
    """Packed sequences: so many of them are still running at each step."""

    def walk(
        products: Tensor, hidden: Hidden, weights: Weights, cell: Cell, backwards: bool
    ) -> tuple[list[Tensor], Hidden]:
        places = [*zip(accumulate(sizes, initial=0), sizes, strict=False)]
        outputs: list[Tensor] = []
        finished: list[Hidden] = []
        first = hidden
        running = sizes[-1] if backwards else sizes[0]
        hidden = tuple(part[:running] for part in hidden)
        for begin, count in reversed(places) if backwards else places:
            step = products.narrow(0, begin, count)  # the engine goes back in this order
            if count > running:
                hidden = tuple(torch.cat((part, new[running:count])) for part, new in zip(hidden, first, strict=True))
            elif count < running:
                finished.append(tuple(part[count:] for part in hidden))
                hidden = tuple(part[:count] for part in hidden)
            running = count
            hidden = cell(step, hidden, weights)
            outputs.append(hidden[0])
        if not backwards:
            finished.append(hidden)
            hidden = tuple(torch.cat(parts) for parts in zip(*reversed(finished), strict=True))
        return outputs[::-1] if backwards else outputs, hidden

    return Steps(walk, torch.cat)


def _layer(
    x: Tensor, begins: Sequence[Hidden], weights: Sequence[Weights], cell: Cell, steps: Steps
) -> tuple[Tensor, list[Hidden]]:
    """One layer; outputs of forward's steps are kept until backwards is done [steps]."""
    walked, joined, ends = [], [], []
    for backwards, (begin, own) in enumerate(zip(begins, weights, strict=True)):
        products = linear(x, own.source, own.source_bias)
        outputs, end = steps.walk(products, begin, own, cell, bool(backwards))
        walked.append(outputs)
        joined.append(steps.join(outputs))
        ends.append(end)
    return torch.cat(joined, -1) if len(joined) > 1 else joined[0], ends


def _layers(
    x: Tensor, hidden: Sequence[Tensor], params: Sequence[Tensor], settings: Settings, cell: Cell, steps: Steps
) -> tuple[Tensor, list[Hidden]]:
    has_projections = len(hidden) > 1 and hidden[0].size(2) != hidden[1].size(2)
    weights = _weights(params, has_biases=settings.has_biases, has_projections=has_projections)
    begins = zip(*(part.unbind(0) for part in hidden), strict=True)
    width = 2 if settings.bidirectional else 1
    ends: list[Hidden] = []
    for index in range(settings.num_layers):
        x, last = _layer(x, [*islice(begins, width)], [*islice(weights, width)], cell, steps)
        ends += last
        if settings.dropout and settings.training and index < settings.num_layers - 1:
            x = torch.dropout(x, settings.dropout, True)
    return x, ends


def _stack(
    x: Tensor, hidden: Sequence[Tensor], params: Sequence[Tensor], settings: Settings, cell: Cell, steps: Steps
) -> tuple[Tensor, ...]:
    """All layers: the output, then the last states of all, a tensor a kind [steps]."""
    out, ends = _layers(x, hidden, params, settings, cell, steps)
    return out, *(torch.stack(parts) for parts in zip(*ends, strict=True))


def _weights(params: Sequence[Tensor], *, has_biases: bool, has_projections: bool) -> Iterator[Weights]:
    count = (4 if has_biases else 2) + has_projections
    for first in range(0, len(params), count):
        source, state, *rest = params[first : first + count]
        projection = rest.pop() if has_projections else None
        source_bias, state_bias = rest if has_biases else (None, None)
        yield Weights(source, state, source_bias, state_bias, projection)


def padded(cell: Cell) -> Callable[[Simulation], Callable[..., Any]]:
    """The operator on padded sequences."""

    def make(_simulation: Simulation) -> Callable[..., Any]:
        def run(x: Tensor, hx: Any, params: Sequence[Tensor], *rest: Any) -> Any:
            settings, batch_first = Settings(*rest[:5]), rest[5]
            hidden = (hx,) if isinstance(hx, Tensor) else hx
            if cell is _lstm and _onednn_takes(x, hidden):
                return _onednn(x, hidden, params, settings, batch_first=batch_first)
            source = x.transpose(0, 1) if batch_first else x
            out, *ends = _stack(source, hidden, params, settings, cell, PADDED)
            return out.transpose(0, 1) if batch_first else out, *ends

        return run

    return make


def packed(cell: Cell) -> Callable[[Simulation], Callable[..., Any]]:
    """The operator on packed sequences."""

    def make(_simulation: Simulation) -> Callable[..., Any]:
        def run(x: Tensor, sizes: Tensor, hx: Any, params: Sequence[Tensor], *rest: Any) -> Any:
            hidden = (hx,) if isinstance(hx, Tensor) else hx
            return _stack(x, hidden, params, Settings(*rest[:5]), cell, _packed_steps(sizes.tolist()))

        return run

    return make


def pad(_simulation: Simulation) -> Callable[..., Any]:
    """`pad_packed_sequence`; C++ reads the sizes of steps from real memory [packed `_pad_packed_sequence`]."""

    def run(data: Tensor, sizes: Tensor, batch_first: bool, padding_value: float, total_length: int) -> Any:
        steps = sizes.tolist()
        size = (max(len(steps), total_length), steps[0], *data.size()[1:])
        out = torch.full(size, padding_value, dtype=data.dtype, device=data.device)
        lengths = torch.tensor([sum(step > place for step in steps) for place in range(steps[0])])
        begin = first = 0
        for count, equal in groupby(steps):
            length = len(list(equal))
            rows = data[begin : begin + length * count]
            out[first : first + length, :count].copy_(rows.view(length, count, *data.size()[1:]))
            begin, first = begin + length * count, first + length
        return out.transpose(0, 1) if batch_first else out, lengths

    return run


def pack_backward(_simulation: Simulation) -> Callable[..., Tensor]:
    """The gradient of the padded input [packed `_pack_padded_sequence_backward`]."""

    def run(gradient: Tensor, size: Sequence[int], sizes: Tensor, batch_first: bool) -> Tensor:
        first, second, *rest = size
        out = gradient.new_zeros((second, first, *rest) if batch_first else (first, second, *rest))
        begin = 0
        for index, count in enumerate(sizes.tolist()):
            out[index, :count].copy_(gradient[begin : begin + count])
            begin += count
        return out.transpose(0, 1) if batch_first else out

    return run


def _onednn_takes(x: Tensor, hidden: Sequence[Tensor]) -> bool:
    """[choice]"""
    has_projections = hidden[0].size(2) != hidden[1].size(2)
    is_on = torch.backends.mkldnn.is_available() and torch._C._get_mkldnn_enabled()
    return is_on and x.dtype is torch.float32 and x.numel() > 0 and not has_projections


def _onednn(
    x: Tensor, hidden: Sequence[Tensor], params: Sequence[Tensor], settings: Settings, *, batch_first: bool
) -> tuple[Tensor, ...]:
    """Each direction of each layer by itself; outputs are kept until the next layer's replace them [onednn]."""
    first = (x.transpose(0, 1) if batch_first else x).contiguous()
    states, cells = (part.contiguous() for part in hidden)
    source, width = first, 2 if settings.bidirectional else 1
    weights = _weights(params, has_biases=settings.has_biases, has_projections=False)
    outputs = [first] * width
    ends: list[Hidden] = []
    for index in range(settings.num_layers):
        for direction in range(width):
            place = width * index + direction
            outputs[direction], *end, _ = torch.ops.aten.mkldnn_rnn_layer(
                source, *_with_biases(next(weights)), states[place], cells[place], direction > 0, [], ONEDNN_LSTM,
                cells.size(2), settings.num_layers, settings.has_biases, settings.bidirectional, batch_first,
                settings.training,
            )
            ends.append(tuple(end))
        source = torch.cat(outputs, -1) if settings.bidirectional else outputs[0]
        if settings.dropout and settings.training and index < settings.num_layers - 1:
            source = torch.dropout(source, settings.dropout, True)
    last, last_cells = (torch.stack(parts) for parts in zip(*ends, strict=True))
    return source.transpose(0, 1) if batch_first else source, last, last_cells


def _with_biases(weights: Weights) -> tuple[Tensor, ...]:
    """Zeros of the weights' own sizes stand for missing biases [onednn]."""
    if weights.source_bias is not None and weights.state_bias is not None:
        return weights.source, weights.state, weights.source_bias, weights.state_bias
    state_zeros = torch.zeros_like(weights.state)
    return weights.source, weights.state, torch.zeros_like(weights.source), state_zeros


_CELLS: Final[Mapping[str, Cell]] = {"lstm": _lstm, "gru": _gru, "rnn_tanh": _tanh, "rnn_relu": _relu}
COMPOSITES: Final[Mapping[str, Any]] = {
    **{f"{name}.input": padded(cell) for name, cell in _CELLS.items()},
    **{f"{name}.data": packed(cell) for name, cell in _CELLS.items()},
    "_pack_padded_sequence_backward": pack_backward, "_pad_packed_sequence": pad,
}
