"""Tensor types of ggml, the rows of `ggml_types.csv`: elements and bytes of a block, bytes beside each row.

[ggml] ggml-org/llama.cpp gguf-py/gguf/constants.py GGMLQuantizationType and GGML_QUANT_SIZES at ef035f7; ids 31 to 33
and 36 to 38 are run-time repackings that early files carried.
[ik] ikawrakow/ik_llama.cpp gguf-py/gguf/constants.py and ggml/src/ggml.c `type_traits` (row_meta_size) at 8337e4c;
names that end in _r4, _r8 or _r16 interleave rows and take the same bytes.
"""

from __future__ import annotations

import csv
from pkgutil import get_data
from typing import Final, NamedTuple

from vramcast.errors import UnknownName


class GgmlType(NamedTuple):
    """How one type stores elements."""

    block: int  # elements of a block
    block_bytes: int
    row_bytes: int = 0  # beside the blocks of each row: a scale
    source: str = "ggml"  # whose: "ggml", "ik"


def _tensor_types() -> dict[int, tuple[str, GgmlType]]:
    _, *rows = csv.reader((get_data(__package__, "ggml_types.csv") or b"").decode().splitlines())
    return {
        int(number): (name, GgmlType(int(block), int(block_bytes), int(row_bytes), source))
        for number, name, block, block_bytes, row_bytes, source in rows
    }


TENSOR_TYPES: Final[dict[int, tuple[str, GgmlType]]] = _tensor_types()
"""Types of llama.cpp and of ik_llama.cpp by the id that files carry."""

TYPES: Final[dict[str, GgmlType]] = dict(TENSOR_TYPES.values())
"""Name -> type."""

QUANTISED: Final = frozenset(name for name, stored in TYPES.items() if stored.block > 1)
"""Types of blocks with a scale of their own."""


def type_of(name: str) -> GgmlType:
    """The type of a name.

    Raises: UnknownName with the nearest names
    """
    if name not in TYPES:
        raise UnknownName.of("ggml type", name, TYPES)
    return TYPES[name]


def row_bytes(name: str, elements: int) -> int:
    """A row of so many elements [bytes]; a row that does not fill its blocks is no row of ggml.

    >>> row_bytes("q4_k", 4096), row_bytes("iq4_ks", 4096)
    (2304, 2180)
    """
    stored = type_of(name)
    return stored.row_bytes + elements // stored.block * stored.block_bytes
