"""A llama.cpp context worked out: placement, weights, caches of its sequences, buffers of the largest micro-batch.

[kv] ggml-org/llama.cpp src/llama-kv-cache.cpp, llama-kv-cache-iswa.cpp, llama-memory-recurrent.cpp; [ik]
ikawrakow/ik_llama.cpp src/llama.cpp `llama_kv_cache_init`. The whole cache is allocated at start.
[reserve] ggml-org/llama.cpp src/llama-context.cpp `sched_reserve`; ikawrakow/ik_llama.cpp src/llama.cpp
`llama_new_context_with_model`. [cuda] ggml/src/ggml-cuda/ggml-cuda.cu `supports_op`, `offload_op`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Final, NamedTuple

from msgspec import Struct
from msgspec.structs import replace

from vramcast.domain.model import (
    Attention,
    Head,
    Layer,
    LinearAttention,
    Mamba,
    Mixer,
    Model,
    MultiLatentAttention,
    Run,
)
from vramcast.domain.serving import ServeJob
from vramcast.engines.ggml.ops import Tensor
from vramcast.engines.ggml.scheduler import MATRIX_ROW_PADDING, PIPELINE_COPIES, Machine, reserve
from vramcast.engines.llamacpp.graph import whole_graph
from vramcast.engines.llamacpp.graph_parts import Build, window_cells
from vramcast.engines.llamacpp.projector import Projector, projector_of
from vramcast.engines.llamacpp.settings import Settings, checked_options, settings_of
from vramcast.engines.llamacpp.weights import Placement, Weight, place_of, placement_of, weights_of
from vramcast.states.ggml import QUANTISED, TYPES, row_bytes, type_of
from vramcast.states.storage import state_elements
from vramcast.units import ceil_div, round_up

STATE_BYTES = 4  # recurrent states are f32


class LayerCache(Struct, frozen=True, kw_only=True):
    """What one layer keeps on its device."""

    growing: int = 0  # over all cells of the context [bytes]
    windowed: int = 0  # of a sliding window, whatever the context [bytes]
    state: int = 0  # recurrent, of all slots [bytes]
    keys: int = 0  # of that, keys
    values: int = 0

    @property
    def num_bytes(self) -> int:
        """All of it [bytes]."""
        return self.growing + self.windowed + self.state


class DeviceCache(Struct, frozen=True, kw_only=True):
    """The caches of one device's layers."""

    layers: tuple[LayerCache, ...]
    cells: int  # of the context over all slots
    slots: int

    @property
    def num_bytes(self) -> int:
        """All of it [bytes]."""
        return sum(layer.num_bytes for layer in self.layers)

    def sequence_bytes(self, tokens: int) -> int:
        """What a sequence of so many tokens takes: its cells, and a slot's share of windows and states [bytes]."""
        growing = sum(layer.growing for layer in self.layers)
        fixed = self.num_bytes - growing
        return max(1, ceil_div(growing * tokens, self.cells) + ceil_div(fixed, self.slots))

    @property
    def reported_tokens(self) -> dict[str, int]:
        """llama.cpp's figure: cells of the context over all slots."""
        return {"cells": self.cells}


def layer_cache(mixer: Mixer | None, settings: Settings, *, causal: bool = True) -> LayerCache:
    """The cache of one layer.

    Encoders of llama.cpp before `streams` still allocate a cache they never read.
    """
    if not causal and settings.has("streams"):
        return LayerCache()
    match mixer:
        case Attention(shared_kv=True):
            return LayerCache()
        case Attention():
            return _attention_cache(mixer, settings)
        case MultiLatentAttention():
            return _latent_cache(mixer, settings)
        case Mamba() | LinearAttention():
            convolution, recurrent = state_elements(mixer)
            return LayerCache(state=STATE_BYTES * settings.slots * (convolution + recurrent))
        case _:
            return LayerCache()


def _attention_cache(mixer: Attention, settings: Settings) -> LayerCache:
    cells = window_cells(settings, mixer.window) * settings.streams if mixer.window else settings.context
    heads = mixer.num_kv_heads
    keys = _rows(settings.k_type, heads, mixer.head_dim, cells)
    values = _rows(settings.v_type, heads, mixer.v_head_dim or mixer.head_dim, cells)
    windowed = bool(mixer.window) and cells < settings.context
    return LayerCache(
        growing=0 if windowed else keys + values, windowed=keys + values if windowed else 0, keys=keys, values=values
    )


def _rows(dtype: str, heads: int, width: int, cells: int) -> int:
    """Cells of so many heads; a type with a scale per row counts a row per head."""
    if type_of(dtype).row_bytes:
        return heads * cells * row_bytes(dtype, width)
    return cells * row_bytes(dtype, heads * width)


def _latent_cache(mixer: MultiLatentAttention, settings: Settings) -> LayerCache:
    cells, heads, rope = settings.context, mixer.num_heads, mixer.qk_rope_dim
    if settings.latent:
        transposed = settings.fork and settings.latent == 1 and not settings.flash
        stored = settings.v_type if settings.fork and settings.latent > 1 and not settings.flash else settings.k_type
        keys = cells * row_bytes(stored, mixer.kv_lora_rank + rope)
        values = cells * row_bytes(settings.v_type, mixer.kv_lora_rank) if transposed else 0
    else:
        keys = cells * heads * row_bytes(settings.k_type, mixer.qk_nope_dim + rope)
        values = cells * row_bytes(settings.v_type, heads * mixer.v_head_dim)
    return LayerCache(growing=keys + values, keys=keys, values=values)


def caches_of(model: Model, settings: Settings) -> tuple[LayerCache, ...]:
    """The cache of every layer."""
    causal = model.main.causal
    found: dict[Mixer | None, LayerCache] = {}
    for run in model.main.runs:
        if run.layer.mixer not in found:
            found[run.layer.mixer] = layer_cache(run.layer.mixer, settings, causal=causal)
    return tuple(found[layer.mixer] for layer in model.main.layers)


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


CUDA_ALIGNMENT: Final = 128

WINDOWED: Final = frozenset(
    ("cohere2", "deepseek_v4", "exaone4", "gemma2", "gemma3", "gemma3_text", "gemma3n", "gemma3n_text", "gemma4",
     "gemma4_text", "gpt_oss", "llama4", "llama4_text", "mimo_v2_flash", "olmo3", "step3p7", "step3p7_text")
)
"""Families whose sliding windows llama.cpp knows [src/models/*.cpp swa_type]; those of others attend to everything."""


class Context:
    """Everything a deployment is made of, worked out once."""

    def __init__(self, job: ServeJob) -> None:
        options = checked_options(job)
        job = replace(job, model=as_loaded(job.model))
        self.job, self.options = job, options
        self.settings: Settings = settings_of(job)
        self.placement: Placement = placement_of(job, self.settings, options)
        latent = any(isinstance(layer.mixer, MultiLatentAttention) for layer in job.model.main.layers)
        split = latent and (self.settings.fork or bool(self.settings.latent))
        self.weights = weights_of(job, split_latent=split, joined_latent=self.settings.fork or not split)
        self.caches = caches_of(job.model, self.settings)
        self.projector: Projector | None = projector_of(job, self.settings)

    @cached_property
    def reserved(self) -> Reserved:
        """The compute buffers: most of the work, and not asked for where weights and caches are too large already."""
        return compute_buffers(self.job.model, self.settings, self.placement, self.weights, copies=self.pipelined)

    @property
    def projector_device(self) -> int:
        """The first card, whatever their shares; the host without cards or where the projector is to stay there."""
        return 0 if self.placement.cards and bool(self.options.get("mmproj-offload", True)) else self.placement.host

    def projector_bytes(self, device: int) -> int:
        """What a device holds of the projector [bytes]."""
        found = self.projector
        if found is None or device not in (self.projector_device, self.placement.host):
            return 0
        if device != self.projector_device:
            return found.host
        on_card = device != self.placement.host
        weights = sum(weight_bytes(weight, card=on_card) for weight in found.weights)
        return weights + found.card + (found.copies if on_card else found.host)

    @property
    def pipelined(self) -> bool:
        """Batches overlap where every layer is on one of several cards and no weight was moved [llama-context.cpp].

        ik_llama.cpp does not look at moved weights and would keep four copies of each in the compute buffer, which no
        card holds: such plans run with builds of GGML_SCHED_MAX_COPIES=1.
        """
        placement, settings = self.placement, self.settings
        if not bool(self.options.get("parallel-copies", True)) or placement.cards < 2 or not placement.whole:
            return False
        if self.options.get("split-mode", "layer") != "layer" or not settings.cache_on_cards:
            return False
        return not placement.overrides

    @cached_property
    def weights_by_name(self) -> Mapping[str, Weight]:
        """Each tensor of the file."""
        return {weight.name: weight for weight in self.weights}

    @cached_property
    def weights_by_device(self) -> Mapping[int, Mapping[str, list[Weight]]]:
        """Device -> part of a layer -> its weights."""
        found: dict[int, dict[str, list[Weight]]] = {}
        for weight in self.weights:
            layer, part = place_of(weight.name)
            found.setdefault(self.placement.weight(weight.name, layer), {}).setdefault(part, []).append(weight)
        return found

    def cache_device(self, layer: int) -> int:
        """Where the cache of a layer is."""
        return self.placement.layers[layer] if self.settings.cache_on_cards else self.placement.host

    def cache_on(self, device: int) -> DeviceCache:
        """The caches of a device's layers."""
        kept = tuple(cache for index, cache in enumerate(self.caches) if self.cache_device(index) == device)
        return DeviceCache(layers=kept, cells=self.settings.context, slots=self.settings.slots)


def as_loaded(model: Model) -> Model:
    """The network as llama.cpp computes it: without the windows it does not know."""
    if model.family in WINDOWED:
        return model
    runs = tuple(Run(count=run.count, layer=_unwindowed(run.layer)) for run in model.main.runs)
    return replace(model, stacks=(*model.stacks[:-1], replace(model.main, runs=runs)))


def _unwindowed(layer: Layer) -> Layer:
    mixer = layer.mixer
    return replace(layer, mixer=replace(mixer, window=None)) if isinstance(mixer, Attention) and mixer.window else layer


def weight_bytes(weight: Weight, *, card: bool) -> int:
    """What a buffer gives a tensor: on cards quantised rows are padded and tensors aligned [bytes]."""
    if not card:
        return round_up(weight.num_bytes, 32)
    padding = -weight.shape[-1] % MATRIX_ROW_PADDING if weight.shape else 0
    extra = row_bytes(weight.dtype, padding) if padding and weight.dtype in QUANTISED else 0
    return round_up(weight.num_bytes + extra, CUDA_ALIGNMENT)


def weights_on(context: Context, device: int) -> dict[str, list[Weight]]:
    """The weights of a device by their part of a layer; a tied head is a copy of the embedding on its card."""
    placement, names = context.placement, context.weights_by_name
    found = {part: [*weights] for part, weights in context.weights_by_device.get(device, {}).items()}
    tied = "output.weight" not in names and context.job.model.head is Head.LM
    if tied and placement.output == device != placement.host and "token_embd.weight" in names:
        found["output (tied)"] = [names["token_embd.weight"]]
    return found


def host_bytes(context: Context) -> int:
    """What the host holds: weights, cache, compute and output buffers [bytes]."""
    host = context.placement.host
    weights = sum(weight_bytes(weight, card=False) for kept in weights_on(context, host).values() for weight in kept)
    output = 4 * context.job.model.vocab * context.settings.slots
    projector = context.projector_bytes(host)
    return weights + context.cache_on(host).num_bytes + context.reserved.host + output + projector


def card_bytes(context: Context, card: int) -> int:
    """What a card holds, the CUDA context left out [bytes]."""
    return stored_bytes(context, card) + context.reserved.cards[card]


def stored_bytes(context: Context, card: int) -> int:
    """What a card holds but for the compute buffer: weights, cache and projector [bytes]."""
    weights = sum(weight_bytes(weight, card=True) for kept in weights_on(context, card).values() for weight in kept)
    return weights + context.cache_on(card).num_bytes + context.projector_bytes(card)
