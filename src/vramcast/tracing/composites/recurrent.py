"""LSTM, GRU and plain recurrent networks through cuDNN, as CUDA runs them; elsewhere step by step.

[choice] pytorch aten/src/ATen/native/RNN.cpp: `use_cudnn`, `lstm_cudnn_stub`
[cudnn] pytorch aten/src/ATen/native/cudnn/RNN.cpp: `_cudnn_impl`, `try_get_weight_buf`
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import torch

if TYPE_CHECKING:
    from vramcast.tracing.simulation import Simulation

_APART: Final = torch._C.DispatchKey.CompositeImplicitAutograd
RELU, TANH, LSTM, GRU = range(4)
"""cuDNN's modes."""
TYPES: Final = frozenset({torch.float16, torch.bfloat16, torch.float32, torch.float64})


class Settings(NamedTuple):
    """What the module was made with."""

    has_biases: bool
    num_layers: int
    dropout: float
    training: bool
    bidirectional: bool


def padded(name: str, mode: int) -> Callable[[Simulation], Callable[..., Any]]:
    """The operator on padded sequences."""

    def make(simulation: Simulation) -> Callable[..., Any]:
        def run(x: torch.Tensor, hx: Any, params: Sequence[torch.Tensor], *rest: Any) -> Any:
            if not _cudnn_takes(simulation, x):
                return getattr(torch.ops.aten, name).input._op_dk(_APART, x, hx, params, *rest)
            return _cudnn(mode, x, hx, params, Settings(*rest[:5]), batch_first=rest[5])

        return run

    return make


def packed(name: str, mode: int) -> Callable[[Simulation], Callable[..., Any]]:
    """The operator on packed sequences."""

    def make(simulation: Simulation) -> Callable[..., Any]:
        def run(x: torch.Tensor, sizes: torch.Tensor, hx: Any, params: Sequence[torch.Tensor], *rest: Any) -> Any:
            if not _cudnn_takes(simulation, x):
                return getattr(torch.ops.aten, name).data._op_dk(_APART, x, sizes, hx, params, *rest)
            return _cudnn(mode, x, hx, params, Settings(*rest[:5]), batch_sizes=sizes.tolist())

        return run

    return make


def _cudnn_takes(simulation: Simulation, x: torch.Tensor) -> bool:
    resident = simulation.memory.of(x)
    on_card = resident is not None and not resident.device.is_cpu
    return on_card and bool(torch._C._get_cudnn_enabled()) and x.dtype in TYPES and x.numel() > 0


def _cudnn(
    mode: int, x: torch.Tensor, hx: Any, params: Sequence[torch.Tensor], settings: Settings, *,
    batch_first: bool = False, batch_sizes: Sequence[int] = (),
) -> Any:
    """[cudnn `_cudnn_impl`]"""
    hidden, cell = hx if mode == LSTM else (hx, None)
    hidden_size = (cell if cell is not None else hidden).size(2)
    projection = hidden.size(2) if hidden.size(2) != hidden_size else 0
    per_layer = (4 if settings.has_biases else 2) + (1 if projection else 0)
    out, hy, cy, *_ = torch.ops.aten._cudnn_rnn(
        x, list(params), per_layer, _buffer(params), hidden.contiguous(), None if cell is None else cell.contiguous(),
        mode, hidden_size, projection, settings.num_layers, batch_first, settings.dropout, settings.training,
        settings.bidirectional, list(batch_sizes), None,
    )
    return (out, hy, cy) if mode == LSTM else (out, hy)


def _buffer(params: Sequence[torch.Tensor]) -> torch.Tensor | None:
    """The memory of all weights, where they lie in one piece: `flatten_parameters` puts them there."""
    storage = params[0].untyped_storage()
    if any(part.untyped_storage()._cdata != storage._cdata for part in params[1:]):
        return None
    count = storage.nbytes() // params[0].dtype.itemsize
    return params[0].detach().as_strided((count,), (1,), 0)


_MODES: Final = {"lstm": LSTM, "gru": GRU, "rnn_tanh": TANH, "rnn_relu": RELU}
COMPOSITES: Final[Mapping[str, Any]] = {
    **{f"{name}.input": padded(name, mode) for name, mode in _MODES.items()},
    **{f"{name}.data": packed(name, mode) for name, mode in _MODES.items()},
}
