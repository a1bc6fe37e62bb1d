"""Tables of measured kernels, made compact: `python -m tools.kernels CHECKOUT`.

CHECKOUT is a work tree of ai-dynamo/aiconfigurator (Apache-2.0). Of rows at one point of the grid of
`vramcast.timing.kernels` (versions, kernels of one engine, heads that are other products of the same work) the fastest
counts: engines choose among kernels, and what a host's delay adds to a measurement is no kernel. Times that no data
sheet allows do not count, nor do files that have many of them, where there are others. Points that nobody
measured have the ratio of the nearest one that was; then no smaller kernel takes longer than a larger one. Needs
pyarrow and NumPy, which the package does not.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import zlib
from collections import defaultdict
from collections.abc import Callable, Iterator
from functools import cache
from itertools import product
from math import floor, log, log2
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy

from vramcast.catalogue.gpus import load_gpu
from vramcast.domain.device import Gpu
from vramcast.timing import kernels
from vramcast.timing.kernels import FEWER, LAWS, LINKED, STEPS, UNIT, WEIGHTS, WHOLE, Point, law_s, limits_of

Row = dict[str, Any]

DATA: Final = Path("aic-core/src/aiconfigurator_core/systems/data")
OUT: Final = Path(kernels.__file__).parent / "measured"

SYSTEMS: Final = {
    "a100_sxm": "a100-sxm4-80gb", "h100_sxm": "h100-sxm-80gb", "h200_sxm": "h200-sxm-141gb", "b200_sxm": "b200-180gb",
    "b300_sxm": "b300-270gb", "gb200": "gb200-186gb", "gb300": "gb300-288gb",
}
"""Their folder -> our card."""

ENGINES: Final = {"trtllm": "tensorrt-llm", "vllm": "vllm", "sglang": "sglang"}

FORMATS: Final = {
    "bfloat16": "bf16", "fp8": "fp8", "fp8_static": "fp8", "fp8_block": "fp8-block", "nvfp4": "nvfp4",
    "w4a16_mxfp4": "mxfp4", "w4a8_mxfp4_mxfp8": "mxfp4", "int4_wo": "int4",
}
"""Their dtypes -> our format."""

CACHES: Final = {"bfloat16": ("16", 2.0), "fp8": ("8", 1.0)}

ROWS: Final = (1, 2, 4, 8, 16, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 2048, 4096, 8192, 16384, 32768)
FEATURES: Final = (
    128, 256, 512, 768, 1024, 1536, 2048, 2560, 3072, 4096, 5120, 6144, 7168, 8192, 10240, 12288, 16384, 51200,
)
TOKENS: Final = (1, 2, 4, 8, 16, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 2048, 4096, 8192, 16384)
LENGTHS: Final = (1, 16, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)
DOUBLED: Final = tuple(1 << power for power in range(30))
GROUPS: Final = DOUBLED[:5]
WIDTHS: Final = (64, 128, 192, 256)

GRIDS: Final[dict[str, tuple[tuple[int, ...], ...]]] = {
    "gemm": (ROWS, FEATURES, FEATURES),
    "experts": (TOKENS, DOUBLED[:5], DOUBLED[:6]),
    "context": (LENGTHS, DOUBLED[:16], GROUPS),
    "generation": (DOUBLED[1:18], DOUBLED[:13], GROUPS),
    "latent_context": ((*LENGTHS, 32768), DOUBLED[:16]),
    "latent_generation": (DOUBLED[1:18], DOUBLED[:11], DOUBLED[:8]),
    "absorbed": (TOKENS, DOUBLED[:8]),
    "collective": (DOUBLED[1:6], DOUBLED[8:]),
}

TOLERANCE: Final = 0.1
"""Octaves by which a size may lie beside its point of the grid."""

DISTRIBUTION: Final = "power_law_1.01"
"""How tokens choose experts: a few are chosen often."""

WRONG: Final = 0.8
MOST_WRONG: Final = 0.001
"""A file is left out whose share of rows below so much of the time that the data sheet allows is larger: its others are
as wrong (prompts of vLLM 0.19 on H200 and of SGLang 0.5.10 on B200, down to 1/250; large caches of TensorRT-LLM, 0.6).
What lies in the second cache is up to a quarter faster than memory; no layer of a network finds its weights there."""

LEFT_OUT: Final = {("gemm/int4", "Hopper")}
"""Table, architecture: TensorRT-LLM's kernels, at 8 rows slower than 16 bits; engines run Marlin, near the time of the
weights' bytes up to 16 (arXiv:2408.11743)."""

BESIDE: Final = ("framework", "version", "device", "backend", "implementation", "latency", "tp_size")
"""Columns that tell no kernel from another."""


class Measured(NamedTuple):
    """What a row is about."""

    table: str
    kind: str
    point: Point
    fixed: tuple[tuple[str, float], ...]  # what the law takes beside
    rate: str  # dtype of the products, or "link"


Reader = Callable[[Row], Measured | None]


def gemm(row: Row) -> Measured | None:
    if row["gemm_dtype"] not in FORMATS:
        return None
    stored = FORMATS[row["gemm_dtype"]]
    width, rate = WEIGHTS[stored]
    return Measured(f"gemm/{stored}", "gemm", (row["m"], row["n"], row["k"]), (("weight_bytes", width),), rate)


def moe(row: Row) -> Measured | None:
    if row["moe_dtype"] not in FORMATS or row["distribution"] != DISTRIBUTION:
        return None
    stored = FORMATS[row["moe_dtype"]]
    width, rate = WEIGHTS[stored]
    sizes = (("hidden", row["hidden_size"]), ("inter", row["inter_size"]), ("count", row["num_experts"]),
             ("top_k", row["topk"]))
    name = f"experts/{stored}/" + "x".join(str(size) for _, size in sizes)
    point = (row["num_tokens"], row["moe_tp_size"], row["moe_ep_size"])
    return Measured(name, "experts", point, (*sizes, ("weight_bytes", width)), rate)


def cutlass(row: Row) -> Measured | None:
    """Experts in NVFP4 by the library that TensorRT-LLM takes where nothing else is asked for: up to three times as
    long as by its own kernels, which `moe` finds the faster ones."""
    if (row["moe_dtype"], row["kernel_source"]) != ("nvfp4", "moe_torch_flow_cutlass"):
        return None
    found = moe(row)
    return found and found._replace(table=found.table.replace("nvfp4", "nvfp4-cutlass"))


def attention(row: Row, kind: str) -> Measured | None:
    # of caches in 8 bits that kernel counts which computes in 8 bits, too, where there is one
    if row["head_dim"] not in WIDTHS or (row["attn_dtype"] == "fp8") > (row["kv_cache_dtype"] == "fp8"):
        return None
    cache, width = CACHES[row["kv_cache_dtype"]]
    window, heads, kv_heads = row.get("window_size") or WHOLE, row["num_heads"], row["num_key_value_heads"]
    if heads % kv_heads:
        return None
    first = (row["isl"], row["batch_size"] * heads) if kind == "context" else (
        row["step"] + 1, row["batch_size"] * kv_heads)
    fixed = (("width", row["head_dim"]), ("window", window), ("kv_bytes", width))
    return Measured(f"{kind}/{cache}/{row['head_dim']}x{window}", kind, (*first, heads // kv_heads), fixed, "bf16")


RANK, ROPE, INNER = 512, 64, 128  # of DeepSeek-V3, whose kernels these are


def latent(row: Row, kind: str) -> Measured:
    cache, width = CACHES[row["kv_cache_dtype"]]
    heads, kv_bytes = row["num_heads"], ("kv_bytes", width)
    if kind == "latent_context":
        point: Point = (row["isl"], row["batch_size"] * heads)
        return Measured(f"{kind}/{cache}", kind, point, (("widths", 2 * INNER + ROPE), kv_bytes), "bf16")
    point = (row["step"] + 1, row["batch_size"], heads)
    return Measured(f"{kind}/{cache}", kind, point, (("rank", RANK), ("rope", ROPE), kv_bytes), "bf16")


def absorbed(row: Row) -> Measured | None:
    """One of the two products: half of what the law is about."""
    if row["bmm_dtype"] != "bfloat16":
        return None
    fixed = (("inner", INNER), ("rank", RANK), ("weight_bytes", 2.0))
    return Measured("absorbed/bf16", "absorbed", (row["num_tokens"], row["num_heads"]), fixed, "bf16")


def crossing(name: str, row: Row) -> Measured:
    """Their sizes are elements of two bytes."""
    point = (row["num_gpus"], 2 * row["message_size"])
    return Measured(name, "collective", point, (("passes", LINKED[name]),), "link")


def all_reduce(row: Row) -> Measured | None:
    return crossing("all-reduce", row)


COLLECTIVES: Final = {"all_gather": "all-gather", "alltoall": "all-to-all"}


def nccl(row: Row) -> Measured | None:
    name = COLLECTIVES.get(row["op_name"])
    return crossing(name, row) if name and row["nccl_dtype"] == "half" else None


FILES: Final[tuple[tuple[str, str, Reader], ...]] = (
    ("gemm", "gemm_perf", gemm),
    ("moe", "moe_perf", moe),
    ("moe", "moe_perf", cutlass),
    ("attention", "context_attention_perf", lambda row: attention(row, "context")),
    ("attention", "generation_attention_perf", lambda row: attention(row, "generation")),
    ("mla", "context_mla_perf", lambda row: latent(row, "latent_context")),
    ("mla", "generation_mla_perf", lambda row: latent(row, "latent_generation")),
    ("mla_bmm", "mla_bmm_perf", absorbed),
    ("comm", "custom_allreduce_perf", all_reduce),
)
"""Folder, file and reader of each operation."""

LIBRARIES: Final = ("gemm_perf", "mla_bmm_perf")
"""Kernels that engines share: of these the fastest engine's stand for all."""

TWO: Final = ("mla_bmm_perf",)
"""Operations of which a law counts two."""


def rows_of(path: Path) -> Iterator[Row]:
    """The fastest row of each shape of a file."""
    from pyarrow import parquet

    table = parquet.read_table(path)
    keys = [name for name in table.column_names if name not in BESIDE]
    yield from table.group_by(keys).aggregate([("latency", "min")]).to_pylist()


def snapped(axes: tuple[tuple[int, ...], ...], point: Point) -> tuple[int, ...] | None:
    """The place of a point on a grid; None for others."""
    found = tuple(map(_snapped, axes, point))
    return None if None in found else found  # type: ignore[return-value]  # mypy does not see the check


@cache
def _snapped(axis: tuple[int, ...], value: float) -> int | None:
    if value <= 0:
        return None
    nearest = min(range(len(axis)), key=lambda index: abs(log(axis[index] / value)))
    return None if abs(log2(axis[nearest] / value)) > TOLERANCE else nearest


def least_s(item: Measured, gpu: Gpu) -> float:
    """What the data sheet allows. Experts that are chosen often read fewer weights than the law says, switches sum."""
    fixed = dict(item.fixed)
    eight_bits = fixed.get("kv_bytes") == 1.0 or "/mxfp4/" in item.table  # such kernels may compute in 8 bits
    limits, amounts = limits_of(gpu, "fp8" if eight_bits else item.rate), LAWS[item.kind](*item.point, **fixed)
    moved = 0.0 if item.kind in ("experts", "collective") else amounts.num_bytes / limits.bytes_per_s
    return max(amounts.flops / limits.flops_per_s, moved, 1e-9)


class Collected:
    """The fastest times of a card, by table and place on its grid, and the versions they are from."""

    def __init__(self, gpu: Gpu) -> None:
        self.gpu = gpu
        self.times: dict[str, dict[tuple[int, ...], float]] = defaultdict(dict)
        self.about: dict[str, Measured] = {}
        self.versions: dict[str, set[str]] = defaultdict(set)

    def add(self, folder: Path, name: str, reader: Reader) -> None:
        """Every version of an operation under an engine."""
        files = {path: list(self.rows(path, reader, 1 + (name in TWO)))
                 for path in sorted(folder.glob(f"*/{name}.parquet"))}
        wrong = {path: sum(share < WRONG for _, _, share in rows) for path, rows in files.items()}
        kept = [path for path, rows in files.items() if wrong[path] <= MOST_WRONG * len(rows)] or list(files)
        for path in files.keys() - {*kept}:
            print(f"left out: {path}, {wrong[path]:,} of {len(files[path]):,} rows beat the data sheet")
        for path in kept:
            for item, seconds, share in files[path]:
                place = snapped(GRIDS[item.kind], item.point)
                if place is not None and share > 1 and seconds < self.times[item.table].get(place, float("inf")):
                    self.times[item.table][place] = seconds
                    self.about[item.table] = item
                    self.versions[name.removesuffix("_perf")].add(f"{folder.name} {path.parent.name}")

    def rows(self, path: Path, reader: Reader, times: int) -> Iterator[tuple[Measured, float, float]]:
        """What rows are about, their seconds, and those by what the data sheet allows."""
        for row in rows_of(path):
            item, seconds = reader(row), row["latency_min"] / 1e3 * times
            if item is not None and all(item.point) and (item.table, self.gpu.arch) not in LEFT_OUT:
                yield item, seconds, seconds / least_s(item, self.gpu)

    def packed(self, head: Row) -> bytes:
        """The file."""
        tables, codes = {}, bytearray()
        for name, times in sorted(self.times.items()):
            tables[name], part = table(self.about[name], times, self.gpu)
            codes += part
        sources = {name: ", ".join(sorted(found)) for name, found in sorted(self.versions.items())}
        text = json.dumps(head | {"sources": sources, "tables": tables}, separators=(",", ":"))
        return zlib.compress(text.encode() + b"\n" + codes, 9)


def table(about: Measured, times: dict[tuple[int, ...], float], gpu: Gpu) -> tuple[list[Any], bytes]:
    """The axes where anything was measured, and codes of all their points."""
    grid = GRIDS[about.kind]
    axes = [[grid[axis][at] for at in sorted({place[axis] for place in times})] for axis in range(len(grid))]
    limits, law = limits_of(gpu, about.rate), LAWS[about.kind]
    points = list(product(*axes))
    laws = [law_s(law(*point, **dict(about.fixed)), limits) for point in points]
    known = {tuple(grid[axis][at] for axis, at in enumerate(place)): value for place, value in times.items()}
    measured = {point: log2(known[point] / laws[index]) for index, point in enumerate(points) if point in known}
    places, values = numpy.log(list(measured)), list(measured.values())
    for point in points:
        if point not in measured:
            measured[point] = values[int(numpy.abs(places - numpy.log(point)).sum(axis=1).argmin())]
    codes = [round(UNIT + STEPS * measured[point]) for point in points]
    ordered(codes, laws, [len(axis) for axis in axes], FEWER[about.kind])
    return axes, bytes(min(255, max(1, code)) for code in codes)


def ordered(codes: list[int], laws: list[float], lengths: list[int], fewer: tuple[int, ...]) -> None:
    """Codes lowered so that nothing takes longer than its neighbour with more work.

    Args:
        fewer: axes along which a kernel has less work
    """
    changed = True
    while changed:
        changed = False
        stride = len(codes)
        for axis, length in enumerate(lengths):
            stride //= length
            for at in range(len(codes)) if axis in fewer else reversed(range(len(codes))):
                place = at // stride % length
                other = at - stride if axis in fewer else at + stride
                if (place == 0) if axis in fewer else (place == length - 1):
                    continue
                limit = codes[other] + STEPS * log2(laws[other] / laws[at])
                if codes[at] > limit + 1e-9:
                    codes[at], changed = floor(limit + 1e-9), True


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m tools.kernels", description=__doc__)
    parser.add_argument("checkout", type=Path)
    parser.add_argument("--commit", help="where the checkout is no repository")
    parser.add_argument("--date")
    parser.add_argument("--only", help="one card's folder")
    options = parser.parse_args()
    git = ["git", "-C", str(options.checkout), "log", "-1", "--format=%H %cs"]
    commit, date = (options.commit, options.date) if options.commit else subprocess.run(
        git, capture_output=True, check=True, text=True).stdout.split()
    OUT.mkdir(exist_ok=True)
    for system, card in SYSTEMS.items():
        if options.only not in (None, system):
            continue
        folder, whole = options.checkout / DATA / system, Collected(load_gpu(card))
        for theirs, engine in ENGINES.items():
            own = Collected(whole.gpu)
            for operation, name, reader in FILES:
                (whole if name in LIBRARIES else own).add(folder / operation / theirs, name, reader)
            written(f"{card}-{engine}", own.packed({"commit": commit, "date": date}))
        whole.add(folder / "comm" / "nccl", "nccl_perf", nccl)
        written(card, whole.packed({"commit": commit, "date": date}))
    return 0


def written(name: str, packed: bytes) -> None:
    (OUT / f"{name}.bin").write_bytes(packed)
    print(f"{name:<40}{len(packed):>9,} bytes", flush=True)


if __name__ == "__main__":
    sys.exit(main())
