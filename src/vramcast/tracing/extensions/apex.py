"""Apex: what the functions of its compiled modules allocate. Its own Python runs as it is.

[amp] apex csrc/amp_C_frontend.cpp and csrc/multi_tensor_*.cu, commit 6424da3b: updates write in place
[norm] `multi_tensor_l2norm_cuda` of csrc/multi_tensor_l2norm_kernel.cu:285
[lamb] `multi_tensor_lamb_cuda` of csrc/multi_tensor_lamb.cu, `multi_tensor_lamb_mp_cuda` of multi_tensor_lamb_mp.cu
[layer] csrc/layer_norm_cuda.cpp:79-250; `HostLayerNormGradient` of csrc/layer_norm_cuda_kernel.cu:848
[softmax] csrc/megatron/*softmax*.cpp and *.cu
[rope] csrc/megatron/fused_rotary_positional_embedding_cuda.cu
[dense] csrc/fused_dense.cpp:25-158
[mlp] csrc/mlp.cpp:25-107; `get_mlp_bp_workspace_in_bytes` of csrc/mlp_cuda.cu:980
[loss] `host_softmax_xentropy` of apex/contrib/csrc/xentropy/xentropy_kernel.cu:489
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import torch

from vramcast.tracing.call import Call, Rule
from vramcast.tracing.extensions.stand_ins import Extension
from vramcast.tracing.rules.blas import take_workspace
from vramcast.tracing.rules.layouts import FP32, accumulator, chip, contiguous_copy, like
from vramcast.units import ceil_div

NORM_SUMS: Final = 320  # partial sums of a norm, one a block [norm]
GRADIENT_ROWS: Final = 16  # partial sums of the gradient of a norm's weight [layer `part_size`]
LT_WORKSPACE_ELEMENTS: Final = 1 << 22  # of the input's type [dense] [mlp]
MLP_COLUMNS: Final = (32, 128)  # of blocks that sum the gradient of a bias, of one and of four numbers a thread [mlp]
MLP_ROWS: Final = 256  # of such a block at least [mlp]
MLP_BLOCKS: Final = 4  # of them a multiprocessor [mlp `get_biasAddRelu_bprop_grid_size`]
SOFTMAX_THREADS: Final = 128
WARP: Final = 32


def updated(call: Call) -> None:
    """Tensors are written in place, nothing is allocated [amp]."""
    for tensors in call.arg(2, "tensor_lists"):
        for tensor in tensors:
            call.simulation.values.lose(tensor)


def norms(call: Call) -> Any:
    """The norm of all tensors and, where asked for, that of each: sums of blocks come first [norm]."""
    return _norms(call, call.arg(0, "chunk_size"), call.arg(2, "tensor_lists")[0], bool(call.args[-1] is True))


def _norms(call: Call, chunk: int, tensors: Sequence[torch.Tensor], each: bool) -> tuple[torch.Tensor, torch.Tensor]:
    scratch = [call.scratch(NORM_SUMS * FP32, "sums of blocks")]
    if each:
        chunks = max(ceil_div(tensor.numel(), chunk) for tensor in tensors)
        scratch.append(call.scratch(len(tensors) * chunks * FP32, "sums of chunks"))
    of_each = call.empty((len(tensors) if each else 0,), dtype=torch.float32)
    of_all = call.empty((1,), dtype=torch.float32)
    for block in reversed(scratch):
        call.release(block)
    return of_all, of_each


def novograd(call: Call) -> None:
    """Norms of all gradients go where they are kept [amp `multi_tensor_norm_out_cuda`]."""
    kept = _norms(call, call.arg(0, "chunk_size"), call.arg(2, "tensor_lists")[0], each=True)
    del kept
    call.simulation.values.lose(call.arg(3, "grad_norms"))
    updated(call)


def lamb(call: Call) -> None:
    """Norms of weights and of updates, then the update in place [lamb]."""
    gradients, weights = call.arg(2, "tensor_lists")[:2]
    kept = [_norms(call, call.arg(0, "chunk_size"), tensors, each=True) for tensors in (weights, gradients)]
    del kept
    updated(call)


def _norm(count: int, *, mixed: bool = False) -> Rule:
    """Output and so many statistics in fp32: means, reciprocal deviations or roots [layer `layer_norm_affine`].

    Of mixed types the output has that of the weight [layer `layer_norm_affine_mixed_dtypes`].
    """

    def norm(call: Call) -> Any:
        x, shape = call.args[:2]
        out = like(call, x, dtype=call.args[2].dtype if mixed else None)
        rows = x.numel() // torch.Size(shape).numel()
        return out, *(call.empty((rows,), dtype=accumulator(x.dtype)) for _ in range(count))

    return norm


def layer_norm_backward(call: Call) -> Any:
    """Gradients of input, weight and bias; sixteen partial sums of the latter two [layer]."""
    return _norm_backward(call, call.args[3], {"weight": call.args[5], "bias": call.args[6]})


def rms_norm_backward(call: Call) -> Any:
    """Gradients of input and weight; sixteen partial sums of the latter [layer]."""
    return _norm_backward(call, call.args[2], {"weight": call.args[4]})


def _norm_backward(call: Call, x: torch.Tensor, weights: Mapping[str, torch.Tensor]) -> Any:
    gradients = like(call, x), *(like(call, weight) for weight in weights.values())
    for name in weights:
        sums = GRADIENT_ROWS * weights["weight"].numel() * accumulator(x.dtype).itemsize
        call.scratch(sums, f"sums of the gradient of {name}")
    return gradients


def softmax(call: Call) -> Any:
    """Probabilities [softmax]."""
    x = call.args[0]
    return call.empty(x.size(), dtype=x.dtype)


def masked_softmax(call: Call) -> Any:
    """Of contiguous scores and masks; copies where they are not [softmax]."""
    for tensor in call.args[:2]:
        contiguous_copy(call, tensor)
    return softmax(call)


def softmax_in_place(call: Call) -> Any:
    """The gradient is written where that of the output lies, or its contiguous copy [softmax]."""
    grad, out = call.args[:2]
    if not grad.is_contiguous():
        grad = call.empty(grad.size(), dtype=grad.dtype)
    contiguous_copy(call, out)
    call.simulation.values.lose(grad)
    return grad


def rope(call: Call) -> Any:
    """A tensor like the first; (S, B, H, D) ones are laid out (B, S, H, D) where asked for [rope]."""
    x = call.args[0]
    if call.args[-1] is not True:
        return call.empty(x.size(), dtype=x.dtype)
    tokens, batch, heads, width = x.size()
    return call.empty((batch, tokens, heads, width), dtype=x.dtype).transpose(0, 1)


def rope_of_images(call: Call) -> Any:
    """(B, I x J, H, D) from images of I x J patches [rope `fwd_2d_cuda`]."""
    x = call.args[0]
    size = (x.size(0), x.size(1) * x.size(2), *x.size()[3:]) if x.dim() > len("bshd") else x.size()
    return call.empty(size, dtype=x.dtype)


def dense(call: Call) -> Any:
    """Output; a workspace for cublasLt [dense `linear_bias_forward`]."""
    x, weight = call.args[:2]
    out = call.empty((x.size(0), weight.size(0)), dtype=x.dtype)
    _lt_workspace(call, x)
    return [out]


def dense_backward(call: Call) -> Any:
    """Gradients of weight, bias, input [dense `linear_bias_backward`]."""
    x, weight = call.args[:2]
    of_weight = call.empty(weight.size(), dtype=x.dtype)
    of_bias = call.empty((weight.size(0),), dtype=x.dtype)
    of_input = call.empty(x.size(), dtype=x.dtype)
    _lt_workspace(call, x)
    return [of_input, of_weight, of_bias]


def dense_gelu_dense(call: Call) -> Any:
    """Hidden output, what goes into GELU, output [dense `linear_gelu_linear_forward`]."""
    x, first, _, second = call.args[:4]
    hidden, before = (call.empty((x.size(0), first.size(0)), dtype=x.dtype) for _ in range(2))
    out = call.empty((x.size(0), second.size(0)), dtype=x.dtype)
    _lt_workspace(call, x)
    return [hidden, out, before]


def dense_gelu_dense_backward(call: Call) -> Any:
    """Gradients of both weights, both biases, input; that of the hidden output meanwhile [dense]."""
    x, _, hidden, first, second = call.args[:5]
    sizes = (first.size(), second.size(), first.size()[:1], second.size()[:1], x.size())
    w1, w2, b1, b2, of_input = (call.empty(size, dtype=x.dtype) for size in sizes)
    call.scratch(hidden.numel() * x.dtype.itemsize, "gradient of the hidden output")
    _lt_workspace(call, x)
    return [of_input, w1, b1, w2, b2]


def _lt_workspace(call: Call, x: torch.Tensor) -> None:
    call.scratch(LT_WORKSPACE_ELEMENTS * x.dtype.itemsize, "cublasLt workspace")
    take_workspace(call)


def mlp(call: Call) -> Any:
    """Output, outputs of all layers [mlp `mlp_forward`]."""
    use_bias, _, inputs = call.args
    x, widths = inputs[0], _widths(use_bias, inputs)
    out = call.empty((x.size(0), widths[-1]), dtype=x.dtype)
    kept = call.empty((x.size(0) * sum(widths),), dtype=x.dtype)
    _lt_workspace(call, x)
    return [out, kept]


def mlp_backward(call: Call) -> Any:
    """Gradients of everything that went in; two gradients a layer, sums of biases' gradients, counters [mlp]."""
    use_bias, _, grad, _, inputs = call.args
    x, widths = inputs[0], _widths(use_bias, inputs)
    gradients = [call.empty(tensor.size(), dtype=tensor.dtype) for tensor in inputs]
    sums = max(width * _row_blocks(call, x.size(0), width, columns) for width in widths for columns in MLP_COLUMNS)
    num_bytes = 2 * x.size(0) * sum(widths) * x.dtype.itemsize + (sums + max(widths)) * FP32
    call.scratch(num_bytes // x.dtype.itemsize * x.dtype.itemsize, "gradients of layers")
    contiguous_copy(call, grad)
    take_workspace(call)
    return gradients


def _row_blocks(call: Call, rows: int, width: int, columns: int) -> int:
    most = ceil_div(chip(call).multiprocessors * MLP_BLOCKS, ceil_div(width, columns))
    return min(ceil_div(rows, MLP_ROWS), most)


def _widths(use_bias: int, inputs: Sequence[torch.Tensor]) -> list[int]:
    layers = (len(inputs) - 1) // (2 if use_bias else 1)
    return [weight.size(0) for weight in inputs[1 : 1 + layers]]


def cross_entropy(call: Call) -> Any:
    """Losses in fp32, log-sum-exps [loss]."""
    logits, labels, _, to_fp32 = call.args
    contiguous_copy(call, logits)
    sums = call.empty(labels.size(), dtype=torch.float32 if to_fp32 else logits.dtype)
    losses = call.empty(labels.size(), dtype=torch.float32)
    return losses, sums


def cross_entropy_backward(call: Call) -> Any:
    """The gradient of the logits [loss `host_softmax_xentropy_backward`]."""
    grad, logits = call.args[:2]
    out = like(call, logits)
    contiguous_copy(call, grad)
    contiguous_copy(call, logits)
    return out


def weight_gradient(call: Call) -> None:
    """cuBLAS adds the product to the gradient [apex csrc/megatron/fused_weight_gradient_dense_cuda.cu]."""
    take_workspace(call)
    call.simulation.values.lose(call.args[2])


def flattened(call: Call) -> Any:
    """One tensor of all elements [apex csrc/flatten_unflatten.cpp]."""
    tensors = call.args[0]
    return call.empty((sum(tensor.numel() for tensor in tensors),), dtype=tensors[0].dtype)


def unflattened(call: Call) -> Any:
    """Views [apex csrc/flatten_unflatten.cpp]."""
    flat, tensors = call.args
    parts = flat.split([tensor.numel() for tensor in tensors])
    return [part.view(tensor.size()) for part, tensor in zip(parts, tensors, strict=True)]


def loss_scale(call: Call) -> Any:
    """The scale, in place [apex csrc/update_scale_hysteresis.cu]."""
    for tensor in call.args[:3]:
        call.simulation.values.lose(tensor)
    return call.args[0]


def batches_a_block(queries: int, keys: int, batches: int, heads: int) -> int:
    """How many rows a block of threads takes [softmax `get_batch_per_block_cuda`]."""
    del queries, batches, heads
    width = 1 << max(0, keys - 1).bit_length()
    return SOFTMAX_THREADS // min(width, WARP) * (2 if width <= SOFTMAX_THREADS else 1)


UPDATES: Final = (
    "multi_tensor_adagrad", "multi_tensor_adam", "multi_tensor_adam_capturable", "multi_tensor_adam_capturable_master",
    "multi_tensor_axpby", "multi_tensor_lamb_stage1_cuda", "multi_tensor_lamb_stage2_cuda", "multi_tensor_scale",
    "multi_tensor_sgd",
)
AMP: Final[Mapping[str, Rule]] = {
    **dict.fromkeys(UPDATES, updated),
    "multi_tensor_l2norm": norms, "multi_tensor_l2norm_mp": norms, "multi_tensor_l2norm_scale": norms,
    "multi_tensor_lamb": lamb, "multi_tensor_lamb_mp": lamb,
    "multi_tensor_novograd": novograd,
    "multi_tensor_unscale_l2norm": norms,
    "update_scale_hysteresis": loss_scale,
}
NORMS: Final[Mapping[str, Rule]] = {
    "backward": lambda call: like(call, call.args[3]), "backward_affine": layer_norm_backward,
    "forward": _norm(2), "forward_affine": _norm(2), "forward_affine_mixed_dtypes": _norm(2, mixed=True),
    "rms_backward": lambda call: like(call, call.args[2]), "rms_backward_affine": rms_norm_backward,
    "rms_forward": _norm(1), "rms_forward_affine": _norm(1), "rms_forward_affine_mixed_dtypes": _norm(1, mixed=True),
}
ROPE: Final[Mapping[str, Rule]] = {
    "backward": rope, "backward_2d": rope_of_images, "backward_cached": rope, "backward_thd": rope,
    "forward": rope, "forward_2d": rope_of_images, "forward_cached": rope, "forward_thd": rope,
}
MODULES: Final[Mapping[str, Mapping[str, Rule]]] = {
    "amp_C": AMP,
    "apex_C": {"flatten": flattened, "unflatten": unflattened},
    "fused_dense_cuda": {
        "linear_bias_backward": dense_backward, "linear_bias_forward": dense,
        "linear_gelu_linear_backward": dense_gelu_dense_backward, "linear_gelu_linear_forward": dense_gelu_dense,
    },
    "fused_layer_norm_cuda": NORMS,
    "fused_rotary_positional_embedding": ROPE,
    "fused_weight_gradient_mlp_cuda": {
        "wgrad_gemm_accum_fp16": weight_gradient, "wgrad_gemm_accum_fp32": weight_gradient,
    },
    "generic_scaled_masked_softmax_cuda": {"backward": masked_softmax, "forward": softmax},
    "mlp_cuda": {"backward": mlp_backward, "forward": mlp},
    "scaled_masked_softmax_cuda": {"backward": masked_softmax, "forward": masked_softmax},
    "scaled_softmax_cuda": {"backward": softmax_in_place, "forward": softmax},
    "scaled_upper_triang_masked_softmax_cuda": {"backward": softmax_in_place, "forward": softmax},
    "xentropy_cuda": {"backward": cross_entropy_backward, "forward": cross_entropy},
}
VALUES: Final[Mapping[str, Mapping[str, Any]]] = {
    "scaled_masked_softmax_cuda": {"get_batch_per_block": batches_a_block},
}
EXTENSIONS: Final[Mapping[str, Extension]] = {
    name: Extension("apex", "multi_tensor_apply", kernels, VALUES.get(name, {})) for name, kernels in MODULES.items()
}
