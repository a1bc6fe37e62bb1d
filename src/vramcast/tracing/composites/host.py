"""scaled_dot_product_attention as the CPU runs it.

[sdpa] pytorch aten/src/ATen/native/transformers/sdp_utils_cpp.cpp `use_flash_attention_cpp`, attention.cpp
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

import torch

from vramcast.tracing.composites import eigenvalues, encoder_layers, formulas, host_recurrent, linear, losses

if TYPE_CHECKING:
    from vramcast.tracing.simulation import Simulation

FLASH_TYPES: Final = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
_APART: Final = torch._C.DispatchKey.CompositeImplicitAutograd


def attention(_simulation: Simulation) -> Callable[..., torch.Tensor]:
    """The flash kernel where it can run, else products and softmax [sdpa]."""

    def run(
        query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, attn_mask: torch.Tensor | None = None,
        dropout_p: float = 0.0, is_causal: bool = False, *, scale: float | None = None, enable_gqa: bool = False,
    ) -> torch.Tensor:
        if dropout_p or not _fits(query, key, value, attn_mask, is_causal, enable_gqa):
            operator = torch.ops.aten.scaled_dot_product_attention.default
            options: dict[str, Any] = {"scale": scale, "enable_gqa": enable_gqa}
            return operator._op_dk(_APART, query, key, value, attn_mask, dropout_p, is_causal, **options)
        mask = attn_mask
        if mask is not None and mask.dtype is torch.bool:
            mask = torch.zeros_like(mask, dtype=query.dtype).masked_fill_(mask.logical_not(), float("-inf"))
        return torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
            query, key, value, dropout_p, is_causal, attn_mask=mask, scale=scale
        )[0]

    return run


def _fits(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: torch.Tensor | None, is_causal: bool,
    enable_gqa: bool,
) -> bool:
    tensors = query, key, value
    return (
        query.dtype in FLASH_TYPES
        and torch.backends.cuda.flash_sdp_enabled()  # one switch for both devices
        and all(tensor.dim() == 4 and tensor.size(2) > 0 and tensor.stride(-1) == 1 for tensor in tensors)
        and len({(tensor.size(0), tensor.size(3)) for tensor in tensors}) == 1
        and key.size(1) == value.size(1)
        and (query.size(1) == key.size(1) or (enable_gqa and query.size(1) % key.size(1) == 0))
        and (mask is None or (not mask.requires_grad and not is_causal))
    )


COMPOSITES: Final[Mapping[str, Any]] = {
    "scaled_dot_product_attention": attention, **eigenvalues.COMPOSITES, **encoder_layers.COMPOSITES,
    **formulas.COMPOSITES, **formulas.HOST_COMPOSITES, **host_recurrent.COMPOSITES, **linear.COMPOSITES,
    **losses.HOST_COMPOSITES,
}
