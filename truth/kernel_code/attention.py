"""Attention written out, and convolutions over its scores."""

from __future__ import annotations

from collections.abc import Callable

import torch

from truth.kernel_code.bench import CUDA, Run, constant, dtype_of, leaf, with_given_gradient
from truth.rows.kernels.harness import Case


class NeighborhoodAttention(torch.nn.Module):
    """Scores of all pairs, those outside a window masked."""

    def __init__(self, hidden: int, heads: int, kernel: int, dilation: int) -> None:
        super().__init__()
        self.heads, self.width, self.kernel, self.dilation = heads, hidden // heads, kernel, dilation
        self.q_proj, self.k_proj, self.v_proj, self.out_proj = (torch.nn.Linear(hidden, hidden) for _ in range(4))

    def _mask(self, tokens: int) -> torch.Tensor:
        mask = torch.zeros(tokens, tokens, device=CUDA, dtype=torch.bool)
        reach = self.kernel // 2 * self.dilation
        for row in range(min(tokens, 4)):  # the window of each row is written in place: nothing is allocated
            mask[row, max(0, row - reach) : row + reach + 1 : self.dilation] = True
        return mask

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The attended states."""
        batch, tokens, hidden = x.shape
        query = self.q_proj(x).view(batch, tokens, self.heads, self.width).transpose(1, 2)
        key = self.k_proj(x).view(batch, tokens, self.heads, self.width).transpose(1, 2)
        value = self.v_proj(x).view(batch, tokens, self.heads, self.width).transpose(1, 2)
        scores = torch.matmul(query, key.transpose(-2, -1)) * self.width**-0.5
        mask = self._mask(tokens)
        scores = scores.masked_fill(~mask.unsqueeze(0).unsqueeze(0), float("-inf"))
        weights = torch.softmax(scores, dim=-1)
        out = torch.matmul(weights, value)
        out = out.transpose(1, 2).contiguous().view(batch, tokens, hidden)
        return self.out_proj(out)


def neighborhood_attention(case: Case) -> Run:
    """Both modules are set up."""
    hidden, dtype = case.size("hidden_size"), dtype_of(case)
    sizes = hidden, case.size("num_heads"), case.size("kernel_size"), case.size("dilation")
    modules = [NeighborhoodAttention(*sizes).to(CUDA, dtype) for _ in range(2)]
    x = leaf(case.size("batch_size"), case.size("seq_len"), hidden, dtype=dtype)
    return with_given_gradient(lambda: modules[1](x), torch.randn_like(x))


class Masked(torch.nn.Module):
    """Scores below the diagonal as weights, a convolution over them, the same triangle of its result.

    [mta] Golovneva et al., Multi-Token Attention, arXiv:2504.00927, section 3.1
    """

    def __init__(self, case: Case, weigh: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        channels, kernel, made = case.size("C_in"), case.size("K"), {"device": CUDA, "dtype": dtype_of(case)}
        shape = case.size("C_out"), channels // case.size("groups"), kernel, kernel
        self.weight = torch.nn.Parameter(torch.empty(shape, **made))
        self.bias = torch.nn.Parameter(torch.empty(case.size("C_out"), **made)) if case.config["bias"] else None
        self.groups, self.padding, self.weigh = case.size("groups"), kernel // 2, weigh

    def forward(self, scores: torch.Tensor) -> torch.Tensor:
        """The masked convolution of masked weights."""
        tokens = scores.size(-1)
        mask = torch.tril(torch.ones(tokens, tokens, dtype=torch.bool, device=CUDA)).view(1, 1, tokens, tokens)
        low = torch.tensor(-1e9, device=CUDA, dtype=scores.dtype)
        zero = torch.tensor(0.0, device=CUDA, dtype=scores.dtype)
        masked = scores.masked_fill(~mask, low)
        weights = self.weigh(masked)
        out = torch.nn.functional.conv2d(
            weights, self.weight, self.bias, stride=1, padding=self.padding, groups=self.groups
        )
        return out.masked_fill(~mask, zero)


def _convolved(case: Case, weigh: Callable[[torch.Tensor], torch.Tensor]) -> Run:
    """Both modules are set up."""
    modules = [Masked(case, weigh) for _ in range(2)]
    scores = constant(case.size("B"), case.size("C_in"), case.size("L"), case.size("L"), dtype=dtype_of(case))
    gradient = torch.randn_like(scores)
    scores.requires_grad_()
    return with_given_gradient(lambda: modules[1](scores), gradient)


def multi_token_attention(case: Case) -> Run:
    """Weights by softmax."""
    return _convolved(case, lambda scores: torch.softmax(scores, dim=-1))


def sparse_multi_token_attention(case: Case) -> Run:
    """Weights by sparsemax."""
    return _convolved(case, _sparsemax)


def _sparsemax(scores: torch.Tensor) -> torch.Tensor:
    """The projection onto the simplex; rows without a score stay empty.

    [sparsemax] Martins and Astudillo, ICML 2016, arXiv:1602.02068, algorithm 1
    """
    ordered, _places = torch.sort(scores, dim=-1, descending=True)
    sums = torch.cumsum(ordered, dim=-1)
    ranks = torch.arange(1, scores.size(-1) + 1, device=CUDA, dtype=scores.dtype).view(1, 1, 1, -1)
    is_score = ordered > -1e8
    is_inside = (1 + ranks * ordered > sums) & is_score
    support = torch.sum(is_inside, dim=-1, keepdim=True)
    count = torch.max(support, torch.ones_like(support))
    total = torch.gather(sums, dim=-1, index=count.long() - 1)
    tau = (total - 1) / count.to(scores.dtype)
    tau = torch.where(support == 0, torch.full_like(tau, float("inf")), tau)
    return torch.clamp(scores - tau, min=0)


__all__ = ["multi_token_attention", "neighborhood_attention", "sparse_multi_token_attention"]
