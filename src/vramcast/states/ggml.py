"""Tensor types of ggml: elements and bytes of a block, bytes beside each row.

[ggml] ggml-org/llama.cpp gguf-py/gguf/constants.py GGMLQuantizationType and GGML_QUANT_SIZES at ef035f7; ids 31 to 33
and 36 to 38 are run-time repackings that early files carried.
[ik] ikawrakow/ik_llama.cpp gguf-py/gguf/constants.py and ggml/src/ggml.c `type_traits` (row_meta_size) at 8337e4c;
names that end in _r4, _r8 or _r16 interleave rows and take the same bytes.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from vramcast.errors import UnknownName


class GgmlType(NamedTuple):
    """How one type stores elements."""

    block: int  # elements of a block
    block_bytes: int
    row_bytes: int = 0  # beside the blocks of each row: a scale


MAINLINE: Final[dict[int, tuple[str, GgmlType]]] = {
    0: ("f32", GgmlType(1, 4)),
    1: ("f16", GgmlType(1, 2)),
    2: ("q4_0", GgmlType(32, 18)),
    3: ("q4_1", GgmlType(32, 20)),
    6: ("q5_0", GgmlType(32, 22)),
    7: ("q5_1", GgmlType(32, 24)),
    8: ("q8_0", GgmlType(32, 34)),
    9: ("q8_1", GgmlType(32, 36)),
    10: ("q2_k", GgmlType(256, 84)),
    11: ("q3_k", GgmlType(256, 110)),
    12: ("q4_k", GgmlType(256, 144)),
    13: ("q5_k", GgmlType(256, 176)),
    14: ("q6_k", GgmlType(256, 210)),
    15: ("q8_k", GgmlType(256, 292)),
    16: ("iq2_xxs", GgmlType(256, 66)),
    17: ("iq2_xs", GgmlType(256, 74)),
    18: ("iq3_xxs", GgmlType(256, 98)),
    19: ("iq1_s", GgmlType(256, 50)),
    20: ("iq4_nl", GgmlType(32, 18)),
    21: ("iq3_s", GgmlType(256, 110)),
    22: ("iq2_s", GgmlType(256, 82)),
    23: ("iq4_xs", GgmlType(256, 136)),
    24: ("i8", GgmlType(1, 1)),
    25: ("i16", GgmlType(1, 2)),
    26: ("i32", GgmlType(1, 4)),
    27: ("i64", GgmlType(1, 8)),
    28: ("f64", GgmlType(1, 8)),
    29: ("iq1_m", GgmlType(256, 56)),
    30: ("bf16", GgmlType(1, 2)),
    31: ("q4_0_4_4", GgmlType(32, 18)),
    32: ("q4_0_4_8", GgmlType(32, 18)),
    33: ("q4_0_8_8", GgmlType(32, 18)),
    34: ("tq1_0", GgmlType(256, 54)),
    35: ("tq2_0", GgmlType(256, 66)),
    36: ("iq4_nl_4_4", GgmlType(32, 18)),
    37: ("iq4_nl_4_8", GgmlType(32, 18)),
    38: ("iq4_nl_8_8", GgmlType(32, 18)),
    39: ("mxfp4", GgmlType(32, 17)),
    40: ("nvfp4", GgmlType(64, 36)),
    41: ("q1_0", GgmlType(128, 18)),
    42: ("q2_0", GgmlType(64, 18)),
}
"""Types of llama.cpp by the id that files carry [ggml]."""

IK: Final[dict[int, tuple[str, GgmlType]]] = {
    133: ("q6_0", GgmlType(32, 26)),
    134: ("iq1_bn", GgmlType(64, 13, 2)),
    135: ("iq2_bn", GgmlType(64, 16, 4)),
    137: ("iq2_k", GgmlType(256, 76)),
    138: ("iq3_k", GgmlType(256, 110)),
    139: ("iq4_k", GgmlType(256, 144)),
    140: ("iq5_k", GgmlType(256, 176)),
    141: ("iq6_k", GgmlType(256, 212)),
    144: ("iq4_ks", GgmlType(256, 136, 4)),
    145: ("iq2_ks", GgmlType(256, 70, 2)),
    146: ("iq4_kss", GgmlType(256, 128, 4)),
    151: ("q8_kv", GgmlType(32, 32, 8)),
    152: ("iq5_ks", GgmlType(256, 168, 4)),
    153: ("iq2_kt", GgmlType(256, 68, 4)),
    154: ("iq3_kt", GgmlType(256, 100, 4)),
    155: ("iq4_kt", GgmlType(256, 128, 4)),
    156: ("iq3_ks", GgmlType(256, 102, 2)),
    157: ("iq2_kl", GgmlType(256, 86, 2)),
    158: ("iq1_kt", GgmlType(256, 56, 4)),
    202: ("q4_0_r8", GgmlType(32, 18)),
    206: ("q5_0_r4", GgmlType(32, 22)),
    208: ("q8_0_r8", GgmlType(32, 34)),
    210: ("q2_k_r4", GgmlType(256, 84)),
    211: ("q3_k_r4", GgmlType(256, 110)),
    212: ("q4_k_r4", GgmlType(256, 144)),
    213: ("q5_k_r4", GgmlType(256, 176)),
    214: ("q6_k_r4", GgmlType(256, 210)),
    216: ("iq2_xxs_r4", GgmlType(256, 66)),
    217: ("iq2_xs_r4", GgmlType(256, 74)),
    218: ("iq3_xxs_r4", GgmlType(256, 98)),
    219: ("iq1_s_r4", GgmlType(32, 6, 2)),
    220: ("iq4_nl_r4", GgmlType(32, 18)),
    221: ("iq3_s_r4", GgmlType(256, 110)),
    222: ("iq2_s_r4", GgmlType(256, 82)),
    223: ("iq4_xs_r8", GgmlType(256, 136)),
    229: ("iq1_m_r4", GgmlType(32, 7, 2)),
    230: ("bf16_r16", GgmlType(1, 2)),
    233: ("q6_0_r4", GgmlType(32, 26)),
    335: ("iq2_bn_r4", GgmlType(64, 16, 4)),
    337: ("iq2_k_r4", GgmlType(256, 76)),
    338: ("iq3_k_r4", GgmlType(256, 110)),
    339: ("iq4_k_r4", GgmlType(256, 144)),
    340: ("iq5_k_r4", GgmlType(256, 176)),
    344: ("iq4_ks_r4", GgmlType(256, 136, 4)),
    352: ("iq5_ks_r4", GgmlType(256, 168, 4)),
    398: ("q8_kv_r8", GgmlType(32, 32, 4)),
    399: ("q8_k_r8", GgmlType(256, 258)),
}
"""What ik_llama.cpp adds [ik]."""

TYPES: Final[dict[str, GgmlType]] = dict([*MAINLINE.values(), *IK.values()])
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
