"""Attention written out, and convolutions over its scores."""

from __future__ import annotations

from collections.abc import Callable

import torch

from truth.kernel_code.bench import CUDA, Run, dtype_of, leaf, with_given_gradient
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


def _convolved(case: Case, weigh: Callable[[torch.Tensor], torch.Tensor]) -> Run:
    """Scores below the diagonal as weights, a convolution over them, the same triangle of its result.

    [mta] Golovneva et al., Multi-Token Attention, arXiv:2504.00927, section 3.1
    """
    channels, kernel, dtype = case.size("C_in"), case.size("K"), dtype_of(case)
    tokens, shape = case.size("L"), (case.size("B"), channels, case.size("L"), case.size("L"))
    convolutions = [
        torch.nn.Conv2d(
            channels, case.size("C_out"), kernel, padding=kernel // 2, groups=case.size("groups"),
            bias=bool(case.config["bias"]), device=CUDA, dtype=dtype,
        )
        for _ in range(2)
    ]
    scores = leaf(*shape, dtype=dtype)

    def forward() -> torch.Tensor:
        mask = torch.tril(torch.ones(tokens, tokens, dtype=torch.bool, device=CUDA)).view(1, 1, tokens, tokens)
        weights = weigh(scores.masked_fill(~mask, -1e9))
        return convolutions[1](weights).masked_fill(~mask, 0.0)

    return with_given_gradient(forward, torch.randn_like(scores))


def multi_token_attention(case: Case) -> Run:
    """Weights by softmax."""
    return _convolved(case, lambda scores: torch.softmax(scores, dim=-1))


def sparse_multi_token_attention(case: Case) -> Run:
    """Weights by sparsemax."""
    return _convolved(case, _sparsemax)


def _sparsemax(scores: torch.Tensor) -> torch.Tensor:
    """The projection onto the simplex.

    [sparsemax] Martins and Astudillo, ICML 2016, arXiv:1602.02068, algorithm 1
    """
    sums = torch.sort(scores, dim=-1, descending=True)[0]
    ranks = torch.arange(1, scores.size(-1) + 1, device=scores.device, dtype=scores.dtype)
    cumulative = torch.cumsum(sums, dim=-1)
    support = (1 + ranks * sums > cumulative).sum(dim=-1, keepdim=True)
    tau = (cumulative.gather(-1, support - 1) - 1) / support.to(scores.dtype)
    return torch.clamp(scores - tau, min=0)


__all__ = ["multi_token_attention", "neighborhood_attention", "sparse_multi_token_attention"]
