"""Temporary storage of CUB's device-wide algorithms.

The sizes are what CUB itself answers when it is asked (CUB 3.0 of CUDA 13.0); tiles are those of its tuning policies.
[scan] cub/agent/single_pass_scan_operators.cuh `ScanTileState::AllocationSize`: a word a tile, and 32 more
[sort] cub/device/dispatch/dispatch_radix_sort.cuh `InvokeOnesweep`
[alias] cub/detail/temporary_storage.cuh: parts are aligned to 256 bytes, as is the whole
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from vramcast.units import ceil_div, round_up

ALIGNMENT: Final = 256
PADDING_TILES: Final = 32
DIGIT_BITS: Final = 8
DIGITS: Final = 1 << DIGIT_BITS
COUNTER_BYTES: Final = 4
SINGLE_TILE: Final = {4: 256 * 19, 8: 256 * 9}
"""Elements up to which one block sorts, by the wider of key and value."""
Tiles = Mapping[int, int]  # oldest compute capability x 10 -> elements of a tile

SCAN: Final[Mapping[str, Tiles]] = {
    "float32": {0: 1920, 80: 2304, 86: 1920, 90: 3072, 100: 8448},
    "float64": {0: 896, 80: 2304, 86: 896, 90: 2688, 100: 4576},
    "int16": {0: 1920, 80: 3840, 86: 1920, 90: 3072, 100: 6656},
    "int32": {0: 1920, 80: 3840, 86: 1920, 90: 3072, 100: 8448},
    "int64": {0: 896, 80: 3168, 86: 896, 90: 2688, 100: 4576},
    "uint8": {0: 3840, 80: 8960, 86: 3840, 90: 8448, 100: 18432},
}
UNIQUE_BY_KEY: Final[Tiles] = {0: 320, 80: 1344, 86: 320, 90: 4928}
SORT: Final[Mapping[tuple[int, int], Tiles]] = {  # bytes of key and value
    (2, 8): {0: 4224},
    (4, 0): {0: 5888, 80: 8064, 90: 7296},
    (4, 4): {0: 11776, 80: 8064, 90: 8832},
    (4, 8): {0: 2816, 80: 3840, 90: 5760},
    (8, 0): {0: 2816, 80: 3840, 90: 5760},
    (8, 8): {0: 2816, 80: 3840, 90: 4608},
}
OTHER_SORT: Final[Tiles] = {0: 3840}


def _tile(tiles: Tiles, sm: int) -> int:
    return tiles[max(oldest for oldest in tiles if oldest <= sm)]


def _aligned(*parts: int) -> int:
    return sum(round_up(part, ALIGNMENT) for part in parts) + ALIGNMENT - 1


def _tile_states(elements: int, tile: int, word: int) -> int:
    return _aligned((ceil_div(elements, tile) + PADDING_TILES) * word, 1)


def scan_bytes(elements: int, itemsize: int, sm: int, kind: str = "int64") -> int:
    """A prefix sum; `kind`: numpy name of the type of the sums [bytes].

    >>> scan_bytes(1_000_000, 8, 80)
    6143
    """
    tiles = SCAN.get(kind, SCAN["int64" if itemsize == 8 else "int32"])
    return _tile_states(elements, _tile(tiles, sm), 16 if itemsize == 8 else 4 if itemsize == 1 else 8)


def unique_by_key_bytes(elements: int, sm: int) -> int:
    """The first of equal int64 keys [bytes].

    >>> unique_by_key_bytes(1_000_000, 80)
    13055
    """
    return _tile_states(elements, _tile(UNIQUE_BY_KEY, sm), 16)


def radix_sort_bytes(elements: int, *, key: int, value: int, bits: int, sm: int) -> int:
    """Radix sort into other arrays: histograms, and second copies of keys and values between passes [bytes].

    Bits of the keys that are compared; a value of no size for keys alone. Leaves out the histograms of keys below 4
    bytes on cards before Hopper, which take another algorithm.

    >>> radix_sort_bytes(1_000_000, key=8, value=8, bits=17, sm=80)
    16270847
    """
    if elements <= SINGLE_TILE[8 if max(key, value) == 8 else 4]:
        return 1
    passes = ceil_div(bits, DIGIT_BITS)
    blocks = ceil_div(elements, _tile(SORT.get((key, value), OTHER_SORT), sm))
    parts = [passes * DIGITS * COUNTER_BYTES, blocks * DIGITS * COUNTER_BYTES]
    if passes > 1:
        parts += [elements * key, elements * value]
    return _aligned(*parts, passes * COUNTER_BYTES)


def segmented_sort_bytes(elements: int, *, key: int, value: int) -> int:
    """Radix sort of many rows: second copies of keys and values [bytes].

    >>> segmented_sort_bytes(1_000_000, key=4, value=8)
    12000255
    """
    return _aligned(elements * key, elements * value)
