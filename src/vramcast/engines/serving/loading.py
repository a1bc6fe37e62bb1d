"""What a load leaves taken from the driver: engines that look at the card instead of their own books count this.

[caching] pytorch c10/cuda/CUDACachingAllocator.cpp: up to 1 MiB in segments of 2 MiB, up to 10 MiB in segments of
20 MiB, the rest in whole 2 MiB; what a segment has left over serves later weights
"""

from __future__ import annotations

from functools import lru_cache

from vramcast.allocator import Allocator
from vramcast.domain.program import Alloc, Category, Loop, Program, Tensor


def reserved_bytes(program: Program) -> int:
    """Segments that a load program's tensors lie in, made layer after layer as engines make them [bytes].

    Args:
        program: allocations only, each with how many equal ones there are

    >>> mib = 2**20
    >>> weight = Tensor(name="w", num_bytes=12 * mib + mib // 2, category=Category.WEIGHTS)
    >>> reserved_bytes((Loop(40, (Alloc(weight),), label="layers"),)) // mib
    560
    """
    return _reserved_by(tuple((count, tensor.num_bytes) for tensor, count in tensors_of(program) if tensor.num_bytes))


@lru_cache(maxsize=1024)
def _reserved_by(equal: tuple[tuple[int, int], ...]) -> int:
    """The same of (number, size) pairs; questions about one model often differ in everything but its weights."""
    allocator = Allocator()
    for index in range(max((count for count, _ in equal), default=0)):
        for count, num_bytes in equal:
            if index < count:
                allocator.allocate(num_bytes)
    return allocator.reserved_bytes


def without_draft(program: Program) -> Program:
    """A load program without what belongs to a draft."""
    kept = []
    for node in program:
        (tensor, _), *_ = tensors_of((node,))
        if tensor.category is not Category.DRAFT:
            kept.append(node)
    return tuple(kept)


def tensors_of(program: Program) -> list[tuple[Tensor, int]]:
    """The tensors a load program allocates, with how many equal ones there are."""
    found: list[tuple[Tensor, int]] = []
    for node in program:
        if isinstance(node, Alloc):
            found.append((node.tensor, 1))
        elif isinstance(node, Loop):
            found += [(tensor, count * node.count) for tensor, count in tensors_of(node.body)]
    return found


__all__ = ["reserved_bytes", "tensors_of", "without_draft"]
