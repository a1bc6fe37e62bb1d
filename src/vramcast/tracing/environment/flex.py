"""FlexAttention, which is fused only where it is compiled, and which a build without CUDA cannot trace.

Left out: gradients of tensors that a score modification captures.
[flex] torch._inductor.kernel.flex.flex_attention of torch 2.13: the forward gives the output and one statistic a row;
the backward takes one more for the row sums, then the gradients
"""

from __future__ import annotations

from typing import Any, Final

import torch

from vramcast.tracing.environment.patches import Patches
from vramcast.tracing.simulation import Simulation

FUSED: Final = "flex_attention runs as its compiled kernel"


class _Fused(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> Any:
        out = query.new_empty((*query.shape[:-1], value.shape[-1]))
        statistic = query.new_empty(query.shape[:-1], dtype=torch.float32)
        ctx.save_for_backward(query, key, value, out, statistic)
        ctx.mark_non_differentiable(statistic)
        return out, statistic

    @staticmethod
    def backward(ctx: Any, *_gradients: Any) -> Any:
        query, key, value, _, statistic = ctx.saved_tensors
        sums = torch.empty_like(statistic)
        found = tuple(torch.empty_like(each) for each in (query, value, key))
        del sums
        return found[0], found[2], found[1]


def patch_flex(patches: Patches, simulation: Simulation) -> None:
    """Replace `flex_attention`; masks of blocks are made by torch's own code."""
    from torch.nn.attention import flex_attention as module

    real = module.flex_attention

    def flex_attention(query: Any, key: Any, value: Any, *args: Any, return_lse: bool = False, **kwargs: Any) -> Any:
        if simulation.memory.of(query) is None or kwargs.get("return_aux") is not None:
            return real(query, key, value, *args, return_lse=return_lse, **kwargs)
        simulation.assumptions.note(FUSED, simulation.origins.place())
        out, statistic = _Fused.apply(query, key, value)
        return (out, statistic) if return_lse else out

    patches.set(module, "flex_attention", flex_attention)
