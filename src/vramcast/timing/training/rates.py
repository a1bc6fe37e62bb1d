"""What cards sustain in training: products, attention, moving memory. Shares are of the data sheet's dense rates.

A product takes flops / rate and a share of its traffic that nothing hides; products of many experts at once hide none.
[SimuMax] MooreThreads/SimuMax @4dcaae5 configs/system: 514 products on B200 and 183 on A100 PCIe, 120 grouped products
and 44 attention calls; least squares, median miss 5 and 1.5 %.
[FA2] Dao, arXiv:2307.08691, figures 4 to 6.
[FA3] Shah et al., arXiv:2407.08608, figures 5 and 6.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Final

from msgspec import Struct

from vramcast.domain.device import Gpu
from vramcast.domain.job import Precision
from vramcast.errors import Note
from vramcast.timing.composition import Number, larger
from vramcast.timing.rates import BANDWIDTH, OTHER_BANDWIDTH, Share, best_product
from vramcast.timing.work import LAUNCH_S as SERVING_LAUNCH_S

PRODUCTS: Final[dict[tuple[str, str], Share]] = {
    ("Blackwell", "16"): Share(0.47, "[SimuMax] B200 0.49 product by product; 0.47 fits whole steps of megatron-b200"),
    ("Ampere", "16"): Share(0.76, "[SimuMax] A100 PCIe 0.78; fitted on mpt-a100-40gb of truth/step_times.csv"),
    ("Hopper", "16"): Share(0.66, "fitted: mpt-h100 of truth/step_times.csv, 125M to 70B"),
    ("Hopper", "8"): Share(0.72, "fitted: bridge-llama-h100 of truth/step_times.csv"),
    ("Blackwell", "8"): Share(0.65, "[MAMF] B200 3432.5 of 4500, 0.85 of it over a whole step"),
    ("Blackwell Ultra", "16"): Share(0.58, "assumed: as much above Blackwell as with 8 bits"),
    ("Blackwell Ultra", "8"): Share(0.77, "fitted: bridge-llama-gb300 of truth/step_times.csv"),
}
"""Architecture and operand bits -> share of the data sheet that large products sustain."""

SUSTAINED: Final = Share(0.85, "assumed: of the best product anybody measured, over a whole step")

DENSE_TRAFFIC: Final = 0.5
"""Share of a dense product's traffic that adds to its operations [SimuMax]."""

GROUPED_TRAFFIC: Final = 1.2
"""The same of grouped products [SimuMax]."""

ATTENTION: Final[dict[tuple[str, str], tuple[float, float]]] = {
    ("Blackwell", "cudnn"): (0.45, 0.38),  # [SimuMax] 64 heads of 4,096 positions
    ("Blackwell", "flash"): (0.22, 0.18),  # FlashAttention 2 has no kernel of its own there; assumed as on Hopper
    ("Hopper", "cudnn"): (0.52, 0.42),  # [FA3] table of cuDNN 9: 480 to 640 TFLOPS forward, 400 to 500 backward
    ("Hopper", "flash"): (0.36, 0.28),  # [FA3] FlashAttention 2: 350 and 280 TFLOPS
    ("Hopper", "efficient"): (0.20, 0.16),  # as far below FlashAttention 2 as on Ampere
    ("Ampere", "flash"): (0.60, 0.50),  # [SimuMax] A100: 185 and 150 TFLOPS
    ("Ampere", "efficient"): (0.33, 0.28),  # [FA2] FlashAttention 1 and xFormers: half of FlashAttention 2
    ("Ada", "flash"): (0.55, 0.45),  # assumed as on Ampere
}
"""Architecture and kernel -> share of the data sheet forward and backward, the masked half not counted."""

OTHER_ATTENTION: Final = (0.45, 0.35)

MEMORY: Final[dict[str, Share]] = {"Blackwell": Share(0.67, "[SimuMax] B200, pointwise kernels of a training step")}
"""Architecture -> share of the data sheet's bandwidth; others as in `timing.achieved`."""

KERNEL_S: Final = 4e-6
"""Start and end of one kernel on the card."""

LAUNCH_S: Final[dict[str, float]] = {**SERVING_LAUNCH_S, "Blackwell": 10e-6}
"""Host time of one eager operator by the card's generation, which stands for that of its host; Blackwell's assumed."""

OTHER_LAUNCH_S: Final = 12e-6

BACKWARD_LAUNCH: Final = 0.5
"""Host time of a kernel that autograd's C++ starts, relative to one that Python starts."""

OVERLAP_LOSS: Final = 0.5
"""Share of a transfer by which the work it runs under becomes longer: it takes processors, memory and power."""

MOST_KNOWN: Final = 512
"""Cards and recipes whose rates are kept [count]."""


class Rates(Struct, frozen=True):
    """What one card sustains."""

    products: float  # linear layers [flop/s]
    whole: float  # products no recipe converts: head, router [flop/s]
    attention_forward: float
    attention_backward: float
    bytes_per_s: float
    peak: float  # data sheet in the precision computed in, for MFU [flop/s]
    sources: tuple[str, ...]


def spent(
    kind: str, rates: Rates, *, flops: Number, num_bytes: Number, kernels: Number = 1.0, backward: bool = False,
    grouped: float | None = None,
) -> tuple[str, Number]:
    """What an operator's seconds go to, field of `Parts`, and how many they are; floats or arrays.

    Args:
        kind: "product", "grouped", "scores", "attention"; any other moves memory alone
        grouped: rate of grouped products; None: that of all products
    """
    moved, start = num_bytes / rates.bytes_per_s, KERNEL_S * kernels
    match kind:
        case "product":
            return "products", larger(moved, flops / rates.products + DENSE_TRAFFIC * moved) + start
        case "grouped":
            return "products", flops / (grouped or rates.products) + GROUPED_TRAFFIC * moved + start
        case "scores":
            return "attention", flops / rates.whole + moved + start
        case "attention":
            rate = rates.attention_backward if backward else rates.attention_forward
            return "attention", larger(moved, flops / rate) + start
        case _:
            return "pointwise", moved + start


@lru_cache(maxsize=MOST_KNOWN)
def rates_of(gpu: Gpu, precision: Precision, *, attention: str = "flash") -> Rates | None:
    """Rates in a recipe of dtypes; None where the data sheet is not known.

    Args:
        precision: the recipe
        attention: kernel of softmax(QK)V: "flash", "cudnn" or "efficient"
    """
    dtype = COMPUTED_IN[precision]
    if dtype == "bf16" and not gpu.has_bf16:
        dtype = "fp32"  # emulated: no tensor core has it
    peak = gpu.flops_per_s(dtype) or gpu.flops_per_s(FALLBACK[dtype])
    whole = gpu.flops_per_s(WHOLE[dtype]) or peak
    if not peak or not whole or not gpu.bandwidth_bytes_per_s:
        return None
    share, whole_share = _share(gpu, dtype), _share(gpu, WHOLE[dtype])
    arch = gpu.multiplies_as.split()[0]
    memory = MEMORY.get(arch) or BANDWIDTH.get(gpu.vendor, OTHER_BANDWIDTH)
    forward, backward = ATTENTION.get((arch, attention)) or ATTENTION.get((arch, "flash")) or OTHER_ATTENTION
    return Rates(
        products=peak * share.value, whole=whole * whole_share.value, attention_forward=whole * forward,
        attention_backward=whole * backward, bytes_per_s=gpu.bandwidth_bytes_per_s * memory.value, peak=peak,
        sources=(
            Note("{} products sustain {:.0%} of {:,.0f} TFLOPS ({})", dtype, share.value, peak / 1e12, share.source),
            Note(
                "memory reaches {:.0%} of {:,.0f} GB/s ({})",
                memory.value, gpu.bandwidth_bytes_per_s / 1e9, memory.source
            ),
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
    for arch in (gpu.multiplies_as, gpu.multiplies_as.split()[0]):  # "Blackwell Ultra", "Blackwell"
        if (arch, BITS[dtype]) in PRODUCTS:
            return PRODUCTS[arch, BITS[dtype]]
    best = best_product(gpu, BITS[dtype])
    return Share(best.value * SUSTAINED.value, Note("{}; {}", best.source, SUSTAINED.source))
