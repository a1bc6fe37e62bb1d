"""What the pieces of a step are counted in: seconds by what they go to, one micro-batch on one rank.

Stable: `Parts`, `Passes`, `Shape`, `Machine`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final, NamedTuple

from msgspec import Struct

from vramcast.timing.training.fabric import Fabric
from vramcast.timing.training.rates import Rates

if TYPE_CHECKING:
    from vramcast.blocks.sizes import Sizes


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


class Shape(NamedTuple):
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


class Operator(NamedTuple):
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
        name, kind, part, flops, moved, backward_flops, backward_bytes, *rest = self
        return Operator(
            name, kind, part, flops * tokens, moved * tokens, backward_flops * tokens, backward_bytes * tokens, *rest
        )

    def on(self, ranks: int) -> Operator:
        """The operator where its experts are spread over so many ranks: as many rows, fewer weights."""
        if self.kind != "grouped":
            return self
        return self._replace(
            weight_bytes=self.weight_bytes / ranks, backward_weight_bytes=self.backward_weight_bytes / ranks
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
