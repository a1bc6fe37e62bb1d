"""What the simulation has to know of an operator before it runs it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import torch

from vramcast.tracing.call import Rule
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
