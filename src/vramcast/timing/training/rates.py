"""What cards sustain in training: products, attention, moving memory. Shares are of the data sheet's dense rates.

A product takes flops / rate and a share of its traffic that nothing hides; products of many experts at once hide none.
[SimuMax] MooreThreads/SimuMax @4dcaae5 configs/system: 514 products on B200 and 183 on A100 PCIe, 120 grouped products
and 44 attention calls; least squares, median miss 5 and 1.5 %.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from vramcast.domain.device import Gpu
from vramcast.domain.job import Precision
from vramcast.timing.achieved import BANDWIDTH, MATMUL, OTHER_BANDWIDTH, OTHER_MATMUL


class Share(NamedTuple):
    """A measured share, and where."""

    value: float
    source: str


PRODUCTS: Final[dict[tuple[str, str], Share]] = {
    ("Blackwell", "16"): Share(0.49, "[SimuMax] B200, 16-bit products of 2 to 70 Tflop"),
    ("Ampere", "16"): Share(0.78, "[SimuMax] A100 PCIe"),
    ("Hopper", "16"): Share(0.66, "assumed until fitted"),
}
"""Architecture and operand bits -> share of the data sheet that large products sustain."""

SUSTAINED: Final = Share(0.85, "assumed: of the best product anybody measured, over a whole step")

DENSE_TRAFFIC: Final = 0.4
"""Share of a dense product's traffic that adds to its operations [SimuMax]."""

GROUPED_TRAFFIC: Final = 1.2
"""The same of grouped products [SimuMax]."""

ATTENTION: Final[dict[str, tuple[float, float]]] = {
    "Blackwell": (0.45, 0.38), "Hopper": (0.5, 0.38), "Ampere": (0.58, 0.48), "Ada": (0.55, 0.45),
}
"""Architecture -> share of the data sheet that flash attention reaches forward and backward, masked half not counted."""

OTHER_ATTENTION: Final = (0.45, 0.35)

KERNEL_S: Final = 4e-6
"""Start and end of one kernel on the card."""


class Rates(NamedTuple):
    """What one card sustains."""

    products: float  # linear layers [flop/s]
    whole: float  # products no recipe converts: head, router [flop/s]
    attention_forward: float
    attention_backward: float
    bytes_per_s: float
    peak: float  # data sheet in the precision computed in, for MFU [flop/s]
    sources: tuple[str, ...]


def rates_of(gpu: Gpu, precision: Precision) -> Rates | None:
    """Rates in a recipe of dtypes; None where the data sheet is not known."""
    dtype = COMPUTED_IN[precision]
    peak = gpu.flops_per_s(dtype) or gpu.flops_per_s(FALLBACK[dtype])
    whole = gpu.flops_per_s(WHOLE[dtype]) or peak
    if not peak or not whole or not gpu.bandwidth_bytes_per_s:
        return None
    share, whole_share = _share(gpu, dtype), _share(gpu, WHOLE[dtype])
    memory = BANDWIDTH.get(gpu.vendor, OTHER_BANDWIDTH)
    forward, backward = ATTENTION.get(gpu.arch.split()[0], OTHER_ATTENTION)
    return Rates(
        products=peak * share.value, whole=whole * whole_share.value, attention_forward=whole * forward,
        attention_backward=whole * backward, bytes_per_s=gpu.bandwidth_bytes_per_s * memory.value, peak=peak,
        sources=(
            f"{dtype} products sustain {share.value:.0%} of {peak / 1e12:,.0f} TFLOPS ({share.source})",
            f"memory reaches {memory.value:.0%} of {gpu.bandwidth_bytes_per_s / 1e9:,.0f} GB/s ({memory.source})",
        ),
    )


COMPUTED_IN: Final[dict[Precision, str]] = {
    Precision.FP64: "fp64", Precision.FP32: "fp32", Precision.TF32: "tf32", Precision.AMP_FP16: "fp16",
    Precision.AMP_BF16: "bf16", Precision.MIXED_FP16: "fp16", Precision.MIXED_BF16: "bf16", Precision.BF16: "bf16",
    Precision.FP16: "fp16", Precision.FP8: "fp8",
}
"""Recipe -> dtype of the products of linear layers."""

WHOLE: Final = {"fp8": "bf16", "fp16": "fp16", "bf16": "bf16", "tf32": "tf32", "fp32": "fp32", "fp64": "fp64"}
"""Dtype of linear layers -> of attention and the head."""

FALLBACK: Final = {"fp8": "bf16", "bf16": "fp16", "fp16": "bf16", "tf32": "fp32", "fp32": "fp32", "fp64": "fp32"}
"""What a card without the dtype computes in."""

BITS: Final = {"fp8": "8", "bf16": "16", "fp16": "16", "tf32": "16", "fp32": "32", "fp64": "64"}


def _share(gpu: Gpu, dtype: str) -> Share:
    key = (gpu.arch.split()[0], BITS[dtype])
    if key in PRODUCTS:
        return PRODUCTS[key]
    best = MATMUL.get(key) or MATMUL.get((key[0], "16")) or OTHER_MATMUL
    return Share(best.value * SUSTAINED.value, f"{best.source}; {SUSTAINED.source}")
