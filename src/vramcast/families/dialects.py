"""Other spellings of the same facts, rewritten to the names of Hugging Face configs.

- GPT-2's, OPT's, T5's and Bloom's own names (n_embd, ffn_dim, d_model, n_layer ...)
- reduced records keyed by "architecture" (context_length, active_experts; dense widths under moe_intermediate_size)
- the records of llm-analysis (hidden_dim, n_head, max_seq_len, ffn_embed_dim)
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

SPELLINGS: Final[dict[str, str]] = {
    "n_embd": "hidden_size",
    "n_embed": "hidden_size",
    "hidden_dim": "hidden_size",
    "d_model": "hidden_size",
    "dim": "hidden_size",
    "n_layer": "num_hidden_layers",
    "n_layers": "num_hidden_layers",
    "num_layers": "num_hidden_layers",
    "n_head": "num_attention_heads",
    "n_heads": "num_attention_heads",
    "num_heads": "num_attention_heads",
    "n_inner": "intermediate_size",
    "ffn_dim": "intermediate_size",
    "d_ff": "intermediate_size",
    "d_kv": "head_dim",
    "ffn_embed_dim": "intermediate_size",
    "ffn_hidden_size": "intermediate_size",
    "n_positions": "max_position_embeddings",
    "n_ctx": "max_position_embeddings",
    "max_seq_len": "max_position_embeddings",
    "max_sequence_length": "max_position_embeddings",
    "seq_length": "max_position_embeddings",
    "context_length": "max_position_embeddings",
    "active_experts": "num_experts_per_tok",
    "num_experts_per_token": "num_experts_per_tok",
    "padded_vocab_size": "vocab_size",
    "dtype": "torch_dtype",
    "hidden_dropout_prob": "hidden_dropout",
    "resid_pdrop": "hidden_dropout",
    "dropout": "hidden_dropout",
    "dropout_rate": "hidden_dropout",
    "attention_probs_dropout_prob": "attention_dropout",
    "attn_pdrop": "attention_dropout",
}
"""Another name -> the name used here. The name used here wins when both are present."""

OTHER_MEANINGS: Final[dict[str, dict[str, str]]] = {
    "mamba2": {"num_heads": "num_heads"},
    "distilbert": {"hidden_dim": "intermediate_size"},
}
"""Families in which a spelling means something else."""


def hugging_face_names(config: Mapping[str, object]) -> dict[str, object]:
    """The config under the names this package reads."""
    renamed = dict(config)
    family = renamed.get("model_type")
    spellings = SPELLINGS | OTHER_MEANINGS.get(family, {}) if isinstance(family, str) else SPELLINGS
    for spelling, name in spellings.items():
        if renamed.get(spelling) is not None and renamed.get(name) is None:
            renamed[name] = renamed[spelling]
    if renamed.get("model_type") is None and isinstance(renamed.get("architecture"), str):
        renamed["model_type"] = renamed["architecture"]
        if "num_experts" not in renamed and "moe_intermediate_size" in renamed:
            renamed.setdefault("intermediate_size", renamed["moe_intermediate_size"])
    return renamed
