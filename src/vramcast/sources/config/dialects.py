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

KEEPS_OWN_NAMES: Final = frozenset({"mamba2", "block_configs"})
"""Families in which one of the spellings means something else."""


def hugging_face_names(config: Mapping[str, object]) -> dict[str, object]:
    """The config under the names this package reads."""
    renamed = {key: value for key, value in config.items() if value is not None}
    if renamed.get("model_type") not in KEEPS_OWN_NAMES:
        for spelling, name in SPELLINGS.items():
            if spelling in renamed and name not in renamed:
                renamed[name] = renamed[spelling]
    if "model_type" not in renamed and isinstance(renamed.get("architecture"), str):
        renamed["model_type"] = renamed["architecture"]
        if "num_experts" not in renamed and "moe_intermediate_size" in renamed:
            renamed.setdefault("intermediate_size", renamed["moe_intermediate_size"])
    return renamed
