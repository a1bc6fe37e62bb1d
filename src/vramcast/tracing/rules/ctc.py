"""Connectionist temporal classification: the forward variables of every label and the blanks between.

Valid for: ATen's own kernels. cuDNN's are chosen only where targets and lengths are int32 on the host.

[ctc] pytorch aten/src/ATen/native/cuda/LossCTC.cu `ctc_loss_gpu_template`, `ctc_loss_backward_gpu_template`
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import torch

from vramcast.tracing.call import Call, Rule

INDEX_BYTES: Final = 8
LARGE: Final = 450
"""Above, blanks are subtracted by a chain of operators [ctc `is_large`]."""


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
            call.simulation.assumptions.note(f"target sequences of {most} labels")
            return most
        lengths = known.tolist()
    return max(lengths, default=0)


def _lengths_and_offsets(call: Call, batch: int) -> None:
    for name in ("target lengths", "input lengths", "offsets of targets"):
        call.scratch(batch * INDEX_BYTES, name)


RULES: Final[Mapping[str, Rule]] = {
    "aten._ctc_loss": ctc_loss,
    "aten._ctc_loss_backward": ctc_loss_backward,
}
PLAIN: Final = frozenset[str]()
