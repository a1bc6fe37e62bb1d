"""TransformerEngine: what the functions of its compiled module allocate. Its own Python runs as it is.

[gemm] TransformerEngine transformer_engine/pytorch/csrc/extensions/gemm.cpp `gemm`, commit d0067d0d
[norm] csrc/extensions/normalization.cpp; common/normalization/*/*_bwd_semi_cuda_kernel.cu `dgamma_part_bytes`
[cast] csrc/extensions/cast.cpp `quantize`, bias.cpp `bgrad_quantize`, `dact_dbias`
[tile] common/transpose/cast_transpose_fusion.cu `populate_cast_transpose_dbias_workspace_config`
[activation] csrc/extensions/activation.cpp `activation_helper`, `dactivation_helper`
[allocate] csrc/extensions/allocate.cpp `bulk_allocate`
[jit] transformer_engine/pytorch/jit.py, v2.20
[library] transformer_engine/common/__init__.py: libraries of the card are loaded unless NVTE_PROJECT_BUILDING is set
Left out: grouped products, mixture-of-experts kernels, overlap of products with communication; they raise.
Symbols:  B batch   S queries   H heads   D head width   T tokens of sequences one after the other
[attention] TransformerEngine transformer_engine/pytorch/csrc/extensions/attention.cpp: `fused_attn_fwd`,
`fused_attn_bwd`, commit d0067d0d
[choice] TransformerEngine transformer_engine/common/fused_attn/fused_attn.cpp `nvte_get_fused_attn_backend`
[softmax] TransformerEngine transformer_engine/pytorch/csrc/extensions/softmax.cpp
Left out: attention in 8 bits, pages of keys and values, conditions of [choice] on masks and windows.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Mapping, Sequence
from types import ModuleType
from typing import Any, Final

import torch

from vramcast.errors import Unsupported
from vramcast.tracing.call import Call, Rule
from vramcast.tracing.environment.cuda import CUDNN_VERSION
from vramcast.tracing.extensions import apex
from vramcast.tracing.extensions.stand_ins import Extension, Guard, kernel
from vramcast.tracing.extensions.te_tensors import (
    BACKENDS,
    DTYPES,
    ENUMERATIONS,
    UNREAD,
    Scaling,
    before_quantising,
    create,
    fill,
    needs_transposes,
    scaling_of,
    torch_dtype,
    transposed,
    update,
)
from vramcast.tracing.rules.layouts import FP32, chip, contiguous_copy, like
from vramcast.tracing.rules.reductions import reduce, sum_kernel
from vramcast.units import ceil_div, round_up

LEAST_WORKSPACE: Final = 1  # byte, where a kernel needs none
ESTIMATED: Final = "cuDNN's attention is taken to work in one fp32 gradient of the queries and their row sums"
NARROW: Final = (DTYPES.kFloat16, DTYPES.kBFloat16)  # type: ignore[attr-defined]
AMPERE, HOPPER, BLACKWELL = 80, 90, 100
HEAD_ALIGNMENT: Final = 8
WIDEST, WIDEST_HOPPER = 128, 256
PAGED: Final = "Paged"
PARTS: Final = re.compile(r"[23]")


def chosen(call: Call) -> Any:
    """The kernels of cuDNN that take the heads on this card [choice]."""
    if len(call.args) != 1:
        raise Unsupported("TransformerEngine before 2.20 asks for its attention otherwise; trace with 2.20 or later")
    (asked,) = call.args
    backend = BACKENDS.NVTE_No_Backend  # type: ignore[attr-defined]
    if int(asked.qkv_dtype) not in (int(dtype) for dtype in NARROW):
        return backend, "attention in 8 bits is not simulated"
    widths = asked.head_dim_qk, asked.head_dim_v
    widest = WIDEST_HOPPER if HOPPER <= call.device.sm < BLACKWELL else WIDEST
    if call.device.sm < AMPERE or max(widths) > widest or any(width % HEAD_ALIGNMENT for width in widths):
        return backend, f"heads of {widths} on a card of compute capability {call.device.sm / 10}"
    return BACKENDS.NVTE_F16_arbitrary_seqlen, ""  # type: ignore[attr-defined]


def fused_forward(call: Call) -> Any:
    """Output, state of the generator, workspace, log-sum-exps [attention `fused_attn_fwd`]."""
    layout, out_format, bias_type, softmax_type = (_name(call.args[index], kind) for index, kind in (
        (6, "NVTE_QKV_Layout"), (7, "NVTE_QKV_Format"), (9, "NVTE_Bias_Type"), (11, "NVTE_Softmax_Type"),
    ))
    query, value = call.args[16], call.args[18]
    bias, offset = call.args[26], call.args[27]
    if PAGED in layout or any(scaling_of(call.args[index]) is not Scaling.NONE for index in (24, 25)):
        raise Unsupported("{} of pages, or in 8 bits, is not known; trace with attention in 16 bits", call.name)
    sizes = dict(zip(_letters(layout), query.size(), strict=True))
    sizes["d"] = value.size(-1)
    out = call.empty([sizes[letter] for letter in out_format.lower()], dtype=query.dtype)
    state = call.empty((2,), dtype=torch.int64)
    call.scratch(LEAST_WORKSPACE, "cuDNN workspace")
    statistics = [sizes[letter] for letter in ("th" if "t" in sizes else "bhs")] + [1]
    kept = [out, call.empty(statistics, dtype=torch.float32)]
    if call.args[30]:  # return_max_logit
        kept.append(call.empty(statistics, dtype=torch.float32))
    kept.append(state)
    if bias is not None and bias_type not in ("NO_BIAS", "ALIBI"):
        kept.append(bias)
    if offset is not None and softmax_type != "VANILLA_SOFTMAX":
        kept.append(offset)
    return kept


def fused_backward(call: Call) -> Any:
    """Gradients, parts of one tensor where queries, keys, values were; workspace [attention `fused_attn_bwd`]."""
    layout, target, bias_type, softmax_type = (_name(call.args[index], kind) for index, kind in (
        (5, "NVTE_QKV_Layout"), (8, "NVTE_QKV_Layout"), (11, "NVTE_Bias_Type"), (13, "NVTE_Softmax_Type"),
    ))
    inputs, kept = call.args[19:22], call.args[25]
    query = inputs[0]
    gradients = _gradients(call, layout, target, inputs)
    of_bias = of_offset = None
    if bias_type not in ("NO_BIAS", "ALIBI"):
        of_bias = call.empty(kept[-1].size(), dtype=query.dtype)
    if softmax_type != "VANILLA_SOFTMAX":
        heads = query.size(_letters(layout).index("h"))
        of_offset = call.empty((1, heads, 1, 1), dtype=torch.float32)
    call.simulation.assumptions.note(ESTIMATED)
    call.scratch(query.numel() // query.size(-1) * (query.size(-1) + 1) * FP32, "cuDNN workspace")
    return *gradients, of_bias, of_offset


def _gradients(call: Call, layout: str, target: str, inputs: Any) -> list[torch.Tensor]:
    """Separate ones, or two or three in one, as `target` says: "SB3HD", "SBHD_SB2HD" ..."""
    shapes = []
    for index, tensor in enumerate(inputs):
        sizes = dict(zip(_letters(layout, of_keys=index > 0), tensor.size(), strict=True))
        shapes.append([sizes[letter] for letter in _letters(target, of_keys=index > 0)])
    made: list[torch.Tensor] = []
    for part in target.split("_"):
        count = next((int(digit) for digit in PARTS.findall(part)), 1)
        shape = shapes[len(made)]
        if count == 1:
            made.append(call.empty(shape, dtype=inputs[0].dtype))
            continue
        place = part.index(str(count))
        whole = call.empty((*shape[:place], count, *shape[place:]), dtype=inputs[0].dtype)
        made += whole.unbind(place)
    return made


def _letters(layout: str, *, of_keys: bool = False) -> str:
    """Dimensions of the queries, or of the keys: "sbhd"."""
    parts = layout.split("_")
    return PARTS.sub("", parts[min(1, len(parts) - 1) if of_keys else 0]).lower()


def _name(value: Any, kind: str) -> str:
    return ENUMERATIONS[kind](int(value)).name.removeprefix("NVTE_")


def softmax(call: Call) -> Any:
    """Probabilities, or their gradient; copies of what is not contiguous [softmax]."""
    for tensor in call.args[:2]:
        if isinstance(tensor, torch.Tensor):
            contiguous_copy(call, tensor)
    return call.empty(call.args[0].size(), dtype=call.args[0].dtype)


def rotated(call: Call) -> Any:
    """A tensor like the first [csrc/extensions/apply_rope.cpp `fused_rope_forward`, `fused_rope_backward`]."""
    return call.empty(call.args[0].size(), dtype=call.args[0].dtype)


ATTENTION_KERNELS: Final[Mapping[str, Rule]] = {
    "fused_attn_bwd": fused_backward, "fused_attn_fwd": fused_forward, "fused_rope_backward": rotated,
    "fused_rope_forward": rotated, "get_fused_attn_backend": chosen,
    **{
        f"scaled_{kind}softmax_{way}": softmax
        for kind in ("", "masked_", "upper_triang_masked_", "aligned_causal_masked_")
        for way in ("backward", "forward")
    },
}


MODULE: Final = "transformer_engine_torch"
SUMMED_ROWS: Final = 256  # of a tile at most, whose sums wait for those of the others [tile]
CUBLASLT_VERSION: Final = 130_000
STREAMS: Final = 4  # for grouped products
NORM_ESTIMATED: Final = "backward of TransformerEngine's norms is taken to run one block a multiprocessor"


def product(call: Call) -> Any:
    """Output, gradient of the bias, what goes into GELU; the caller brings the workspace [gemm]."""
    a, trans_a, b, trans_b, out, quantizer, dtype, bias, _, gelu, _, grad = call.args[:12]
    rows, columns = tuple(a.size()), tuple(b.size())
    shape = ((columns[-1],) if trans_b else columns[:-1]) + ((torch.Size(rows[:-1]).numel(),) if trans_a else rows[-1:])
    dtype = torch_dtype(dtype) if dtype is not None else a.dtype
    is_written = out is not None
    out = out if is_written else create(call, quantizer, shape, dtype)
    fused = scaling_of(quantizer) is Scaling.DELAYED and not all(isinstance(x, torch.Tensor) for x in (a, b))
    if quantizer is not None and not fused:
        call.scratch(torch.Size(shape).numel() * dtype.itemsize, "product before it is quantised")
    of_bias = call.empty((columns[-1],), dtype=dtype) if bias is not None and grad else None
    before_gelu = call.empty(shape, dtype=dtype if bias is None else bias.dtype) if gelu and not grad else None
    if quantizer is not None and not fused:
        fill(call, quantizer)
    if is_written and isinstance(out, torch.Tensor):
        call.simulation.values.lose(out)
    return [out, of_bias, before_gelu, call.kwargs.get("extra_output")]


def norm(call: Call) -> Any:
    """Statistics, then the output, quantised where asked for [norm `layernorm_fwd`, `rmsnorm_fwd`]."""
    is_layer = call.name.endswith("layernorm_fwd")
    x = call.args[0]
    out, quantizer, dtype = call.args[4:7] if is_layer else call.args[3:6]
    rows = x.numel() // x.size(-1)
    statistics = [call.empty((rows,), dtype=torch.float32) for _ in range(2 if is_layer else 1)]
    out = create(call, quantizer, tuple(x.size()), dtype) if out is None else out
    before_quantising(call, quantizer, tuple(x.size()), torch_dtype(dtype))
    call.scratch(LEAST_WORKSPACE, "workspace")
    return [out, *statistics] if is_layer else [out, None, *statistics]


def norm_backward(call: Call) -> Any:
    """Gradients of input, weight, bias; partial sums of the latter, a row a block [norm `layernorm_bwd`]."""
    is_layer = call.name.endswith("layernorm_bwd")
    grad, x = call.args[:2]
    weight = call.args[4 if is_layer or call.name.endswith("_add") else 3]
    contiguous_copy(call, grad)
    contiguous_copy(call, x)
    of_input = like(call, x, contiguous=True)
    of_weights = [like(call, weight) for _ in range(2 if is_layer else 1)]
    call.simulation.assumptions.note(NORM_ESTIMATED)
    blocks = chip(call).multiprocessors
    call.scratch(len(of_weights) * blocks * x.size(-1) * FP32, "sums of the gradient of weights")
    return [of_input, *of_weights]


def quantised(call: Call) -> Any:
    """8-bit numbers of a contiguous tensor, new or where others were [cast `quantize`]."""
    x, quantizer, output = call.arg(0, "tensor"), call.arg(1, "quantizer"), call.arg(2, "output")
    contiguous_copy(call, x)
    output = create(call, quantizer, tuple(x.size()), x.dtype) if output is None else update(call, quantizer, output)
    fill(call, quantizer)
    return output


def split_quantised(call: Call) -> Any:
    """Each part of a tensor by a quantizer of its own [cast `split_quantize`], without the buffers that parts share."""
    x, sizes, quantizers = call.args[:3]
    parts = x.split(list(sizes))
    made = [
        create(call, quantizer, tuple(part.size()), x.dtype)
        for part, quantizer in zip(parts, quantizers, strict=True)
    ]
    for quantizer in quantizers:
        fill(call, quantizer)
    return made


def dequantised(call: Call) -> Any:
    """A plain tensor [cast `dequantize`]."""
    return call.empty(tuple(call.args[0].size()), dtype=torch_dtype(call.args[1]))


def empty_quantised(call: Call) -> Any:
    """Parts that nothing is written to yet [cast `create_empty_quantized_tensor`]."""
    quantizer, shape, dtype = call.args[:3]
    return create(call, quantizer, tuple(shape), dtype)


def bias_gradient(call: Call) -> Any:
    """The gradient of the bias, and that of the output in 8 bits [cast `bgrad_quantize`]."""
    grad, quantizer = call.args
    if not grad.is_contiguous():
        grad = call.empty(grad.size(), dtype=grad.dtype)
    of_bias = call.empty((grad.size(-1),), dtype=grad.dtype)
    scaling = scaling_of(quantizer)
    made = grad if scaling is Scaling.NONE else create(call, quantizer, tuple(grad.size()), grad.dtype)
    both = scaling is Scaling.DELAYED and quantizer.rowwise_usage and quantizer.columnwise_usage
    if both or (scaling is Scaling.DELAYED and not needs_transposes(call)):
        _tile_sums(call, grad)
    else:
        _summed(call, grad, of_bias)
        fill(call, quantizer)
    return [of_bias, made]


def _summed(call: Call, grad: torch.Tensor, of_bias: torch.Tensor) -> None:
    rows = torch.empty((grad.numel() // grad.size(-1), grad.size(-1)), dtype=grad.dtype, device="meta")
    reduce(call, rows, (0,), of_bias, sum_kernel(grad.dtype, grad.dtype))


def _tile_sums(call: Call, x: torch.Tensor) -> None:
    rows = x.numel() // x.size(-1)
    call.scratch(ceil_div(rows, SUMMED_ROWS) * x.size(-1) * FP32, "sums of tiles")


def activation(call: Call) -> Any:
    """Values, of gated ones half as many as came in [activation `activation_helper`]."""
    x, quantizer = call.args[:2]
    name = call.name.rpartition(".")[2]
    contiguous_copy(call, x)
    shape = (*x.size()[:-1], x.size(-1) // (2 if name.endswith("glu") else 1))
    out = create(call, quantizer, shape, x.dtype)
    before_quantising(call, quantizer, shape, x.dtype)
    return out


def activation_backward(call: Call) -> Any:
    """The gradient of what came in [activation `dactivation_helper`]."""
    grad, x, quantizer = call.args[:3]
    contiguous_copy(call, grad)
    contiguous_copy(call, x)
    out = create(call, quantizer, tuple(x.size()), x.dtype)
    before_quantising(call, quantizer, tuple(x.size()), x.dtype)
    return out


def activation_and_bias_backward(call: Call) -> Any:
    """The gradients of what came in and of the bias before it [cast `dact_dbias`]."""
    grad, x, quantizer = call.args[:3]
    contiguous_copy(call, grad)
    contiguous_copy(call, x)
    out = create(call, quantizer, tuple(x.size()), grad.dtype)
    of_bias = call.empty((x.size(-1),), dtype=grad.dtype)
    if scaling_of(quantizer) is Scaling.DELAYED:
        _tile_sums(call, x)
        return [of_bias, out]
    if scaling_of(quantizer) is Scaling.CURRENT:
        before_quantising(call, quantizer, tuple(x.size()), grad.dtype)
    else:
        call.scratch(x.numel() * grad.dtype.itemsize, "gradient before its sum")
    _summed(call, x, of_bias)
    return [of_bias, out]


def transpose(call: Call) -> Any:
    """8-bit numbers, the last dimension first [csrc/extensions/transpose.cpp `fp8_transpose`]."""
    out = call.kwargs.get("out")
    return call.empty(transposed(tuple(call.args[0].size())), dtype=torch.uint8) if out is None else out


def together(call: Call) -> Any:
    """Tensors in one buffer [allocate]."""
    shapes, dtypes = call.arg(0, "shapes"), call.arg(1, "dtypes")
    alignments = call.arg(3, "alignments") or [dtype.itemsize for dtype in dtypes]
    places, end = [], 0
    for shape, dtype, alignment in zip(shapes, dtypes, alignments, strict=True):
        start = round_up(end, alignment)
        places.append(start)
        end = start + torch.Size(shape).numel() * dtype.itemsize
    most = max(alignments, default=1)
    whole = call.empty((end + most if most > 1 else end,), dtype=torch.uint8)
    return [
        _part(whole, start, shape, dtype) for start, shape, dtype in zip(places, shapes, dtypes, strict=True)
    ]


def _part(whole: torch.Tensor, start: int, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
    num_bytes = torch.Size(shape).numel() * dtype.itemsize
    start = start // dtype.itemsize * dtype.itemsize
    return whole[start : start + num_bytes].view(dtype).view(list(shape))


def nothing(call: Call) -> None:
    """Written in place: scales, largest values, weights and states of optimizers."""
    for value in call.args:
        for tensor in value if isinstance(value, (list, tuple)) else (value,):
            if isinstance(tensor, torch.Tensor) and tensor.numel() > 1:
                call.simulation.values.lose(tensor)


class Meta:
    """Scales and largest values of a module, by name [pybind `FP8TensorMeta`]."""

    scale: Any = None
    scale_inv: Any = None
    amax_history: Any = None


def without_libraries(module: ModuleType) -> None:
    """`transformer_engine.common`: the libraries of the card are not loaded, the stand-in is [library]."""
    module.__dict__["load_framework_extension"] = lambda _framework: importlib.import_module(MODULE)


def fused_functions(module: ModuleType) -> None:
    """`transformer_engine.pytorch.jit`: what it compiles into one kernel allocates its results alone [jit]."""
    for name in FUSED:
        if name in vars(module):
            setattr(module, name, _fused(name, getattr(module, name)))


def _fused(name: str, function: Any) -> Any:
    plain = getattr(function, "__wrapped__", function)

    def results(call: Call) -> Any:
        out = plain(*call.args, **call.kwargs)
        call.simulation.adopt(out, call.device, call.name)
        return out

    run = kernel(f"{MODULE}.{name}", results)

    def call_or_record(*args: Any, **kwargs: Any) -> Any:
        tensors = (value for value in (*args, *kwargs.values()) if isinstance(value, torch.Tensor))
        if torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors):
            return function(*args, **kwargs)
        return run(*args, **kwargs)

    return call_or_record


FUSED: Final = (
    "bgrad_dgelu_fused_", "bias_dropout_add_fused_inference_", "bias_gelu_fused_", "dgelu_fused_", "gelu_fused_",
    "l2normalization_backward_fused_", "l2normalization_fused_", "l2normalization_fwd_fused_",
)
"""Each is point by point, with one sum at most."""
ACTIVATIONS: Final = ("geglu", "gelu", "glu", "qgeglu", "qgelu", "reglu", "relu", "silu", "sreglu", "srelu", "swiglu")
GATED_MORE: Final = ("clamped_swiglu", "situglu")
GATED_MORE_BACKWARD: Final = ("clamped_dswiglu", "dsituglu")
UPDATES: Final = (
    "multi_tensor_adam", "multi_tensor_adam_capturable", "multi_tensor_adam_capturable_master", "multi_tensor_adam_fp8",
    "multi_tensor_adam_param_remainder", "multi_tensor_compute_scale_and_scale_inv",
    "multi_tensor_compute_scale_inv_e8m0", "multi_tensor_scale", "multi_tensor_scale_tensor", "multi_tensor_sgd",
)
KERNELS: Final[Mapping[str, Rule]] = {
    **ATTENTION_KERNELS,
    **dict.fromkeys((*ACTIVATIONS, *GATED_MORE), activation),
    **dict.fromkeys((*(f"d{name}" for name in ACTIVATIONS), *GATED_MORE_BACKWARD), activation_backward),
    **dict.fromkeys(
        (f"dbias_d{name}" for name in ("gelu", "qgelu", "relu", "silu", "srelu")), activation_and_bias_backward
    ),
    **dict.fromkeys(UPDATES, apex.updated),
    "bgrad_quantize": bias_gradient, "bulk_allocate": together, "create_empty_quantized_tensor": empty_quantised,
    "dequantize": dequantised, "fp8_transpose": transpose, "fused_amax_and_scale_update_after_reduction": nothing,
    "generic_gemm": product, "layernorm_bwd": norm_backward, "layernorm_fwd": norm, "multi_tensor_l2norm": apex.norms,
    "multi_tensor_unscale_l2norm": apex.norms, "quantize": quantised, "rmsnorm_bwd": norm_backward,
    "rmsnorm_bwd_add": norm_backward, "rmsnorm_fwd": norm, "split_quantize": split_quantised,
}
VALUES: Final[Mapping[str, Any]] = {
    **ENUMERATIONS,
    "FP8TensorMeta": Meta, "device_supports_multicast": lambda *_: False,
    "get_cublasLt_version": lambda: CUBLASLT_VERSION, "get_cudnn_version": lambda: CUDNN_VERSION,
    "get_num_cublas_streams": lambda: STREAMS, "get_stream_priority_range": lambda *_: (-5, 0),
    "ubuf_built_with_mpi": lambda: False,
}
EXTENSIONS: Final[Mapping[str, Extension]] = {
    MODULE: Extension("transformer_engine", "pytorch", KERNELS, VALUES, UNREAD)
}
GUARDED: Final[Mapping[str, Guard]] = {
    "transformer_engine.common": without_libraries, "transformer_engine.pytorch.jit": fused_functions,
}
