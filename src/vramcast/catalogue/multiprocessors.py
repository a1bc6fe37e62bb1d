"""Streaming multiprocessors of a card: how kernels split their work over a chip, and so what memory they share it with.

Their number is a column of `gpus.csv`; threads of one follow from the compute capability.
[cuda] NVIDIA CUDA C++ Programming Guide, table "Technical Specifications per Compute Capability"
"""

from __future__ import annotations

from typing import Final

from vramcast.catalogue.gpus import multiprocessors

THREADS: Final = {
    "7.5": 1024, "8.6": 1536, "8.7": 1536, "8.9": 1536, "11.0": 1536, "12.0": 1536, "12.1": 1536,
}
"""Resident threads of a multiprocessor, where they are not 2,048 [cuda]."""
MOST_THREADS: Final = 2048


def threads(compute_capability: str | None) -> int:
    """Resident threads of one multiprocessor [cuda].

    >>> threads("8.9")
    1536
    """
    return THREADS.get(compute_capability or "", MOST_THREADS)


__all__ = ["multiprocessors", "threads"]
