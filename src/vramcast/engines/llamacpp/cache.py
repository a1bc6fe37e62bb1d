"""What llama.cpp keeps of its sequences: keys and values of every cell, compressed ones, recurrent states.

[kv] ggml-org/llama.cpp src/llama-kv-cache.cpp, llama-kv-cache-iswa.cpp, llama-memory-recurrent.cpp; [ik]
ikawrakow/ik_llama.cpp src/llama.cpp `llama_kv_cache_init`. The whole cache is allocated at start.
"""

from __future__ import annotations

from msgspec import Struct

from vramcast.domain.model import Attention, LinearAttention, Mamba, Mixer, Model, MultiLatentAttention
from vramcast.engines.llamacpp.graph.context import window_cells
from vramcast.engines.llamacpp.settings import Settings
from vramcast.states.cache import state_elements
from vramcast.states.ggml import row_bytes, type_of
from vramcast.units import ceil_div

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
