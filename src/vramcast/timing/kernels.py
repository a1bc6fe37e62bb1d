"""Measured kernels: seconds of a product, of attention, of experts or of a collective on a card under an engine.

`python -m tools.kernels CHECKOUT` makes the files of `measured/`, one for a card and engine, from tables that NVIDIA
measured [aic]. A table holds, on a grid of sizes, how many times its law a kernel takes; the law is the roofline with
the card's data sheet and `START_S`. Between points the logarithms of times are interpolated along those of sizes; from
the edge of a grid on times grow as the law does. On a relative of the card the ratios stay, its own limits go in.

[aic] ai-dynamo/aiconfigurator (Apache-2.0) aic-core/src/aiconfigurator_core/systems/data

Symbols of points:  m rows   n, k outputs and inputs of a product   s new tokens of a sequence   c cached tokens   b
sequences   A heads   g query heads for each key/value head
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from math import log, log2, prod
from pkgutil import get_data
from typing import Any, Final
from zlib import decompress

from msgspec import Struct
from msgspec.json import decode

from vramcast.domain.device import Gpu
from vramcast.errors import Note
from vramcast.timing.rates import OF_FASTEST
from vramcast.timing.work import Sizes

START_S: Final = 2e-6
"""What every law adds: no kernel of the tables takes less [s]."""

STEPS: Final = 24
"""Codes for a doubling of the ratio: neighbours are 2.9 % apart."""

UNIT: Final = 64
"""The code of a ratio of 1; 0 is none."""

WHOLE: Final = 1 << 24
"""A window that is none [tokens]."""

Point = tuple[float, ...]


class Limits(Struct, frozen=True):
    """What a law divides by."""

    flops_per_s: float
    bytes_per_s: float


class Amounts(Struct, frozen=True):
    """What a kernel does."""

    flops: float
    num_bytes: float


def law_s(amounts: Amounts, limits: Limits) -> float:
    """The roofline, and the start of the kernel [s]."""
    return START_S + max(amounts.flops / limits.flops_per_s, amounts.num_bytes / limits.bytes_per_s)


class Table(Struct, frozen=True):
    """Codes of ratios on a grid; the last axis runs fastest."""

    axes: tuple[tuple[float, ...], ...]
    offset: int

    @property
    def size(self) -> int:
        return prod(map(len, self.axes))


class Kernels(Struct, frozen=True):
    """The tables of one card under one engine."""

    system: str
    engine: str
    commit: str
    date: str
    sources: dict[str, str]  # operation -> engines and versions that were measured
    tables: dict[str, Table]
    codes: bytes

    def source(self, gpu: Gpu) -> str:
        """What times of a card rest on, for people."""
        whose = self.system if gpu.name == self.system else (
            Note("{}, a relative of {} whose own limits scale them: such times are less certain",
                 self.system, gpu.name))
        return Note(
            "kernels of {} measured on {} (ai-dynamo/aiconfigurator@{}, {}); {:.0%} of their rate where "
            "operations bound them ({})",
            self.engine, whose, self.commit[:9], self.date, OF_FASTEST.value, OF_FASTEST.source
        )

    def seconds(self, name: str, point: Point, law: Callable[[Point], float]) -> float | None:
        """What a kernel takes; None without a table.

        Args:
            name: key of `tables`
            point: its sizes, in the order of the table's axes
            law: seconds by the roofline at a point
        """
        table = self.tables.get(name)
        if table is None:
            return None
        corners: list[tuple[int, float, Point]] = [(table.offset, 1.0, ())]
        stride, nearest = table.size, []
        for axis, value in zip(table.axes, point, strict=True):
            stride //= len(axis)
            low, share = _place(axis, value)
            nearest.append(min(max(value, axis[0]), axis[-1]))
            corners = [
                (at + (low + step) * stride, weight * part, (*where, axis[low + step]))
                for at, weight, where in corners for step, part in ((0, 1 - share), (1, share)) if part
            ]
        octaves = sum(
            weight * ((self.codes[at] - UNIT) / STEPS + log2(law(where))) for at, weight, where in corners
        )
        beyond = 1.0 if tuple(nearest) == point else law(point) / law(tuple(nearest))
        return float(2**octaves) * beyond

    def nearest(self, prefix: str, sizes: Sequence[float]) -> str | None:
        """The table of a family whose sizes, which its name ends with, are nearest in their logarithms."""
        names = [name for name in self.tables if name.startswith(prefix)]
        if not names:
            return None
        return min(names, key=lambda name: sum(
            abs(log(float(own) / size)) for own, size in zip(name[len(prefix):].split("x"), sizes, strict=True)))


WEIGHTS: Final[dict[str, tuple[float, str]]] = {
    "bf16": (2.0, "bf16"), "fp16": (2.0, "bf16"), "fp8": (1.0, "fp8"), "fp8-channel": (1.0, "fp8"),
    "fp8-block": (1.0, "fp8"), "nvfp4": (0.5625, "fp4"), "nvfp4-cutlass": (0.5625, "fp4"), "mxfp4": (0.53125, "bf16"),
    "int4": (0.53125, "bf16"),
}
"""Format -> bytes of an element with its scales, and the dtype whose rate its law divides by."""

FAMILIES: Final[tuple[tuple[str, tuple[str, ...]], ...]] = (
    ("fp8-block", ("fp8-block", "fp8")), ("fp8", ("fp8", "fp8-block")),
    ("nvfp4-cutlass", ("nvfp4-cutlass", "nvfp4")), ("nvfp4", ("nvfp4",)), ("mxfp4", ("mxfp4",)), ("bf16", ("bf16",)),
    ("fp16", ("bf16",)), ("awq-int4", ("int4",)), ("gptq-int4", ("int4",)), ("int4", ("int4",)),
)
"""Beginning of a format's name -> tables that its products may be looked up in, the best first."""

ROUTED: Final[dict[str, tuple[str, ...]]] = {"tensorrt-llm": tuple(WEIGHTS), "vllm": ("mxfp4",)}
"""Engine -> formats whose tables of experts were measured from the router's logits on, the choice of experts included
[aic collector/trtllm/collect_moe.py `moe.forward`, collector/vllm/collect_moe.py `_mxfp4_forward`]."""

LINKED: Final = {"all-reduce": 2.0, "all-gather": 1.0, "all-to-all": 1.0}
"""Collective -> how often (n - 1) / n of its bytes cross a link."""


class Found(Struct, frozen=True):
    """A kernel that was looked up."""

    seconds: float
    computes: bool  # operations took longer than bytes, by its law


def looked_up(kernels: Kernels, sizes: Sizes, gpu: Gpu) -> Found | None:
    """Seconds of a kernel on a card, which the tables are of or a relative of; None where no table is near.

    Args:
        kernels: the tables
        sizes: what is looked up
        gpu: whose limits the law divides by
    """
    for name, beside, rate in _named(kernels, sizes):
        limits, law, fixed = limits_of(gpu, rate), LAWS[sizes.kind], {**sizes.fixed, **beside}
        found = kernels.seconds(name, sizes.point, lambda point: law_s(law(*point, **fixed), limits))  # noqa: B023
        if found is not None:
            amounts = law(*sizes.point, **fixed)
            return Found(found, amounts.flops / limits.flops_per_s > amounts.num_bytes / limits.bytes_per_s)
    return None


def routes(kernels: Kernels, stored: str) -> bool:
    """Whether the measured kernel of experts in a format chooses them, too."""
    tables = next((names for prefix, names in FAMILIES if stored.startswith(prefix)), ())
    measured = [name for name in tables if any(table.startswith(f"experts/{name}/") for table in kernels.tables)]
    return bool(measured) and measured[0] in ROUTED.get(kernels.engine, ())


def limits_of(gpu: Gpu, rate: str) -> Limits:
    """By the data sheet; a dtype that the card has no rate for runs in 16 bits."""
    if rate == "link":
        return Limits(1.0, (gpu.link_bytes_per_s or 1.0) / 2)
    return Limits(gpu.flops_per_s(rate) or gpu.flops_per_s("bf16") or 1.0, gpu.bandwidth_bytes_per_s or 1.0)


def _named(kernels: Kernels, sizes: Sizes) -> Iterator[tuple[str, dict[str, float], str]]:
    """Tables to look in, the best first: name, what the law takes beside, dtype of the rate."""
    kind = sizes.kind
    if kind == "collective":
        yield sizes.stored, {"passes": LINKED[sizes.stored]}, "link"
    elif kind in ("gemm", "experts", "absorbed"):
        tables = ("bf16",) if kind == "absorbed" else next(
            (names for prefix, names in FAMILIES if sizes.stored.startswith(prefix)), ())
        for stored in tables:
            width, rate = WEIGHTS[stored]
            if kind == "experts":
                name = kernels.nearest(f"experts/{stored}/", tuple(sizes.fixed.values()))
                if name is not None:
                    yield name, {"weight_bytes": width}, rate
            else:
                yield f"{kind}/{stored}", {"weight_bytes": width}, rate
    else:
        bits = "8" if sizes.stored.startswith("fp8") else "16"
        family = f"{kind}/{bits}"
        if kind in ("context", "generation"):
            near = kernels.nearest(f"{family}/", (sizes.fixed["width"], sizes.fixed["window"]))
            family = near or family
        yield family, {"kv_bytes": 1.0 if bits == "8" else 2.0}, "bf16"


def _place(axis: Sequence[float], value: float) -> tuple[int, float]:
    """The point of an axis below a value and the share of the way to the next; the edge for values beyond.

    >>> _place((1.0, 2.0, 8.0), 4.0), _place((1.0, 2.0, 8.0), 99.0)
    ((1, 0.5), (2, 0.0))
    """
    if value <= axis[0]:
        return 0, 0.0
    if value >= axis[-1]:
        return len(axis) - 1, 0.0
    low = bisect_right(axis, value) - 1
    return low, log(value / axis[low]) / log(axis[low + 1] / axis[low])


SYSTEMS: Final[dict[str, str]] = {
    "a100-sxm4-80gb": "8.0", "h100-sxm-80gb": "9.0", "h200-sxm-141gb": "9.0", "b200-180gb": "10.0",
    "gb200-186gb": "10.0", "b300-270gb": "10.3", "gb300-288gb": "10.3",
}
"""Cards that have tables -> compute capability: others of the same one are relatives.

Those of the L40S make its published batches 36 % too fast (roofline: 2 %), as if weights came from its large second
cache, which no layer of a network finds them in; the RTX PRO 6000 is built alike and left out, too."""


def relative_of(gpu: Gpu) -> str | None:
    """The card whose tables a card is timed by: itself, else the first of its compute capability, else none."""
    if gpu.name in SYSTEMS:
        return gpu.name
    return next((name for name, capability in SYSTEMS.items() if capability == gpu.compute_capability), None)


@cache
def kernels_of(system: str, engine: str) -> Kernels | None:
    """The tables of a card: of the engine and of libraries that all engines call; None where there are none."""
    tables: dict[str, Table] = {}
    sources: dict[str, str] = {}
    codes = b""
    head: dict[str, Any] = {}
    for name in (system, f"{system}-{engine}"):
        try:
            packed = get_data(__package__, f"measured/{name}.bin")
        except FileNotFoundError:
            return None
        text, _, part = decompress(packed or b"").partition(b"\n")
        head = decode(text)
        offset = len(codes)
        for key, axes in head["tables"].items():
            tables[key] = Table(tuple(map(tuple, axes)), offset)
            offset += tables[key].size
        codes += part
        sources |= head["sources"]
    return Kernels(system, engine, head["commit"], head["date"], sources, tables, codes)


def gemm(m: float, n: float, k: float, *, weight_bytes: float) -> Amounts:
    """A product with weights of so many bytes an element."""
    return Amounts(2 * m * n * k, n * k * weight_bytes + 2 * m * (n + k))


def context(s: float, work: float, g: float, *, width: float, window: float, kv_bytes: float) -> Amounts:
    """Attention of prompts of s tokens under a causal mask; work = b A."""
    keys = s / 2 if s <= window else window * (1 - window / (2 * s))
    return Amounts(4 * work * s * keys * width, work * s * width * (4 + 2 * kv_bytes / g))


def generation(c: float, caches: float, g: float, *, width: float, window: float, kv_bytes: float) -> Amounts:
    """Attention of one new token a sequence to c cached ones; caches = b A / g."""
    keys = min(c, window)
    return Amounts(4 * caches * g * keys * width, caches * width * (2 * keys * kv_bytes + 4 * g))


def latent_context(s: float, work: float, *, widths: float, kv_bytes: float) -> Amounts:
    """MLA of prompts, keys and values expanded; work = b A, widths of a key and a value together."""
    return Amounts(work * s * s * widths, work * s * widths * (2 + kv_bytes))


def latent_generation(c: float, b: float, heads: float, *, rank: float, rope: float, kv_bytes: float) -> Amounts:
    """MLA of one new token a sequence: every head attends over the compressed vector."""
    return Amounts(2 * b * c * heads * (2 * rank + rope), b * c * (rank + rope) * kv_bytes + 4 * b * heads * rank)


def absorbed(m: float, heads: float, *, inner: float, rank: float, weight_bytes: float) -> Amounts:
    """The two products, head by head, by which queries enter and values leave the compressed space."""
    return Amounts(4 * m * heads * inner * rank, 2 * heads * (inner * rank * weight_bytes + 2 * m * (inner + rank)))


def experts(
    tokens: float, tp: float, ep: float, *, hidden: float, inter: float, count: float, top_k: float,
    weight_bytes: float,
) -> Amounts:
    """Gated experts of one rank, for the tokens of all ranks that exchange them."""
    met = count * (1 - (1 - min(1.0, top_k / count)) ** tokens)
    rows, size = tokens * top_k / ep, 3 * hidden * inter / tp
    return Amounts(2 * rows * size, met / ep * size * weight_bytes + 4 * rows * hidden)


def crossing(ranks: float, num_bytes: float, *, passes: float) -> Amounts:
    """A collective; its rate is that of a card's links, one direction."""
    return Amounts(0.0, passes * (ranks - 1) / ranks * num_bytes)


Law = Callable[..., Amounts]

FEWER: Final[dict[str, tuple[int, ...]]] = dict.fromkeys(
    ("gemm", "context", "generation", "latent_context", "latent_generation", "absorbed", "collective"), ()
) | {"experts": (1, 2)}
"""Kind -> axes along which a kernel has less to do: more ranks."""

LAWS: Final[dict[str, Law]] = {
    "gemm": gemm, "context": context, "generation": generation, "latent_context": latent_context,
    "latent_generation": latent_generation, "absorbed": absorbed, "experts": experts, "collective": crossing,
}
