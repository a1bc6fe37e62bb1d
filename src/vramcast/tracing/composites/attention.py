"""scaled_dot_product_attention with the kernel that CUDA would choose.

[sdpa] pytorch aten/src/ATen/native/transformers/attention.cpp `scaled_dot_product_attention`
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

import torch

from vramcast.tracing.composites.apart import apart
from vramcast.tracing.composites.backends import Backend, Question, chosen

if TYPE_CHECKING:
    from vramcast.tracing.simulation import Simulation

FLASH_ALIGNMENT: Final = 8  # of the head size
MASK_ALIGNMENT: Final = 8  # of the efficient kernel's mask
HALF_BYTES: Final = 2
LOWEST: Final = -65504.0  # of fp16: what older cuDNN takes for minus infinity


def attention(simulation: Simulation) -> Callable[..., torch.Tensor]:
    """[sdpa]"""
    memory = simulation.memory

    def run(
        query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, attn_mask: torch.Tensor | None = None,
        dropout_p: float = 0.0, is_causal: bool = False, *, scale: float | None = None, enable_gqa: bool = False,
    ) -> torch.Tensor:
        resident = memory.of(query)
        options = {"scale": scale, "enable_gqa": enable_gqa}
        if resident is None or resident.device.is_cpu:
            operator = torch.ops.aten.scaled_dot_product_attention.default
            return apart(operator, query, key, value, attn_mask, dropout_p, is_causal, **options)
        question = Question(query, key, value, attn_mask, dropout_p, is_causal, enable_gqa)
        return RUNS[chosen(question, resident.device.sm)](question, scale)

    return run


def _flash(question: Question, scale: float | None) -> torch.Tensor:
    """Heads are padded to a multiple of eight; the scale is that of the real size."""
    size = question.query.size(-1)
    query, key, value = (_padded(tensor, FLASH_ALIGNMENT) for tensor in question[:3])
    out = torch.ops.aten._scaled_dot_product_flash_attention(
        query, key, value, question.dropout, question.is_causal, False, scale=size**-0.5 if scale is None else scale
    )[0]
    return out[..., :size] if out.size(-1) != size else out


def _efficient(question: Question, scale: float | None) -> torch.Tensor:
    """A mask is widened to numbers, padded where its rows are not aligned, and expanded."""
    query, key, value = question[:3]
    mask = _additive(question, float("-inf"))
    if mask is not None:
        if any(stride % MASK_ALIGNMENT for stride in mask.stride()[:-1]) or mask.stride(-1) != 1:
            width = mask.size(-1)
            mask = torch.nn.functional.pad(mask, (0, MASK_ALIGNMENT - width % MASK_ALIGNMENT))[..., :width]
        mask = mask.expand(query.size(0), query.size(1), query.size(2), key.size(2))
    return torch.ops.aten._scaled_dot_product_efficient_attention(
        query, key, value, mask, _needs_gradient(question), question.dropout, question.is_causal, scale=scale
    )[0]


def _cudnn(question: Question, scale: float | None) -> torch.Tensor:
    query, key, value = question[:3]
    return torch.ops.aten._scaled_dot_product_cudnn_attention(
        query, key, value, _additive(question, LOWEST), _needs_gradient(question), question.dropout,
        question.is_causal, False, scale=scale,
    )[0]


def _math(question: Question, scale: float | None) -> torch.Tensor:
    """Products and softmax as operators of their own; the mask is added in place [sdpa `..._attention_math`]."""
    query, key, value, _, dropout, is_causal, enable_gqa = question
    dtype = query.dtype
    if dtype.itemsize == HALF_BYTES and not torch.backends.cuda.fp16_bf16_reduction_math_sdp_allowed():
        query, key, value = query.float(), key.float(), value.float()
    root = (query.size(-1) ** -0.5 if scale is None else abs(scale)) ** 0.5
    query = query * (-root if scale is not None and scale < 0 else root)
    mask = _additive(question._replace(query=query), float("-inf"))
    if is_causal:
        seen = torch.ones((query.size(-2), key.size(-2)), dtype=torch.bool, device=query.device).tril()
        mask = _additive(question._replace(query=query, mask=seen), float("-inf"))
    if enable_gqa:
        groups = query.size(-3) // key.size(-3)
        key, value = key.repeat_interleave(groups, -3), value.repeat_interleave(groups, -3)
    scores = torch.matmul(query, key.transpose(-2, -1) * root)
    if mask is not None:
        scores.add_(mask)
    weights = torch.ops.aten._safe_softmax(scores, -1)
    if dropout:
        weights = torch.dropout(weights, dropout, True)
    return torch.matmul(weights, value).to(dtype)


def _padded(tensor: torch.Tensor, alignment: int) -> torch.Tensor:
    missing = -tensor.size(-1) % alignment
    return torch.nn.functional.pad(tensor, (0, missing)) if missing else tensor


def _additive(question: Question, masked_out: float) -> torch.Tensor | None:
    """A boolean mask becomes numbers to add, in the type of the queries [sdpa `convert_boolean_attn_mask`]."""
    mask = question.mask
    if mask is None or mask.dtype is not torch.bool:
        return mask
    zero = torch.ops.aten.scalar_tensor(0.0, dtype=question.query.dtype, device=mask.device)
    return torch.where(mask.logical_not(), masked_out, zero)


def _needs_gradient(question: Question) -> bool:
    return torch.is_grad_enabled() and any(tensor.requires_grad for tensor in question[:3])


RUNS: Final[Mapping[Backend, Callable[[Question, float | None], torch.Tensor]]] = {
    Backend.FLASH: _flash,
    Backend.EFFICIENT: _efficient,
    Backend.CUDNN: _cudnn,
    Backend.MATH: _math,
}
COMPOSITES: Final[Mapping[str, Any]] = {"scaled_dot_product_attention": attention}
