"""Softmax and losses.

CTC is valid for ATen's own kernels: cuDNN's are chosen only where targets and lengths are int32 on the host.

[softmax] pytorch aten/src/ATen/native/cuda/SoftMax.cu: `host_softmax`, `host_softmax_backward`,
`softmax_backward_cuda_out` multiplies gradient and result first
[loss] pytorch aten/src/ATen/native/Loss.cpp: `mse_loss_out`, `smooth_l1_loss_out`, `huber_loss`
[cuda] pytorch aten/src/ATen/native/cuda/Loss.cu: `binary_cross_entropy_out_cuda`
[sigmoid] pytorch aten/src/ATen/native/cuda/ActivationLogSigmoidKernel.cu, Activation.cpp `log_sigmoid_forward_cuda`
[2d] pytorch aten/src/ATen/native/cuda/NLLLoss2d.cu
[margin] pytorch aten/src/ATen/native/cuda/MultiMarginLoss.cu, MultiLabelMarginCriterion.cu
[ctc] pytorch aten/src/ATen/native/cuda/LossCTC.cu `ctc_loss_gpu_template`, `ctc_loss_backward_gpu_template`
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import torch

from vramcast.errors import Note
from vramcast.tracing.call import Call, Rule
from vramcast.tracing.rules.layouts import INT64, contiguous_copy, first, num_bytes, reads_contiguous
from vramcast.tracing.rules.reductions import all_dims, reduce, sum_kernel


def softmax_backward(call: Call) -> Any:
    """gradient * result is a tensor of its own."""
    out = call.run()
    grad, result = call.arg(0, "grad_output"), call.arg(1, "output")
    dtype = torch.promote_types(grad.dtype, result.dtype)
    call.scratch(result.numel() * dtype.itemsize, "gradient * result")
    contiguous_copy(call, result)
    return out


NONE: Final = 0  # at::Reduction


def pointwise(call: Call) -> Any:
    """The loss of every element, then their sum or mean."""
    out = call.run()
    if call.named("reduction", 1) != NONE:
        a, b = call.args[:2]
        sizes = torch.broadcast_shapes(a.size(), b.size())
        elements = torch.empty(sizes, dtype=torch.promote_types(a.dtype, b.dtype), device="meta")
        call.scratch(num_bytes(elements), "loss of elements")
        reduce(call, elements, all_dims(elements), first(out), sum_kernel(elements.dtype, out.dtype))
    return out


def behind_scalar(call: Call) -> Any:
    """A loss of every element, resized to the scalar that is returned: its memory stays behind it.

    mse_loss and smooth_l1_loss are structured: the result is made as large as the elements, then resized, and their
    kernel takes the elements' loss beside it [loss]; binary_cross_entropy reduces its elements into a scalar, which it
    copies over them [cuda].
    """
    if call.named("reduction", 1) == NONE:
        return call.run()
    a, b = call.args[:2]
    dtype = torch.promote_types(a.dtype, b.dtype)
    out = call.empty(torch.broadcast_shapes(a.size(), b.size()), dtype=dtype)
    elements = torch.empty(out.size(), dtype=dtype, device="meta")
    if call.name == "aten.binary_cross_entropy":
        call.scratch(dtype.itemsize, "reduced loss")
    else:
        call.scratch(num_bytes(out), "loss of elements")
    reduce(call, elements, all_dims(elements), torch.empty((), dtype=dtype, device="meta"), sum_kernel(dtype, dtype))
    return out.resize_(())


def log_sigmoid(call: Call) -> Any:
    """The result and an empty buffer: only the CPU keeps something for backward [sigmoid]."""
    out, buffer = call.simulation.on_meta(call.func, call.args, call.kwargs, call.device)
    call.simulation.adopt(out, call.device, call.name)
    return out, buffer if call.device.is_cpu else call.empty((0,), dtype=out.dtype)


def multi_margin(call: Call) -> Any:
    """The loss; of a batch, one a sample is summed [margin]."""
    out = call.run()
    x, target = call.args[:2]
    for tensor in (x, target, call.arg(4, "weight")):
        contiguous_copy(call, tensor)
    _sum_of_samples(call, x, out, call.arg(5, "reduction", 1))
    return out


def multilabel_margin(call: Call) -> Any:
    """The loss, and which classes are targets, which is made first [margin]."""
    x, target, reduction = call.args[:3]
    contiguous_copy(call, x)
    contiguous_copy(call, target)
    is_target = call.empty(target.size(), dtype=x.dtype)
    out = call.empty((x.size(0),) if x.dim() == 2 and reduction == NONE else (), dtype=x.dtype)
    _sum_of_samples(call, x, out, reduction)
    return out, is_target


def margin_backward(call: Call) -> Any:
    """The gradient; everything is read contiguous [margin]."""
    out = call.run()
    for tensor in call.args:
        contiguous_copy(call, tensor if isinstance(tensor, torch.Tensor) else None)
    return out


def _sum_of_samples(call: Call, x: torch.Tensor, out: torch.Tensor, reduction: int) -> None:
    if x.dim() == 2 and reduction != NONE:
        losses = torch.empty((x.size(0),), dtype=x.dtype, device="meta")
        call.scratch(num_bytes(losses), "loss of samples")
        reduce(call, losses, (0,), out, sum_kernel(x.dtype, out.dtype))


LARGE: Final = 450  # above, blanks are subtracted by a chain of operators [ctc `is_large`]


def ctc_loss(call: Call) -> tuple[torch.Tensor, torch.Tensor]:
    """Forward variables, then the loss of every sequence; beside them lengths and offsets."""
    log_probs, targets, _, lengths = call.args[:4]
    steps, batch = log_probs.size(0), log_probs.size(1)
    _lengths_and_offsets(call, batch)
    log_alpha = call.empty((batch, steps, 2 * _longest(call, targets, lengths) + 1), dtype=log_probs.dtype)
    return call.empty((batch,), dtype=log_probs.dtype), log_alpha


def ctc_loss_backward(call: Call) -> torch.Tensor:
    """Backward variables and the gradient; of large problems, the blanks' share on the way."""
    log_probs, log_alpha, blank = call.args[1], call.args[6], call.args[7]
    steps, batch, labels = log_probs.size()
    _lengths_and_offsets(call, batch)
    log_beta = call.empty(log_alpha.size(), dtype=log_alpha.dtype)
    grad = call.empty(log_probs.size(), dtype=log_probs.dtype)
    if 2 * steps + 24 * batch // 10 + 2 * labels // 10 > LARGE:
        return _without_blanks(call, grad, log_beta, blank)
    return grad


def _without_blanks(call: Call, grad: torch.Tensor, log_beta: torch.Tensor, blank: int) -> torch.Tensor:
    """Operators on tensors, each seen alone."""
    log_probs, likelihood, log_alpha = call.args[1], call.args[5], call.args[6]
    with call.simulation:
        share = torch.logsumexp(log_alpha[..., ::2] + log_beta[..., ::2], 2, True).permute(1, 0, 2)
        share.add_(likelihood.view(1, -1, 1)).sub_(log_probs.narrow(2, blank, 1)).exp_()
        del share
        if call.arg(8, "zero_infinity", False):
            zero = torch.zeros((), dtype=grad.dtype, device=call.device.torch_device)
            grad = torch.where(likelihood.view(1, -1, 1) == torch.inf, zero, grad)
    return grad


def _longest(call: Call, targets: torch.Tensor, lengths: Any) -> int:
    """Of the target sequences; where nobody knows their lengths, the most that the targets have room for."""
    if isinstance(lengths, torch.Tensor):
        known = call.simulation.values.of(lengths)
        if known is None:
            most = targets.size(-1)
            call.simulation.assumptions.note(Note("target sequences of {} labels", most))
            return most
        lengths = known.tolist()
    return max(lengths, default=0)


def _lengths_and_offsets(call: Call, batch: int) -> None:
    for name in ("target lengths", "input lengths", "offsets of targets"):
        call.scratch(batch * INT64, name)


RULES: Final[Mapping[str, Rule]] = {
    "aten._log_softmax": reads_contiguous(0),
    "aten._log_softmax_backward_data": reads_contiguous(0, 1),
    "aten._softmax": reads_contiguous(0),
    "aten._softmax_backward_data": softmax_backward,
    "aten.binary_cross_entropy": behind_scalar,
    "aten.huber_loss": pointwise,
    "aten.log_sigmoid_forward": log_sigmoid,
    "aten.mse_loss": behind_scalar,
    "aten.multi_margin_loss": multi_margin,
    "aten.multi_margin_loss_backward": margin_backward,
    "aten.multilabel_margin_loss_backward": margin_backward,
    "aten.multilabel_margin_loss_forward": multilabel_margin,
    "aten.nll_loss2d_backward": reads_contiguous(2),
    "aten.nll_loss2d_forward": reads_contiguous(0, 1),
    "aten.smooth_l1_loss": behind_scalar,
    "aten._ctc_loss": ctc_loss,
    "aten._ctc_loss_backward": ctc_loss_backward,
}


PLAIN: Final = frozenset({
    "aten.binary_cross_entropy_backward", "aten.huber_loss_backward", "aten.log_sigmoid_backward",
    "aten.mse_loss_backward", "aten.nll_loss_backward", "aten.nll_loss_forward",
    "aten.smooth_l1_loss_backward", "aten.soft_margin_loss_backward",
})
