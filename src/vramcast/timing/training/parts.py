"""What the pieces of a step are counted in: seconds by what they go to, one micro-batch on one rank.

Stable: `Parts`, `Passes`, `Shape`, `Machine`.

What cards sustain in training: products, attention, moving memory. Shares are of the data sheet's dense rates.

A product takes flops / rate and a share of its traffic that nothing hides; products of many experts at once hide none.
[SimuMax] MooreThreads/SimuMax @4dcaae5 configs/system: 514 products on B200 and 183 on A100 PCIe, 120 grouped products
and 44 attention calls; least squares, median miss 5 and 1.5 %.
[FA2] Dao, arXiv:2307.08691, figures 4 to 6.
[FA3] Shah et al., arXiv:2407.08608, figures 5 and 6.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, Final, NamedTuple

from msgspec import Struct
from msgspec.structs import replace

from vramcast.domain.device import Gpu
from vramcast.domain.job import Precision
from vramcast.errors import Note
from vramcast.timing.composition import Number, larger
from vramcast.timing.rates import BANDWIDTH, OTHER_BANDWIDTH, Share, best_product
from vramcast.timing.training.fabric import Fabric
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

NETWORK_LOSS: Final = 0.2
"""The same of a transfer between machines: its adapter paces it, so it takes less of them at a time [fitted:
kempnerforge-h200 of truth/step_times.csv, shards over 2 to 8 machines]."""

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


if TYPE_CHECKING:
    from vramcast.blocks.parts import Sizes


BOUNDS: Final[dict[str, tuple[str, ...]]] = {
    "compute": ("products", "attention"),
    "memory": ("pointwise", "optimizer"),
    "communication": ("tensor", "context", "expert", "gradients", "gathered"),
    "pipeline": ("pipeline", "stragglers"),
    "launch": ("launch", "host"),
    "offload": ("offload",),
}
"""What a step can be bound by -> the parts that count towards it."""


def bound_of(seconds: Mapping[str, float]) -> str:
    """What most of a step goes to, key of BOUNDS.

    >>> bound_of({"products": 0.3, "pointwise": 0.2, "optimizer": 0.2})
    'memory'
    """
    return max(BOUNDS, key=lambda name: sum(seconds.get(cause, 0.0) for cause in BOUNDS[name]))


class Parts(NamedTuple):
    """Seconds of one pass, by cause; they add up to the pass."""

    products: float = 0.0  # matrix products
    attention: float = 0.0  # softmax(QK)V, scans
    pointwise: float = 0.0  # norms, gates, residuals, casts, routing, losses
    tensor: float = 0.0  # waiting for tensor-parallel ranks
    context: float = 0.0  # waiting for context-parallel ranks
    expert: float = 0.0  # waiting for expert-parallel ranks
    launch: float = 0.0  # waiting for the host to start kernels

    @property
    def total(self) -> float:
        return sum(self)

    def plus(self, other: Parts, times: float = 1.0) -> Parts:
        """Both, the other one `times` over."""
        products, attention, pointwise, tensor, context, expert, launch = self
        # Field by field: a step time is a thousand of these sums.
        return Parts(
            products + times * other[0], attention + times * other[1], pointwise + times * other[2],
            tensor + times * other[3], context + times * other[4], expert + times * other[5], launch + times * other[6],
        )


class Passes(Struct, frozen=True):
    """One piece of the network, forward and backward. `backward` holds what is recomputed in it."""

    forward: Parts
    backward: Parts

    def plus(self, other: Passes, times: float = 1.0) -> Passes:
        """Both, the other one `times` over."""
        return Passes(self.forward.plus(other.forward, times), self.backward.plus(other.backward, times))

    @property
    def total(self) -> float:
        return self.forward.total + self.backward.total


class Shape(Struct, frozen=True):
    """One micro-batch and the degrees it is divided by."""

    sequences: int
    seq_len: int  # of the whole sequence [tokens]
    tp: int = 1
    cp: int = 1
    ep: int = 1
    etp: int = 1  # tensor parallelism inside experts
    sequence_parallel: bool = False
    cp_kind: str = "ring"
    causal: bool = True  # False: every position meets every other one

    @property
    def tokens(self) -> float:
        """Rows of the products of one rank."""
        return self.sequences * self.seq_len / self.cp

    @property
    def residual_tokens(self) -> float:
        """Rows of the residual stream of one rank."""
        return self.tokens / self.tp if self.sequence_parallel else self.tokens


class Operator(Struct, frozen=True):
    """One operator of a layer on one rank; what `tape` and `operators` describe for one token is multiplied by them."""

    name: str  # "attention.q", "norm"
    kind: str  # "product", "grouped", "attention", "pointwise"
    part: str  # what selective recomputation names: "core", "norm", "gate", "up_proj", "mixer", "channel" ...
    flops: float = 0.0  # forward
    bytes: float = 0.0  # forward, weights left out
    backward_flops: float = 0.0
    backward_bytes: float = 0.0
    kernels: float = 1.0  # forward
    backward_kernels: float = 2.0
    weight_bytes: float = 0.0  # read or written however many tokens there are
    backward_weight_bytes: float = 0.0

    def times(self, tokens: float) -> Operator:
        """The operator on so many tokens, where it describes one."""
        return replace(
            self, flops=self.flops * tokens, bytes=self.bytes * tokens, backward_flops=self.backward_flops * tokens,
            backward_bytes=self.backward_bytes * tokens,
        )

    def on(self, ranks: int) -> Operator:
        """The operator where its experts are spread over so many ranks: as many rows, fewer weights."""
        if self.kind != "grouped":
            return self
        return replace(
            self, weight_bytes=self.weight_bytes / ranks, backward_weight_bytes=self.backward_weight_bytes / ranks
        )


def part_of(path: str) -> str:
    """The part of a layer that a weight or a value belongs to.

    >>> part_of("mlp.gate"), part_of("attention.q"), part_of("mixer_norm.out")
    ('channel', 'mixer', 'norm')
    """
    if "norm" in path:
        return "norm"
    return "channel" if path.startswith(("mlp", "moe", "channel")) else "mixer"


class Style(Struct, frozen=True):
    """How an engine runs the network."""

    fused: bool = True  # norms, gates and rotary embedding are one kernel each
    sizes: Sizes | None = None  # implementations of an engine that runs operators one by one: they are on its tape
    eager_scores: float = 0.0  # bytes moved for every score of attention that is materialised, forward; 0: flash
    launch_s: float = 0.0  # host time of one kernel forward; backward, in C++, a half of it
    module_s: float = 0.0  # host time of a module with weights, every pass: what hooks around it take
    width: int = 2  # bytes of an activation inside the layer
    residual: int = 2  # bytes of an element of the residual stream
    gradient_bytes: float = 8.0  # written and read where a product's weight gradient is added to the sum
    summed_bytes: float = 0.0  # moved to add it in a kernel of its own
    attention: str = "flash"  # kernel of softmax(QK)V
    tensor_overlap: str = ""  # passes whose tensor-parallel transfers run under products: "", "backward", "both"
    converted_bytes: float = 0.0  # moved to convert an element that enters a product in 8 bits, forward and backward
    float8: str = ""  # how torchao's linears convert, key of `float8.CASTS`; experts stay in 16 bits
    expert_overlap: bool = False  # transfers of expert parallelism run under another micro-batch
    dispatch: bool = False  # tokens are sent once to every machine, not once to every expert
    trains: bool = True  # False: the head's weights are frozen


class Machine(Struct, frozen=True):
    """A card, its links and how the engine uses them."""

    rates: Rates
    fabric: Fabric
    style: Style
