"""Which function predicts which kernel."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from truth.contract import Refused
from truth.rows.kernels.fused_linear import fused_linear_cross_entropy_peak, fused_linear_jsd_peak
from truth.rows.kernels.grpo import grpo_peak
from truth.rows.kernels.harness import Case
from truth.rows.kernels.layers import (
    fused_add_rms_norm_peak,
    gated_mlp_peak,
    layer_norm_peak,
    llama4_rope_peak,
    rms_norm_peak,
    rope_peak,
)
from truth.rows.kernels.losses import cross_entropy_peak
from truth.rows.kernels.megatron import (
    megatron_cross_entropy_peak,
    megatron_rms_norm_peak,
    megatron_swiglu_peak,
)
from truth.rows.kernels.moe import fused_moe_peak
from truth.rows.kernels.neighborhood import neighborhood_attention_peak
from truth.rows.kernels.pointwise import group_norm_peak, relu_squared_peak, softmax_peak
from truth.rows.kernels.preference import preference_peak
from truth.rows.kernels.probabilities import jsd_peak, kl_div_peak, tvd_peak
from truth.rows.kernels.sparse import sparsemax_peak
from truth.rows.kernels.tiled import tiled_mlp_peak

PEAKS: Final[dict[str, Callable[[Case], int]]] = {
    "cross_entropy": cross_entropy_peak,
    "fused_add_rms_norm": fused_add_rms_norm_peak,
    "fused_linear_cross_entropy": fused_linear_cross_entropy_peak,
    "fused_linear_cpo_loss": preference_peak,
    "fused_linear_grpo_loss_sequence": grpo_peak,
    "fused_linear_grpo_loss_token": grpo_peak,
    "fused_linear_jsd": fused_linear_jsd_peak,
    "fused_linear_orpo_loss": preference_peak,
    "fused_linear_simpo_loss": preference_peak,
    "fused_moe": fused_moe_peak,
    "fused_neighborhood_attention": neighborhood_attention_peak,
    "geglu": gated_mlp_peak,
    "group_norm": group_norm_peak,
    "jsd": jsd_peak,
    "kl_div": kl_div_peak,
    "layer_norm": layer_norm_peak,
    "llama4_rope": llama4_rope_peak,
    "megatron_cross_entropy": megatron_cross_entropy_peak,
    "megatron_rms_norm": megatron_rms_norm_peak,
    "megatron_swiglu": megatron_swiglu_peak,
    "relu_squared": relu_squared_peak,
    "rms_norm": rms_norm_peak,
    "rope": rope_peak,
    "softmax": softmax_peak,
    "sparsemax": sparsemax_peak,
    "swiglu": gated_mlp_peak,
    "tiled_geglu": tiled_mlp_peak,
    "tiled_swiglu": tiled_mlp_peak,
    "tvd": tvd_peak,
}


_CONVOLUTION: Final = "convolutions take cuDNN workspaces, which are not modelled"
_COMPILED: Final = "what torch.compile materializes of this chunked loss is not modelled"

REFUSED: Final[dict[str, str]] = {
    "multi_token_attention": _CONVOLUTION,
    "sparse_multi_token_attention": _CONVOLUTION,
    "distill_jsd_loss": _COMPILED,
    "distill_cosine_loss": _COMPILED,
    "kto_loss": _COMPILED,
    "embedding": "the script keeps more alive than one provider needs, and how much is not known",
}


def peak_bytes(case: Case) -> int:
    """The predicted peak [bytes].

    Raises: Refused for a kernel that is not modelled.
    """
    if case.kernel in REFUSED:
        raise Refused(REFUSED[case.kernel])
    if case.kernel not in PEAKS:
        raise Refused(f"kernel {case.kernel} is not modelled")
    return PEAKS[case.kernel](case)
