"""What `transformer_engine_torch` declares: enumerations, and functions by name.

[pybind] TransformerEngine transformer_engine/pytorch/csrc/extensions/pybind.cpp, commit d0067d0d
[helper] TransformerEngine transformer_engine/common/util/pybind_helper.h, commit d0067d0d
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum
from typing import Any, Final


def _enumeration(name: str, members: str) -> type[IntEnum]:
    make: Any = IntEnum
    kind: type[IntEnum] = make(name, {member: number for number, member in enumerate(members.split())})
    return kind


DTYPES: Final = _enumeration(
    "DType", "kByte kInt32 kFloat32 kFloat16 kBFloat16 kFloat8E4M3 kFloat8E5M2 kFloat4E2M1"
)
BACKENDS: Final = _enumeration("NVTE_Fused_Attn_Backend", "NVTE_No_Backend NVTE_F16_arbitrary_seqlen NVTE_FP8")
FORMATS: Final = "BSHD SBHD THD SBHD_2BSHD BSHD_2SBHD THD_2BSHD THD_2SBHD BHSD QKV_Format_NOT_SET"
LAYOUTS: Final = (
    "SB3HD SBH3D SBHD_SB2HD SBHD_SBH2D SBHD_SBHD_SBHD BS3HD BSH3D BSHD_BS2HD BSHD_BSH2D BSHD_BSHD_BSHD T3HD TH3D "
    "THD_T2HD THD_TH2D THD_THD_THD SBHD_BSHD_BSHD BSHD_SBHD_SBHD THD_BSHD_BSHD THD_SBHD_SBHD "
    "Paged_KV_BSHD_BSHD_BSHD Paged_KV_BSHD_SBHD_SBHD Paged_KV_SBHD_BSHD_BSHD Paged_KV_SBHD_SBHD_SBHD "
    "Paged_KV_THD_BSHD_BSHD Paged_KV_THD_SBHD_SBHD BHSD_BHSD_BHSD QKV_Layout_NOT_SET"
)


def _prefixed(name: str, members: str) -> type[IntEnum]:
    return _enumeration(name, " ".join(f"NVTE_{member}" for member in members.split()))


ENUMERATIONS: Final[Mapping[str, type[IntEnum]]] = {
    "CommOverlapAlgo": _enumeration("CommOverlapAlgo", (
        "BULK_OVERLAP_AG BULK_OVERLAP_RS SPLIT_PIPELINED_AG_P2P SPLIT_PIPELINED_RS SPLIT_PIPELINED_RS_P2P "
        "ATOMIC_GEMM_RS ATOMIC_GEMM_AG_P2P ATOMIC_GEMM_RS_P2P EXTERNAL_BULK_OVERLAP_AG"
    )),
    "CommOverlapType": _enumeration("CommOverlapType", "RS AG"),
    "DType": DTYPES,
    "FP8BwdTensors": _enumeration(
        "FP8BwdTensors", "GRAD_OUTPUT1 GRAD_INPUT1 GRAD_OUTPUT2 GRAD_INPUT2 GRAD_OUTPUT3 GRAD_INPUT3"
    ),
    "FP8FwdTensors": _enumeration("FP8FwdTensors", (
        "GEMM1_INPUT GEMM1_WEIGHT GEMM1_OUTPUT GEMM2_INPUT GEMM2_WEIGHT GEMM2_OUTPUT GEMM3_INPUT GEMM3_WEIGHT "
        "GEMM3_OUTPUT"
    )),
    "Float8BlockScaleTensorFormat": _enumeration("Float8BlockScaleTensorFormat", "GEMM_READY COMPACT INVALID"),
    "NVTE_Bias_Type": _prefixed("NVTE_Bias_Type", "NO_BIAS PRE_SCALE_BIAS POST_SCALE_BIAS ALIBI"),
    "NVTE_Fused_Attn_Backend": BACKENDS,
    "NVTE_Mask_Type": _prefixed("NVTE_Mask_Type", (
        "NO_MASK PADDING_MASK CAUSAL_MASK PADDING_CAUSAL_MASK CAUSAL_BOTTOM_RIGHT_MASK "
        "PADDING_CAUSAL_BOTTOM_RIGHT_MASK"
    )),
    "NVTE_QKV_Format": _prefixed("NVTE_QKV_Format", FORMATS),
    "NVTE_QKV_Layout": _prefixed("NVTE_QKV_Layout", LAYOUTS),
    "NVTE_Softmax_Type": _prefixed("NVTE_Softmax_Type", "VANILLA_SOFTMAX OFF_BY_ONE_SOFTMAX LEARNABLE_SOFTMAX"),
    "NVTEQBHistogramMode": _enumeration("NVTEQBHistogramMode", "TWO_KERNEL FUSED_ATOMIC"),
    "NVTERoutingMapFormat": _enumeration("NVTERoutingMapFormat", "BYTEMAP BITMAP_U8"),
    "NVTEScalingMode": _prefixed("NVTEScalingMode", (
        "DELAYED_TENSOR_SCALING MXFP8_1D_SCALING BLOCK_SCALING_1D BLOCK_SCALING_2D NVFP4_1D_SCALING INVALID_SCALING"
    )),
}
"""Their order means nothing here: the library compares names [helper]."""

_UNREAD: Final = (
    "CommOverlap CommOverlapHelper CommOverlapP2P bgrad_group_quantize bulk_overlap_ag_with_external_gemm "
    "compute_amax convert_bshd_to_thd convert_thd_to_bshd copy_data_ptrs_to_device copy_to_kv_cache "
    "create_nvshmem_tensor cusolvermp_ctx_create cusolvermp_ctx_destroy dropout_bwd dropout_fwd "
    "fp8_block_scaling_compute_partial_amax fp8_block_scaling_partial_cast fused_moe_aux_loss_bwd "
    "fused_moe_aux_loss_fwd fused_moe_aux_loss_fwd_graph_safe fused_multi_row_padding fused_multi_row_unpadding "
    "fused_qkv_rope_backward fused_qkv_rope_forward fused_score_for_moe_aux_loss_bwd fused_score_for_moe_aux_loss_fwd "
    "fused_topk_with_score_function_bwd fused_topk_with_score_function_fwd fused_topk_with_score_function_qb_fwd "
    "get_grouped_gemm_setup_workspace_size group_dequantize group_quantize group_requantize_inplace "
    "grouped_mlp_experimental grouped_swizzle_for_gemm init_nvshmem_backend moe_permute_bwd moe_permute_fwd "
    "moe_unpermute_bwd moe_unpermute_fwd multi_tensor_pad_last_dim multi_tensor_quantize "
    "multi_tensor_swizzle_scales_for_gemm_ multi_tensor_swizzle_scales_for_gemm_unchecked_ "
    "multi_tensor_transpose_to_bhsd mxfp8_scaling_compute_partial_amax mxfp8_scaling_partial_cast newton_schulz "
    "nvfp4_2d_compute_partial_amax nvfp4_2d_multi_tensor_transpose nvfp4_2d_partial_cast nvfp4_2d_scale_transpose "
    "nvfp4_compute_global_scale nvfp4_compute_per_block_scale nvfp4_data_transpose nvfp4_expand_scale_to_fp8 "
    "nvfp4_fused_scale nvfp4_group_quantize_with_amax nvfp4_multi_tensor_2d_partial_cast "
    "nvfp4_multi_tensor_compute_partial_amax nvfp4_multi_tensor_fused_scale nvfp4_quantize_with_amax nvshmem_finalize "
    "nvshmem_send_on_current_stream nvshmem_wait_on_current_stream scaled_clamped_dswiglu scaled_clamped_swiglu "
    "scaled_dsituglu scaled_dsrelu scaled_dswiglu scaled_situglu scaled_srelu scaled_swiglu splits_to_offsets "
    "splits_to_offsets_multi swap_first_dims swizzle_scales_for_gemm_ te_general_grouped_gemm "
    "te_general_grouped_gemm_for_discrete_in te_general_grouped_gemm_for_discrete_out "
    "te_general_grouped_gemm_for_grouped_tensor thd_copy_valid_tokens_from_per_split_to_rank_local "
    "thd_cp_rank_order_to_sequence_order thd_get_partitioned_indices thd_grad_correction thd_out_correction "
    "thd_read_half_tensor thd_read_second_half_lse thd_second_half_lse_correction thd_sequence_order_to_cp_rank_order"
)
UNREAD: Final = tuple(_UNREAD.split())
"""Functions and classes that raise [pybind]."""
