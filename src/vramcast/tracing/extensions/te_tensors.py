"""What `transformer_engine_torch` declares, enumerations and functions, and its 8-bit tensors.

[pybind] TransformerEngine transformer_engine/pytorch/csrc/extensions/pybind.cpp, commit d0067d0d
[helper] TransformerEngine transformer_engine/common/util/pybind_helper.h, commit d0067d0d
[quantizer] TransformerEngine transformer_engine/pytorch/csrc/quantizer.cpp: `create_tensor`,
`convert_and_update_tensor`, `create_unquantized_tensor_with_amax`, commit d0067d0d
Left out: scales by block (MXFP8, NVFP4, 128 x 128), which raise.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from enum import Enum, IntEnum
from typing import Any, Final

import torch

from vramcast.errors import Unsupported
from vramcast.tracing.call import Call


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


Shape = Sequence[int]
PACKAGE: Final = "transformer_engine.pytorch.tensor"
STATISTIC: Final = 4  # a scale or a largest value in fp32
TN_ONLY_BELOW: Final = 100
"""Compute capability x 10 from which products of 8-bit numbers need no transposed copies [quantizer
`nvte_is_non_tn_fp8_gemm_supported`]: data center cards of Blackwell, not those for desktops (12.x)."""
DESKTOP: Final = range(120, 130)
TORCH: Final = {
    "kByte": torch.uint8, "kInt32": torch.int32, "kFloat32": torch.float32, "kFloat16": torch.float16,
    "kBFloat16": torch.bfloat16, "kFloat8E4M3": torch.float8_e4m3fn, "kFloat8E5M2": torch.float8_e5m2,
}


class Scaling(Enum):
    """How a quantizer finds its scale."""

    NONE = ""
    DELAYED = "Float8Quantizer"  # from the largest values of steps before
    CURRENT = "Float8CurrentScalingQuantizer"  # from this tensor's largest value


def scaling_of(quantizer: Any) -> Scaling:
    """Raises: Unsupported for quantizers whose tensors nobody has described here."""
    if quantizer is None:
        return Scaling.NONE
    name = type(quantizer).__name__
    try:
        return Scaling(name)
    except ValueError:
        raise Unsupported(
            "{} of TransformerEngine is not known; trace with DelayedScaling() or Float8CurrentScaling()", name
        ) from None


def torch_dtype(dtype: Any) -> torch.dtype:
    """Of one of its own types, or of torch's."""
    return dtype if isinstance(dtype, torch.dtype) else TORCH[DTYPES(int(dtype)).name]


def needs_transposes(call: Call) -> bool:
    """Whether products of 8-bit numbers want both operands along their sums."""
    return call.device.sm < TN_ONLY_BELOW or call.device.sm in DESKTOP


def create(call: Call, quantizer: Any, shape: Shape, dtype: Any) -> Any:
    """A tensor that nothing is written to yet, plain or quantised [quantizer `create_tensor`]."""
    scaling, dtype = scaling_of(quantizer), torch_dtype(dtype)
    if scaling is Scaling.NONE:
        return call.empty(shape, dtype=dtype)
    scale = call.empty((1,), dtype=torch.float32) if scaling is Scaling.DELAYED else None
    transposes = needs_transposes(call)
    data = call.empty(shape, dtype=torch.uint8) if quantizer.rowwise_usage or not transposes else None
    transpose = None
    if quantizer.columnwise_usage and transposes:
        transpose = call.empty(transposed(shape), dtype=torch.uint8)
    if scale is None:
        scale = call.empty((1,), dtype=torch.float32)
    parts = {
        "data": data, "fp8_scale_inv": scale, "fp8_dtype": quantizer.dtype, "data_transpose": transpose,
        "quantizer": quantizer,
    }
    if quantizer.internal:
        return _class("storage.float8_tensor_storage", "Float8TensorStorage")(**parts, fake_dtype=dtype)
    strides = torch.empty(shape, device="meta").stride()
    return _class("float8_tensor", "Float8Tensor")(
        **parts, shape=list(shape), stride=list(strides), dtype=dtype, device=call.device.torch_device
    )


def update(call: Call, quantizer: Any, tensor: Any) -> Any:
    """A tensor that is there, with the parts that the quantizer wants now [quantizer `convert_and_update_tensor`]."""
    if scaling_of(quantizer) is Scaling.NONE:
        return tensor
    transposes = needs_transposes(call)
    wants_data = quantizer.rowwise_usage or not transposes
    wants_transpose = quantizer.columnwise_usage and transposes
    shape = tuple(tensor._data.size()) if tensor._data is not None else untransposed(tensor._transpose.size())
    if not wants_data:
        tensor._data = None
    elif tensor._data is None:
        tensor._data = call.empty(shape, dtype=torch.uint8)
    if not wants_transpose:
        tensor._transpose = None
    elif tensor._transpose is None:
        tensor._transpose = call.empty(transposed(shape), dtype=torch.uint8)
    tensor._transpose_invalid = not wants_transpose
    tensor._fp8_dtype = quantizer.dtype
    return tensor


def fill(call: Call, quantizer: Any) -> None:
    """Quantisation itself: today's scale needs the largest value first [quantizer `quantize`]."""
    if scaling_of(quantizer) is Scaling.CURRENT:
        for what in ("largest value", "scale"):
            call.scratch(STATISTIC, what)


def before_quantising(call: Call, quantizer: Any, shape: Shape, dtype: torch.dtype) -> None:
    """What a kernel writes where it cannot write 8-bit numbers itself [quantizer]."""
    if scaling_of(quantizer) is Scaling.CURRENT:
        call.scratch(STATISTIC, "largest value")
        call.scratch(torch.Size(shape).numel() * dtype.itemsize, "values before they are quantised")
        call.scratch(STATISTIC, "scale")


def transposed(shape: Shape) -> tuple[int, ...]:
    return (*shape[-1:], *shape[:-1])


def untransposed(shape: Shape) -> tuple[int, ...]:
    return (*shape[1:], *shape[:1])


def _class(module: str, name: str) -> Any:
    return getattr(sys.modules[f"{PACKAGE}.{module}"], name)
