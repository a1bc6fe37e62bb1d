"""Compute buffers: the graph of the largest micro-batch, packed as ggml packs it.

[reserve] ggml-org/llama.cpp src/llama-context.cpp `sched_reserve`; ikawrakow/ik_llama.cpp src/llama.cpp
`llama_new_context_with_model`. [cuda] ggml/src/ggml-cuda/ggml-cuda.cu `supports_op`, `offload_op`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from vramcast.domain.model import Layer, Model
from vramcast.engines.ggml.scheduler import PIPELINE_COPIES, Machine, reserve
from vramcast.engines.ggml.tensor import Tensor
from vramcast.engines.llamacpp.graph.assemble import whole_graph
from vramcast.engines.llamacpp.graph.context import Build
from vramcast.engines.llamacpp.placement import Placement
from vramcast.engines.llamacpp.settings import Settings
from vramcast.engines.llamacpp.weights import Weight
from vramcast.states.ggml import QUANTISED, TYPES

SMALLEST_OFFLOAD: Final = 32
"""Tokens from which on host weights are brought to a card [cuda]."""

EXPERTS_COUNT_SINCE: Final = 3745
"""Since this build of ik_llama.cpp experts are brought over only when each gets that many tokens on average (520)."""

LONGEST_PERIOD: Final = 12
"""Layers after which a pattern of layers starts anew, at most."""

KEPT_PERIODS: Final = 4
"""Repeats of a pattern behave alike from the fourth on: each leaves memory as it found it. The last one is kept too."""

TABLES_ON_CARDS: Final = frozenset(("f16", "f32", "q4_0", "q4_1", "q5_0", "q5_1", "q8_0", "i32", "bf16"))
"""Types that rows can be taken of on a card [cuda]."""

INTERLEAVED: Final = ("_r4", "_r8", "_r16")
"""Endings of types whose rows are interleaved for the host."""

CARDS_INTERLEAVED: Final = frozenset(
    ("iq1_s_r4", "iq1_m_r4", "iq2_k_r4", "iq3_k_r4", "iq4_k_r4", "iq4_ks_r4", "iq5_k_r4", "iq5_ks_r4")
)
"""Those of them that cards multiply with too; the products of the others stay on the host [cuda]."""


class Reserved(NamedTuple):
    """Compute buffers by device, cards first, then the host [bytes]."""

    cards: tuple[int, ...]
    host: int


def compute_buffers(
    model: Model, settings: Settings, placement: Placement, weights: tuple[Weight, ...], *, copies: bool
) -> Reserved:
    """Bytes of the compute buffers of a micro-batch.

    Args:
        model: the network
        settings: of the context
        placement: of layers and weights
        weights: with their types, which count where host weights are brought to a card
        copies: inputs are kept several times, for batches that overlap on several cards
    """
    types = {weight.name: weight.dtype for weight in weights}

    def place(name: str, layer: int | None) -> tuple[str, int]:
        key = name if layer is None else f"blk.{layer}.{name}"
        dtype = types.get(key) or types.get("token_embd.weight" if name == "output.weight" else "", "f16")
        device = placement.weight(key, layer)
        return (_repacked(dtype, settings) if device == placement.host else plain(dtype)), device

    build = Build(model, settings, weights=place, layer_backends=placement.layers, host=placement.host)
    layers = tuple(enumerate(model.main.layers))
    kept = layers if copies and _leaves_cards(placement, weights) else representative(layers, placement)
    graph = whole_graph(build, kept, last=len(layers) - 1)
    on_card, on_host = settings.memories
    machine = Machine(
        memories=(*(on_card for _ in range(placement.cards)), on_host),
        supports=lambda tensor, card: _on_card(tensor),
        offloads=lambda tensor: settings.op_offload and _worth_it(tensor, settings),
        copies=PIPELINE_COPIES if copies else 1,
    )
    *cards, host = reserve(graph, machine)
    return Reserved(tuple(cards), host)


def plain(dtype: str) -> str:
    """The type without interleaved rows: mixes that name one mean the weights of the host."""
    return next((dtype.removesuffix(ending) for ending in INTERLEAVED if dtype.endswith(ending)), dtype)


def _repacked(dtype: str, settings: Settings) -> str:
    """The type host weights have once they are repacked at load: as they are where no such type exists."""
    if not settings.repacked or dtype.endswith(INTERLEAVED):
        return dtype
    return next((dtype + ending for ending in INTERLEAVED if dtype + ending in TYPES), dtype)


def _leaves_cards(placement: Placement, weights: tuple[Weight, ...]) -> bool:
    """Whether layers go back and forth between cards and host, so that every one adds copies of inputs."""
    return any(
        weight.layer is not None and placement.weight(weight.name, weight.layer) == placement.host for weight in weights
    )


def representative(layers: tuple[tuple[int, Layer], ...], placement: Placement) -> tuple[tuple[int, Layer], ...]:
    """Layers without the middle of patterns that repeat on one device."""
    kinds = [_kind(index, layer, placement) for index, layer in layers]
    kept: list[tuple[int, Layer]] = []
    position = 0
    while position < len(layers):
        period, repeats = _pattern(kinds, position)
        dropped = max(0, repeats - KEPT_PERIODS - 1) * period
        end = position + period * repeats
        first = position + min(repeats, KEPT_PERIODS) * period
        kept += layers[position:first] + layers[min(first + dropped, end) : end]
        position = end
    return tuple(kept)


def _kind(index: int, layer: Layer, placement: Placement) -> tuple[int, Layer, int]:
    """What makes layers alike: the device, the layer, the device of its experts."""
    return placement.layers[index], layer, placement.weight(f"blk.{index}.ffn_up_exps.weight", index)


def _pattern(kinds: Sequence[object], start: int) -> tuple[int, int]:
    """Length and number of repeats of the pattern that covers most layers from a position on; (1, 1) for none."""
    best = (1, 1)
    for period in range(1, LONGEST_PERIOD + 1):
        repeats = 1
        while kinds[start + repeats * period :][:period] == kinds[start : start + period]:
            repeats += 1
        if repeats > KEPT_PERIODS + 1 and period * repeats > best[0] * best[1]:
            best = (period, repeats)
    return best


def _on_card(tensor: Tensor) -> bool:
    """Whether a CUDA card computes a node [cuda]."""
    if tensor.op == "get_rows":
        return tensor.src[0].dtype in TABLES_ON_CARDS
    if tensor.op in ("mul_mat", "mul_mat_id", "moe_up_gate"):
        dtype = tensor.src[0].dtype
        return not dtype.endswith(INTERLEAVED) or dtype in CARDS_INTERLEAVED
    return True


def _worth_it(tensor: Tensor, settings: Settings) -> bool:
    """Whether a node has rows enough to bring its weights over [cuda]; repacked ones stay with the host."""
    if tensor.op == "get_rows" or (settings.repacked and any(source.dtype in QUANTISED for source in tensor.src)):
        return False
    if tensor.op in ("mul_mat_id", "moe_up_gate"):
        tokens, weight, ids = tensor.ne[2], tensor.src[0], tensor.src[-1]
        if settings.fork and settings.build >= EXPERTS_COUNT_SINCE:
            return tokens >= SMALLEST_OFFLOAD and tokens * ids.ne[0] >= SMALLEST_OFFLOAD * weight.ne[2]
        return tokens >= SMALLEST_OFFLOAD
    if tensor.op == "mul_mat" or settings.fork:
        return tensor.ne[1] >= SMALLEST_OFFLOAD
    return tensor.ne[1] * tensor.ne[2] * tensor.ne[3] >= SMALLEST_OFFLOAD
