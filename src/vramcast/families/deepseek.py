"""Multi-head latent attention: DeepSeek V2, V3, V3.2, Kimi K2, GLM-5, MiniCPM 3.

Facts per family: transformers v5.23.0, src/transformers/models/<model_type>/modeling_*.py;
[V3.2] deepseek-ai/DeepSeek-V3.2-Exp inference/model.py (the lightning indexer).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final

from vramcast.domain.model import Mixer, Model, MultiLatentAttention
from vramcast.families.decoder import Traits, decoder
from vramcast.families.fields import Fields
from vramcast.families.moe import corrected, routed


def latent(fields: Fields, traits: Traits, index: int) -> Mixer:
    """Latent attention, with an indexer when the config names one."""
    del traits, index
    sparse = fields.has("index_topk")
    return MultiLatentAttention(
        num_heads=fields.count("num_attention_heads"),
        q_lora_rank=fields.maybe("q_lora_rank"),
        kv_lora_rank=fields.count("kv_lora_rank"),
        qk_nope_dim=fields.count("qk_nope_head_dim"),
        qk_rope_dim=fields.count("qk_rope_head_dim"),
        v_head_dim=fields.count("v_head_dim"),
        bias=fields.flag("attention_bias"),
        indexer_heads=fields.count("index_n_heads") if sparse else 0,
        indexer_dim=fields.count("index_head_dim") if sparse else 0,
    )


V3: Final = Traits(mixer=latent, channel=corrected, mtp=True, mtp_own_tables=True)

LATENT_TRAITS: Final[dict[str, Traits]] = {
    "deepseek_v2": Traits(mixer=latent, channel=routed),
    "deepseek_v3": V3,
    "deepseek_v32": V3,
    "kimi_k2": V3,
    "glm_moe_dsa": Traits(mixer=latent, channel=corrected, mtp=True),
    "glm4_moe_lite": Traits(mixer=latent, channel=corrected, mtp=True),
    "minicpm3": Traits(mixer=latent, tied=True),
}

BUILDERS: Final[dict[str, Callable[[Fields], Model]]] = {
    family: partial(decoder, traits=traits) for family, traits in LATENT_TRAITS.items()
}
