"""A script that stays on the CPU, run as its author would take it to the card: networks go there, and what meets them.

A network and its buffers go when it is first called; a tensor goes where it first meets one of the card, and stays, as
behind `x = x.to("cuda")`. What can only be copied (a part of another tensor, a result that has a gradient) is copied
each time. Numbers stay, and so do the lengths of packed sequences, which PyTorch wants on the CPU.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import chain
from typing import Any, Final

import torch
from torch.overrides import TorchFunctionMode

from vramcast.domain.trace_job import PLACED
from vramcast.tracing.simulation import Simulation

CARD: Final = "cuda"
MOVES: Final = frozenset(("to", "cpu", "cuda", "copy_", "type", "set_", "__get__", "__set__", "__delete__"))
"""Functions that tensors of two places may meet in, or that say where they go."""
PACKED: Final = re.compile(r"^(?:lstm|gru|rnn_tanh|rnn_relu|_pack_padded_sequence|_pad_packed_sequence)$")
"""Functions whose whole numbers are lengths [torch nn/utils/rnn.py `pack_padded_sequence`]."""


@contextmanager
def placed(simulation: Simulation) -> Iterator[None]:
    """Within: networks that are called are moved to the card, and so is what meets them."""
    simulation.assumptions.note(PLACED)
    mode = _OnCard(simulation)
    handle = torch.nn.modules.module.register_module_forward_pre_hook(mode.move_network)
    read = {name: getattr(torch.Tensor, name) for name in ("numpy", "__array__")}
    for name, method in read.items():
        setattr(torch.Tensor, name, _of_host(method))
    try:
        with mode:
            yield
    finally:
        handle.remove()
        for name, method in read.items():
            setattr(torch.Tensor, name, method)


def _of_host(method: Any) -> Any:
    """Of a tensor of the card, what its author reads by way of `.cpu()`."""
    return lambda self, *args, **kwargs: method(self.cpu() if self.is_cuda else self, *args, **kwargs)


class _OnCard(TorchFunctionMode):
    """Moves what meets a tensor of the card."""

    def __init__(self, simulation: Simulation) -> None:
        super().__init__()
        self._memory = simulation.memory

    def move_network(self, module: torch.nn.Module, _inputs: Any) -> None:
        """A forward begins: a hook."""
        if any(not self._is_on_card(held) for held in chain(module.parameters(), module.buffers())):
            module.to(CARD)

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func.__name__ not in MOVES and any(map(self._is_on_card, _tensors((args, kwargs)))):
            keeps_lengths = PACKED.match(func.__name__) is not None
            args, kwargs = self._moved(args, keeps_lengths), self._moved(kwargs, keeps_lengths)
        return func(*args, **kwargs)

    def _is_on_card(self, tensor: torch.Tensor) -> bool:
        resident = self._memory.of(tensor)
        return resident is not None and resident.device is not self._memory.host

    def _moved(self, value: Any, keeps_lengths: bool) -> Any:
        if type(value) in (list, tuple):
            return type(value)(self._moved(part, keeps_lengths) for part in value)
        if type(value) is dict:
            return {name: self._moved(part, keeps_lengths) for name, part in value.items()}
        if not isinstance(value, torch.Tensor) or not value.dim() or self._is_on_card(value):
            return value
        is_length = keeps_lengths and not value.is_floating_point()
        return value if is_length else _on_card(value)


def _on_card(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor itself, moved, where nothing else hangs on where it was; otherwise a copy."""
    is_own = tensor._base is None and tensor.grad_fn is None and type(tensor) in (torch.Tensor, torch.nn.Parameter)
    if is_own and (isinstance(tensor, torch.nn.Parameter) or not tensor.requires_grad):
        tensor.data = tensor.data.to(CARD)
        return tensor
    return tensor.to(CARD)


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif type(value) in (list, tuple):
        for part in value:
            yield from _tensors(part)
    elif type(value) is dict:
        yield from _tensors([*value.values()])
