"""Types of GGUF metadata values.

Source: ggml-org/llama.cpp gguf-py/gguf/constants.py, GGUFValueType, at ef035f7.
"""

from __future__ import annotations

from typing import Final

from vramcast.states.ggml import IK, MAINLINE, GgmlType

TENSOR_TYPES: Final[dict[int, tuple[str, GgmlType]]] = MAINLINE | IK
"""Id of a tensor's type -> its name and how it stores elements."""

SCALARS: Final[dict[int, str]] = {
    0: "B",
    1: "b",
    2: "H",
    3: "h",
    4: "I",
    5: "i",
    6: "f",
    7: "?",
    10: "Q",
    11: "q",
    12: "d",
}
"""Id of a metadata value -> its struct format."""

STRING: Final = 8
ARRAY: Final = 9
