"""What one call of an operator computes and moves on a card, from its arguments and results.

Every kernel reads its arguments and writes its results once; broadcast elements count once. Operations are those of
torch.utils.flop_counter: matrix products, convolutions, attention.
[overwrites] pytorch aten/src/ATen/native/native_functions.yaml: what these fill they do not read first
[lookups] pytorch aten/src/ATen/native/cuda/IndexKernel.cu, Embedding.cu: as many elements as there are indices for
[fused] pytorch torch/optim/adamw.py `_fused_adamw`: gradients are written only where a GradScaler's scale is given
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import cache, partial
from typing import Any, Final, NamedTuple

import torch
from torch.utils.flop_counter import flop_registry

from vramcast.timing.roofline import UNREAD, Operation
from vramcast.tracing.operators import COLLECTIVES, Operator, all_tensors
from vramcast.tracing.rules.layouts import allows_tf32

NO_KERNEL: Final = frozenset({
    "aten.empty", "aten.empty_like", "aten.empty_permuted", "aten.empty_strided", "aten.new_empty",
    "aten.new_empty_strided", "aten.resize_", "aten.resize_as_", "aten.set_", "aten.detach_",
    "aten.record_stream", "aten.requires_grad_", "aten.lift", "aten.lift_fresh", "aten.is_pinned",
    "aten._has_compatible_shallow_copy_type",
})
"""Operators that start nothing."""
OVERWRITES: Final = frozenset({
    "aten.copy_", "aten._foreach_copy_", "aten.fill_", "aten.zero_", "aten._foreach_zero_", "aten.uniform_",
    "aten.normal_", "aten.bernoulli_", "aten.exponential_", "aten.random_",
})
"""Operators that do not read what they write [overwrites]."""
LOOKUPS: Final = frozenset({
    "aten.embedding", "aten.index", "aten.index_select", "aten.gather", "aten.take", "aten._embedding_bag",
    "aten.index_put", "aten.index_put_", "aten._index_put_impl_", "aten.index_add_", "aten.index_copy_",
    "aten.scatter_", "aten.scatter_add_", "aten.scatter_reduce_",
})
"""Operators that touch of their first argument as much as their indices ask for [lookups]."""
DTYPES: Final = {
    torch.bfloat16: "bf16", torch.float16: "fp16", torch.float64: "fp64", torch.float8_e4m3fn: "fp8",
    torch.float8_e5m2: "fp8", torch.float8_e4m3fnuz: "fp8", torch.float8_e5m2fnuz: "fp8",
}
"""Of a product's operands -> key of `timing.roofline.PRECISIONS`; others are computed as fp32 or tf32."""
COMPUTES: Final = re.compile(r"mm$|rnn|lstm|gru|linalg|fft")
"""Of operators whose operations nobody counts: that they move memory is the least of it."""
CAUSAL: Final = frozenset({"is_causal", "custom_mask_type"})
KERNELS: Final = ("flash", "efficient", "cudnn")


class _Traits(NamedTuple):
    """What decides how the cost of an operator is counted."""

    starts: bool  # a kernel
    flops: Callable[..., int] | None  # of its call; None where it only moves memory
    kind: str  # of one that only moves memory, as far as is known
    written: tuple[tuple[int, str], ...]  # arguments, by position and name
    makes_new: bool  # it returns something that is none of its arguments
    looks_up: bool
    overwrites: bool
    only_reads: int  # position of an argument that its schema says is written and that is not; -1: none
    causal_at: int  # position of the argument that says so; -1: none


@cache
def _traits(operator: Operator) -> _Traits:
    name, schema = operator.name, operator.func._schema
    places = [argument.name for argument in schema.arguments]
    packet = operator.func.overloadpacket
    return _Traits(
        starts=not (name in NO_KERNEL or name.startswith(COLLECTIVES)),
        kind="pointwise" if name.startswith("aten.") and not COMPUTES.search(name) else UNREAD,
        flops=COUNTED.get(name) or flop_registry.get(packet),
        written=operator.mutates, makes_new=any(returned.alias_info is None for returned in schema.returns),
        looks_up=name in LOOKUPS, overwrites=name in OVERWRITES,
        only_reads=1 if name.startswith("aten._fused_") else -1,
        causal_at=next((at for at, place in enumerate(places) if place in CAUSAL), -1) if "attention" in name else -1,
    )


def _product(*args: Any, out_val: torch.Tensor, **_kwargs: Any) -> int:
    """As torch.utils.flop_counter has it, without its unpacking of shapes."""
    left: torch.Tensor = args[-2]
    return 2 * out_val.numel() * left.size(-1)


def _direct(query_at: int, offsets_at: int, *args: Any, out_val: Any, **_kwargs: Any) -> int:
    """Every row of queries against the longest sequence of keys: torch.utils.flop_counter takes heads for tokens, and
    reads offsets, whose values nobody computed. Backward recomputes the scores."""
    query, key, value = args[query_at : query_at + 3]
    keys = key.size(-3) if args[offsets_at] is None else args[offsets_at + 3]
    width, value_width = query.size(-1), value.size(-1)
    each = 3 * width + 2 * value_width if query_at else width + value_width
    return 2 * query.numel() // width * int(keys) * each


COUNTED: Final[dict[str, Callable[..., int]]] = {
    **dict.fromkeys(("aten.mm", "aten.addmm", "aten.bmm", "aten.baddbmm"), _product),
    "aten._flash_attention_forward": partial(_direct, 0, 3), "aten._flash_attention_backward": partial(_direct, 1, 6),
    "aten._efficient_attention_forward": partial(_direct, 0, 4),
    "aten._efficient_attention_backward": partial(_direct, 1, 6),
}
"""Operators that torch.utils.flop_counter counts slowly or otherwise than they compute -> their operations."""


def operation_of(
    operator: Operator, args: Sequence[Any], kwargs: dict[str, Any], out: Any, phase: str, module: str
) -> Operation | None:
    """What a call costs; None where it starts no kernel."""
    traits = _traits(operator)
    if not traits.starts:
        return None
    moved = _moved(traits, args, kwargs, out)
    if traits.flops is None:
        return Operation(traits.kind, phase, module, "fp32", 0.0, moved)
    flops, name = float(traits.flops(*args, **kwargs, out_val=out)), operator.name
    operands = next(all_tensors(args)).dtype
    if "attention" not in name:
        return Operation("product", phase, module, DTYPES.get(operands) or _single(name), flops, moved)
    place = traits.causal_at
    is_causal = args[place] if 0 <= place < len(args) else any(kwargs.get(name) for name in CAUSAL)
    kernel = next((kernel for kernel in KERNELS if kernel in name), KERNELS[0])
    return Operation(
        "attention", phase, module, DTYPES.get(operands, "fp32"), flops / (2 if is_causal else 1), moved, kernel
    )


def _single(name: str) -> str:
    """What products of 32-bit numbers are computed in, as the run has set it."""
    return "tf32" if allows_tf32("conv" if "convolution" in name else "matmul") else "fp32"


def _moved(traits: _Traits, args: Sequence[Any], kwargs: dict[str, Any], out: Any) -> int:
    written = 0
    for index, name in traits.written:
        if index != traits.only_reads:
            written += num_bytes(args[index] if index < len(args) else kwargs.get(name))
    if traits.looks_up:
        asked = num_bytes(args[1:])
        return 2 * asked if written else asked + 2 * num_bytes(out)
    if traits.makes_new:
        written += num_bytes(out)
    read = num_bytes(args[len(traits.written) :] if traits.overwrites else args)
    for value in kwargs.values():
        read += num_bytes(value)
    return read + written


def num_bytes(value: Any) -> int:
    """Bytes of a tensor or of those in a list, 0 of all else; elements that stand for several count once."""
    if isinstance(value, torch.Tensor):
        if value.layout is not torch.strided:
            return 0
        size: int = value.nbytes
        return size if value.is_contiguous() else min(size, value.untyped_storage().nbytes())
    if isinstance(value, (list, tuple)):
        return sum(map(num_bytes, value))
    return 0
