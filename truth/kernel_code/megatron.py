"""Megatron's operators on one rank."""

from __future__ import annotations

from typing import Any

import torch

from truth.contract import Refused
from truth.kernel_code.bench import CUDA, Run, clearing, labels, leaf
from truth.rows.kernels.harness import Case

BF16 = torch.bfloat16


def _of_sum(forward: Any) -> Run:
    """`y.sum().backward()`."""
    return Run(forward, lambda y: y.sum().backward())


def rms_norm(case: Case) -> Run:
    """torch.nn.RMSNorm with a bf16 weight."""
    norm = torch.nn.RMSNorm(case.size("H"), eps=1e-5, dtype=BF16, device=CUDA)
    x = leaf(case.size("S"), case.size("B"), case.size("H"), dtype=BF16)
    return _of_sum(lambda: norm(x))


class VocabParallelCrossEntropy(torch.autograd.Function):
    """The softmax over this rank's part of the vocabulary becomes the gradient in place."""

    @staticmethod
    def forward(ctx: Any, logits: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        """One loss a token."""
        logits = logits.float()
        largest = torch.max(logits, dim=-1)[0]
        logits -= largest.unsqueeze(dim=-1)
        outside = (target < 0) | (target >= logits.size(-1))
        local = target.clone() - 0
        local[outside] = 0
        rows = logits.view(-1, logits.size(-1))
        flat = local.view(-1)
        numbers = torch.arange(start=0, end=rows.size(0), device=rows.device)
        predicted = rows[numbers, flat].clone().contiguous().view_as(target)
        predicted *= ~outside
        exponentials = logits
        torch.exp(logits, out=exponentials)
        sums = exponentials.sum(dim=-1)
        loss = torch.log(sums) - predicted
        exponentials.div_(sums.unsqueeze(dim=-1))
        ctx.save_for_backward(exponentials, outside, flat)
        return loss

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        """The softmax less one at the target, times the loss's gradient."""
        softmax, outside, flat = ctx.saved_tensors
        rows = softmax.view(-1, softmax.size(-1))
        numbers = torch.arange(start=0, end=rows.size(0), device=rows.device)
        update = 1.0 - outside.view(-1).float()
        rows[numbers, flat] -= update
        softmax.mul_(gradients[0].unsqueeze(dim=-1))
        return softmax, None


def cross_entropy(case: Case) -> Run:
    """bf16 logits, one loss a token; a barrier keeps one number."""
    if case.size("TP") != 1:
        raise Refused("the benchmark is built for one rank")
    logits = leaf(case.size("S"), case.size("B"), case.size("V"), dtype=BF16)
    target = labels(case.size("V"), case.size("S"), case.size("B"))
    barrier = torch.zeros(1, device=CUDA)

    def forward() -> torch.Tensor:
        assert barrier is not None
        return VocabParallelCrossEntropy.apply(logits, target)

    return clearing(_of_sum(forward), logits)


class FusedSwiglu(torch.autograd.Function):
    """Megatron's: forward and backward are one compiled kernel each, which read the input and write one tensor.

    Source: Megatron-LM megatron/core/fusions/fused_bias_swiglu.py `SwiGLUFunction`, `swiglu`, `swiglu_back`
    """

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        """Half as wide as its input, which is saved."""
        ctx.save_for_backward(x)
        return x.new_empty((*x.size()[:-1], x.size(-1) // 2))

    @staticmethod
    def backward(ctx: Any, *_gradients: torch.Tensor) -> torch.Tensor:
        """As wide as the input."""
        (x,) = ctx.saved_tensors
        return torch.empty_like(x)


def swiglu(case: Case) -> Run:
    """silu(first half) * second half."""
    x = leaf(case.size("S"), case.size("B"), 2 * case.size("ffn_local"), dtype=BF16)

    def forward() -> torch.Tensor:
        if case.provider == "megatron":
            return FusedSwiglu.apply(x)
        gate, up = torch.chunk(x, 2, dim=-1)
        return torch.nn.functional.silu(gate) * up

    return clearing(_of_sum(forward), x)


__all__ = ["cross_entropy", "rms_norm", "swiglu"]
