"""What one layer keeps of a sequence: keys and values that grow with it, recurrent states that do not.

Symbols:  G key/value heads   D head width   N state width
[GQA] Ainslie et al., arXiv:2305.13245: 2 G D elements a token.
[MLA] DeepSeek-V2, arXiv:2405.04434, section 2.1: one compressed vector and one rotary key a token, on every
tensor-parallel rank. [DSA] DeepSeek-V3.2: beside it one fp8 index key with an fp32 scale per 128 channels.
[Mamba] Gu and Dao, arXiv:2312.00752; [Mamba-2] arXiv:2405.21060; [GDN] arXiv:2412.06464; [KDA] arXiv:2510.26692.
"""

from __future__ import annotations

from typing import Final

from vramcast.domain.model import Attention, LinearAttention, Mamba, Mixer, MultiLatentAttention
from vramcast.errors import UnknownName
from vramcast.units import ceil_div

KV_BITS: Final[dict[str, tuple[int, int]]] = {
    "fp32": (1, 4), "bf16": (1, 2), "fp16": (1, 2), "f16": (1, 2), "f32": (1, 4),
    "fp8": (1, 1), "fp8_e4m3": (1, 1), "fp8_e5m2": (1, 1), "int8": (1, 1), "int4": (2, 1),
    "fp4": (16, 9), "nvfp4": (16, 9),  # an fp8 scale for every 16
    "q8_0": (32, 34), "q5_1": (32, 24), "q5_0": (32, 22), "q4_1": (32, 20), "q4_0": (32, 18), "iq4_nl": (32, 18),
}
"""Cache dtype -> (elements, bytes) of a block."""


def cache_bytes(elements: int, dtype: str) -> int:
    """So many cached elements [bytes]."""
    if dtype not in KV_BITS:
        raise UnknownName.of("cache dtype", dtype, KV_BITS)
    block, size = KV_BITS[dtype]
    return ceil_div(elements, block) * size


def local_kv_heads(num_kv_heads: int, tp: int) -> int:
    """Key/value heads of one rank: at least one, copied when there are fewer heads than ranks."""
    return max(1, ceil_div(num_kv_heads, tp))


def token_bytes(mixer: Mixer | None, *, tp: int = 1, k_dtype: str = "bf16", v_dtype: str | None = None) -> int:
    """What one more token adds to one layer's cache on one rank [bytes].

    Leaves out the window: how many tokens are kept is the cache's business.

    >>> from vramcast.domain.model import Attention
    >>> token_bytes(Attention(num_heads=32, num_kv_heads=8, head_dim=128))  # Llama-3.1-8B: 131,072 over 32 layers
    4096
    """
    match mixer:
        case Attention(shared_kv=True):
            return 0
        case Attention():
            heads = local_kv_heads(mixer.num_kv_heads, tp)
            keys = cache_bytes(heads * mixer.head_dim, k_dtype)
            return keys + cache_bytes(heads * (mixer.v_head_dim or mixer.head_dim), v_dtype or k_dtype)
        case MultiLatentAttention():
            latent = cache_bytes(mixer.kv_lora_rank + mixer.qk_rope_dim, k_dtype)
            index = mixer.indexer_dim + 4 * ceil_div(mixer.indexer_dim, 128) if mixer.indexer_dim else 0
            return latent + index
        case _:
            return 0


def state_elements(mixer: Mixer | None, *, tp: int = 1) -> tuple[int, int]:
    """Elements of the convolution and of the recurrent state of one sequence in one layer on one rank."""
    match mixer:
        case Mamba(version=1):
            inner = ceil_div(mixer.inner_dim, tp)
            return inner * (mixer.conv_kernel - 1), inner * mixer.state_dim
        case Mamba():
            groups = 2 * max(1, ceil_div(mixer.num_groups, tp)) * mixer.state_dim
            channels = ceil_div(mixer.inner_dim, tp) + groups
            return channels * (mixer.conv_kernel - 1), ceil_div(mixer.num_heads, tp) * mixer.head_dim * mixer.state_dim
        case LinearAttention():
            keys, values = ceil_div(mixer.num_k_heads, tp), ceil_div(mixer.num_v_heads, tp)
            channels = 2 * keys * mixer.k_head_dim + values * mixer.v_head_dim
            convolution = 0 if mixer.variant == "lightning" else channels * (mixer.conv_kernel - 1)
            return convolution, values * mixer.k_head_dim * mixer.v_head_dim
        case _:
            return 0, 0


def state_bytes(mixer: Mixer | None, *, tp: int = 1, conv_width: int = 2, state_width: int = 4) -> int:
    """The fixed state of one sequence in one layer on one rank [bytes]."""
    convolution, recurrent = state_elements(mixer, tp=tp)
    return convolution * conv_width + recurrent * state_width
