"""sort, topk, unique, running sums and maxima.

[sort] pytorch aten/src/ATen/native/cuda/Sort.cpp `sort_cuda_kernel`, SortStable.cu `launch_stable_sort_kernel`
[topk] pytorch aten/src/ATen/native/cuda/TensorTopK.cpp `topk_out_cuda`, TensorTopK.cu `mbtopk::launch`
[scan] pytorch aten/src/ATen/native/cuda/ScanUtils.cuh `scan_dim`: CUB where there is one row, own kernels for many
[unique] pytorch aten/src/ATen/native/cuda/UniqueCub.cu

Temporary storage of CUB's device-wide algorithms.

The sizes are what CUB itself answers when it is asked (CUB 3.0 of CUDA 13.0); tiles are those of its tuning policies.
[scan] cub/agent/single_pass_scan_operators.cuh `ScanTileState::AllocationSize`: a word a tile, and 32 more
[sort] cub/device/dispatch/dispatch_radix_sort.cuh `InvokeOnesweep`
[alias] cub/detail/temporary_storage.cuh: parts are aligned to 256 bytes, as is the whole
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import torch

from vramcast.tracing.call import Call, Rule
from vramcast.tracing.rules.layouts import INT32, INT64, chip, contiguous_copy, num_bytes, reads_contiguous
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


IN_PLACE: Final = 4096  # longest row that is sorted where it lies
LONG_ROW: Final = 1_000_000
FEW_ROWS: Final = 128
SORTED_TOPK: Final = (10, 100_000)
"""At most so many rows of at least so many elements: topk sorts them whole."""
RADIX_DIGITS: Final = 256
BLOCK_THREADS: Final = 256
BLOCKS_A_MULTIPROCESSOR: Final = 6  # 65,536 registers over 40 a thread
MOST_ITEMS: Final = 64  # a thread
LEAST_ITEMS: Final = 4


def sort(call: Call) -> Any:
    out = call.run()
    x = call.args[0]
    dim = call.named("dim", -1) % max(1, x.dim())
    if x.dim() and x.numel():
        _sort(call, x, dim)
    return out


def _sort(call: Call, x: torch.Tensor, dim: int) -> None:
    """[sort]"""
    length, count = x.size(dim), x.numel()
    if length <= IN_PLACE:
        numbers = call.scratch(length * INT64, "positions")
        call.release(numbers)
        return
    if x.stride(dim) != 1:
        call.scratch(num_bytes(x), "rows made dense")
        call.scratch(num_bytes(x), "sorted rows")
        call.scratch(count * INT64, "order of rows")
    rows, key, sm = count // length, x.dtype.itemsize, call.device.sm
    bits = 8 * key
    if rows == 1 or length >= LONG_ROW:
        call.scratch(length * INT64, "positions")
        call.scratch(radix_sort_bytes(length, key=key, value=INT64, bits=bits, sm=sm), "radix sort")
    elif rows < FEW_ROWS:
        call.scratch(count * INT64, "positions and rows")
        call.scratch(count * INT64, "sorted positions and rows")
        keys = call.scratch(count * key, "sorted keys")
        first = call.scratch(radix_sort_bytes(count, key=key, value=INT64, bits=bits, sm=sm), "radix sort")
        call.release(first)
        call.release(keys)
        row_bits = max(1, (rows - 1).bit_length())
        call.scratch(radix_sort_bytes(count, key=INT64, value=0, bits=row_bits, sm=sm), "radix sort")
    else:
        call.scratch(count * INT64, "positions")
        call.scratch(segmented_sort_bytes(count, key=key, value=INT64), "radix sort of rows")


def topk(call: Call) -> Any:
    out = call.run()
    x, k = call.arg(0, "self"), call.arg(1, "k")
    if not x.dim() or not x.numel() or not k:
        return out
    dim = call.arg(2, "dim", -1) % x.dim()
    length = x.size(dim)
    rows = x.numel() // length
    if rows <= SORTED_TOPK[0] and length >= SORTED_TOPK[1] and x.dtype is not torch.bool:
        call.scratch(num_bytes(x), "sorted rows")
        call.scratch(x.numel() * INT64, "order of rows")
        _sort(call, x, dim)
        return out
    contiguous_copy(call, x)
    if _by_blocks(rows, length):
        _radix_select(call, rows, length, x.dtype.itemsize)
    if call.arg(4, "sorted", True) and k > IN_PLACE:
        call.scratch(rows * k * INT64, "order of the largest")
        call.scratch(rows * k * x.dtype.itemsize, "sorted largest")
    return out


def _by_blocks(rows: int, length: int) -> bool:
    """Whether several blocks share a row [topk `should_use_multiblock`]."""
    if length >= 2**31 or rows >= 2**31:
        return False
    limits = ((20, 20_000), (40, 10_000), (80, 8_000), (199, 5_000), (799, 3_000), (4_000, 800))
    return next((length >= least for most, least in limits if rows <= most), length >= 400)


def _radix_select(call: Call, rows: int, length: int, itemsize: int) -> None:
    """[topk `mbtopk::launch`]"""
    waves = chip(call).multiprocessors * BLOCKS_A_MULTIPROCESSOR
    items = ceil_div(length * rows, waves * BLOCK_THREADS)
    items = max(LEAST_ITEMS, min(items, MOST_ITEMS))
    blocks = rows * ceil_div(length, items * BLOCK_THREADS)
    for num, name in (
        (rows * itemsize, "k-th values"), (rows * INT32, "semaphores"), (rows * INT32, "ranks looked for"),
        (rows * max(INT32, itemsize), "digits found"), (blocks * RADIX_DIGITS * 2, "counts of digits"),
        (blocks * INT32, "counts above"), (blocks * INT32, "counts of ties"),
    ):
        call.scratch(num, name)


def running(call: Call) -> Any:
    """cumsum, cumprod: a cast of the input, and CUB's scratch for a single row."""
    out = call.run()
    x = call.args[0]
    if not x.numel() or not x.dim():
        return out
    if x.dtype is not out.dtype:
        call.scratch(x.numel() * out.dtype.itemsize, "input cast")
    else:
        contiguous_copy(call, x)
    if x.numel() == x.size(call.arg(1, "dim")):
        kind = str(out.dtype).removeprefix("torch.")
        call.scratch(scan_bytes(x.numel(), out.dtype.itemsize, call.device.sm, kind), "prefix sum")
    return out


def extremes(call: Call) -> Any:
    """cummax, cummin: values and indices."""
    x = call.arg(0, "self")
    values = call.empty(x.size(), dtype=x.dtype)
    return values, call.empty(x.size(), dtype=torch.int64)


def median(call: Call) -> Any:
    """The median of all: everything is sorted [Sorting.cpp `median_impl`]."""
    x = call.arg(0, "self")
    out = call.run()
    if x.numel():
        flat = torch.empty((x.numel(),), dtype=x.dtype, device="meta")
        call.scratch(num_bytes(x), "sorted")
        call.scratch(x.numel() * INT64, "order")
        _sort(call, flat, 0)
    return out


SELECTION: Final = reads_contiguous(0)  # median, kthvalue, mode along a dimension [Sorting.cpp]
RULES: Final[Mapping[str, Rule]] = {
    "aten.cummax": extremes,
    "aten.cummin": extremes,
    "aten.cumprod": running,
    "aten.cumsum": running,
    "aten.kthvalue": SELECTION,
    "aten.median.default": median,
    "aten.median.dim": SELECTION,
    "aten.mode": SELECTION,
    "aten.nanmedian.default": median,
    "aten.nanmedian.dim": SELECTION,
    "aten.sort": sort,
    "aten.topk": topk,
}
PLAIN: Final = frozenset({"aten.searchsorted", "aten.bucketize", "aten.logcumsumexp", "aten._logcumsumexp"})
