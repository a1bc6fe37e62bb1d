"""Streaming multiprocessors of a card: how kernels split their work over a chip, and so what memory they share it with.

Data in `multiprocessors.csv`. Threads of a multiprocessor follow from the compute capability.
[cuda] NVIDIA CUDA C++ Programming Guide, table "Technical Specifications per Compute Capability"
"""

from __future__ import annotations

import csv
from functools import cache
from pathlib import Path
from typing import Final

from vramcast.errors import SourceError

FILE: Final = Path(__file__).with_name("multiprocessors.csv")
COLUMNS: Final = ("name", "multiprocessors", "source", "checked", "confidence")
THREADS: Final = {"7.5": 1024, "8.6": 1536, "8.7": 1536, "8.9": 1536, "12.0": 1536, "12.1": 1536}
"""Resident threads of a multiprocessor, where they are not 2,048 [cuda]."""
MOST_THREADS: Final = 2048


def multiprocessors(name: str) -> int | None:
    """Of the card of that name in gpus.csv; None where no row says.

    >>> multiprocessors("a100-sxm4-80gb")
    108
    """
    return _rows().get(name)


def threads(compute_capability: str | None) -> int:
    """Resident threads of one multiprocessor [cuda].

    >>> threads("8.9")
    1536
    """
    return THREADS.get(compute_capability or "", MOST_THREADS)


@cache
def _rows() -> dict[str, int]:
    with FILE.open(newline="", encoding="utf-8") as file:
        reader = csv.DictReader(file)
        if tuple(reader.fieldnames or ()) != COLUMNS:
            raise SourceError(f"{FILE.name}: columns are {reader.fieldnames}; they must be {', '.join(COLUMNS)}")
        rows: dict[str, int] = {}
        for row in reader:
            where = f"{FILE.name}: row {row['name']}"
            if row["name"] in rows or not row["multiprocessors"].isdecimal() or not row["source"] or not row["checked"]:
                raise SourceError(f"{where}: a name once, a whole number, a source and a day are needed")
            rows[row["name"]] = int(row["multiprocessors"])
        return rows


__all__ = ["multiprocessors", "threads"]
