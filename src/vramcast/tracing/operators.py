"""What the simulation has to know of an operator before it runs it, and on which device its results live."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

import torch

from vramcast.tracing.call import Rule
from vramcast.tracing.memory import META, Device, Memory, storage_of
from vramcast.tracing.unknowns import INDICES, READS

FILLS: Final = frozenset({
    "zeros", "ones", "full", "arange", "scalar_tensor", "eye", "linspace", "zeros_like", "ones_like", "full_like",
    "new_zeros", "new_ones", "new_full", "tril_indices", "triu_indices", "zero_", "fill_",
})
"""Operators whose result is known whatever their tensors hold."""

RESIZING: Final = frozenset({"aten.resize_", "aten.resize_as_"})

COLLECTIVES: Final = ("c10d.", "_c10d_functional.")
"""Operators that depend on what other processes hold: their rules say what is known of it."""


class Operator:
    """One overload."""

    __slots__ = (
        "asks",
        "depends_on_values",
        "func",
        "is_fill",
        "is_known",
        "is_random",
        "is_view",
        "makes",
        "mutates",
        "name",
        "own_name",
        "resizes",
        "rule",
        "supposes",
        "takes_apart",
    )

    def __init__(self, func: Any, rules: Mapping[str, Rule], plain: frozenset[str]) -> None:
        packet = func.overloadpacket._qualified_op_name.replace("::", ".")
        self.func = func
        self.name: str = packet
        self.own_name = func.name().partition("::")[2]  # "softmax.int"
        self.rule = rules.get(f"{packet}.{func._overloadname}") or rules.get(packet)
        schema = func._schema
        self.mutates = tuple(
            (index, argument.name) for index, argument in enumerate(schema.arguments)
            if argument.alias_info is not None and argument.alias_info.is_write
        )
        # Positions and names of what it may make larger: `resize_`, and `out=` of the wrong size.
        self.resizes = self.mutates if packet in RESIZING else tuple(
            (index, argument.name) for index, argument in enumerate(schema.arguments)
            if argument.kwarg_only and argument.alias_info is not None and argument.alias_info.is_write
        )
        self.is_view = self.rule is None and not self.mutates and any(
            returned.alias_info is not None for returned in schema.returns
        )
        self.makes = any(argument.name == "device" for argument in schema.arguments)  # may name a device
        # How large its result is, unless a rule knows better.
        self.depends_on_values = torch.Tag.dynamic_output_shape in func.tags and self.rule is None
        self.asks = self.depends_on_values or packet in READS  # for values
        self.supposes = packet in INDICES  # indices that stand for those nobody computed
        self.is_random = torch.Tag.nondeterministic_seeded in func.tags or packet.startswith(COLLECTIVES)
        self.is_fill = packet.partition(".")[2] in FILLS
        is_plain = packet in plain or f"{packet}.{func._overloadname}" in plain
        self.is_known = self.rule is not None or self.is_view or is_plain
        # Reached only where autograd is left out (inference mode): elsewhere it was taken apart above.
        self.takes_apart = self.rule is None and torch._C._dispatch_has_kernel_for_dispatch_key(
            func.name(), "CompositeImplicitAutograd"
        )


LARGEST_EMPTY_HOST_BYTES: Final = 1 << 20
"""Uninitialised or random host tensors below are real; in larger ones there is nothing to know."""
LARGEST_FILLED_HOST_BYTES: Final = 64 << 20  # filled host tensors below are real
MIXED: Final = frozenset({
    "aten.copy_", "aten._foreach_copy_", "aten.index", "aten.index_put", "aten.index_put_", "aten._index_put_impl_",
    "aten._to_copy", "aten.set_",
})
"""Operators that take tensors of several devices."""


class Placement:
    """Finds the device of a call."""

    def __init__(self, memory: Memory) -> None:
        self._memory = memory
        self._wants_meta = False

    @contextmanager
    def meta_wanted(self) -> Iterator[None]:
        """Within: the caller itself asks for tensors without data."""
        before, self._wants_meta = self._wants_meta, True
        try:
            yield
        finally:
            self._wants_meta = before

    def of(self, operator: Operator, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Device | None:
        """The device of the call's results; None: none that is simulated.

        Raises: RuntimeError, as torch does, where tensors of two devices meet.
        """
        named = kwargs.get("device") if operator.makes else None
        if named is None:
            found = self._of_tensors(operator, args, kwargs)
            if found is None and operator.makes and "device" not in kwargs:
                return self._of_host_factory(operator, args, kwargs)
            return found
        if named.type == "cuda":
            return self._card(named.index)
        if named.type == "meta":
            return self._of_meta(operator, args, kwargs)
        if any(self._memory.of(tensor) is not None for tensor in tensors(args)):
            return self._memory.host
        return self._of_host_factory(operator, args, kwargs)

    def _card(self, index: int | None) -> Device:
        devices = self._memory.devices
        index = self._memory.current if index is None else index
        if index >= len(devices):
            raise RuntimeError(f"CUDA error: invalid device ordinal: cuda:{index} of {len(devices)} simulated")
        return devices[index]

    def _of_meta(self, operator: Operator, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Device | None:
        """Meta is what C++ calls the device of a simulated tensor when it makes another one like it."""
        if self._wants_meta:
            return None
        return self._of_tensors(operator, args, kwargs) or self._card(None)

    def _of_tensors(self, operator: Operator, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Device | None:
        residents = self._memory.residents
        found, is_scalar, stranger = None, True, False
        for tensor in tensors((*args, *kwargs.values()) if kwargs else args):
            resident = residents.get(storage_of(tensor)._cdata)
            if resident is None:
                stranger = stranger or (tensor.is_meta and bool(tensor.dim()))
                continue
            device, dimensions = resident.device, tensor.dim()
            if device is not found:
                if found is None or (is_scalar and dimensions):
                    found = device
                elif dimensions and operator.name not in MIXED:
                    raise mismatch(found.torch_device, device.torch_device)
            is_scalar = is_scalar and not dimensions
        if stranger and found is not None and found is not self._memory.host and operator.name not in MIXED:
            # The user's own, or left from an earlier simulation, whose memory nobody would count.
            raise mismatch(found.torch_device, META)
        return found

    def _of_host_factory(self, operator: Operator, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Device | None:
        """The host, where a tensor made there should have no data."""
        if not args or not isinstance(args[0], (list, tuple)):
            return None
        count = 1
        for size in args[0]:
            count *= size if isinstance(size, int) else 1
        num_bytes = count * (kwargs.get("dtype") or torch.get_default_dtype()).itemsize
        limit = LARGEST_FILLED_HOST_BYTES if operator.is_fill else LARGEST_EMPTY_HOST_BYTES
        return self._memory.host if num_bytes >= limit else None


def mismatch(one: torch.device, other: torch.device) -> RuntimeError:
    """What torch raises where tensors of two devices meet."""
    return RuntimeError(
        f"Expected all tensors to be on the same device, but found at least two devices, {one} and {other}!"
    )


def tensors(values: Iterable[Any]) -> Iterator[torch.Tensor]:
    """The tensors among arguments, in order, also those in lists."""
    for value in values:
        if isinstance(value, torch.Tensor):
            yield value
        elif isinstance(value, (list, tuple)) and value and isinstance(value[0], (torch.Tensor, type(None))):
            for part in value:
                if isinstance(part, torch.Tensor):
                    yield part


def all_tensors(values: Iterable[Any]) -> Iterator[torch.Tensor]:
    """As `tensors`, also those in lists of lists."""
    for value in values:
        if isinstance(value, torch.Tensor):
            yield value
        elif isinstance(value, (list, tuple)):
            yield from all_tensors(value)
