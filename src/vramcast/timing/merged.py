"""Products that engines compute in one kernel."""

from __future__ import annotations

from typing import Final

FUSED: Final[dict[str, str]] = {
    "attention.k": "attention.q", "attention.v": "attention.q", "attention.kv_a": "attention.q_a",
    "mlp.up": "mlp.gate", "moe.shared.up": "moe.shared.gate", "moe.experts.up": "moe.experts.gate",
    "linear_attention.k": "linear_attention.q",
    "linear_attention.v": "linear_attention.q", "linear_attention.gate": "linear_attention.q",
    "linear_attention.decay": "linear_attention.beta",
}
"""Products that engines compute in one kernel with another, where the layer has that other one."""
