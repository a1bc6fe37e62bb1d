"""scaled_dot_product_attention with the kernel that CUDA would choose.

[choice] pytorch aten/src/ATen/native/transformers/cuda/sdp_utils.cpp: `select_sdp_backend`, `priority_order`,
`check_prefer_cudnn_attention`, `can_use_flash_attention`, `can_use_mem_efficient_attention`, `can_use_cudnn_attention`
[checks] pytorch aten/src/ATen/native/transformers/sdp_utils_cpp.h
[sdpa] pytorch aten/src/ATen/native/transformers/attention.cpp `scaled_dot_product_attention`

Encoder layers and self-attention in evaluation: one operator for torch.nn, a chain of kernels below.

[layer] pytorch aten/src/ATen/native/transformers/transformer.cpp `transformer_encoder_layer_forward`
[heads] pytorch aten/src/ATen/native/transformers/cuda/attention.cu `native_multi_head_attention_cuda`
Leaves out nested tensors.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from enum import IntEnum
from typing import Any, Final, NamedTuple

import torch
from torch.nn import functional

from vramcast.tracing.composites.layers import apart
from vramcast.tracing.holders import local_part
from vramcast.tracing.rules.layouts import LITTLE_SHARED, NARROW, at_least
from vramcast.tracing.simulation import Simulation

OLDEST_FLASH: Final = 80
OLDEST_EFFICIENT: Final = 50
NEWEST: Final = 121
PREFERRED_BY: Final = frozenset({90, 100, 103})
"""Cards on which cuDNN goes first, given cuDNN 9.15.1, which torch's own wheels bring."""
PREFERRED_SINCE: Final = (2, 10)
WIDEST: Final = 256
CUDNN_WIDEST: Final = {90: 256}
CUDNN_WIDEST_ELSEWHERE: Final = 128


class Backend(IntEnum):
    """As torch.nn.attention.SDPBackend counts them."""

    MATH = 0
    FLASH = 1
    EFFICIENT = 2
    CUDNN = 3


class Question(NamedTuple):
    """One call: (B, heads, tokens, width) tensors."""

    query: torch.Tensor
    key: torch.Tensor
    value: torch.Tensor
    mask: torch.Tensor | None
    dropout: float
    is_causal: bool
    enable_gqa: bool


def chosen(question: Question, sm: int) -> Backend:
    """The first backend in torch's order that takes the call; `sm`: compute capability x 10.

    Raises: RuntimeError, as torch does, where the allowed backends do not take it
    """
    for backend in _order(sm):
        if ALLOWED[backend]() and FITS[backend](question, sm):
            return backend
    raise RuntimeError("No available kernel. Aborting execution.")


def _order(sm: int) -> tuple[Backend, ...]:
    """Who set an order gets it; cuDNN goes first on the cards that prefer it [choice `priority_order`]."""
    order = tuple(Backend(number) for number in torch._C._get_sdp_priority_order() if number in set(Backend))
    may_prefer = os.environ.get("TORCH_CUDNN_SDPA_DEPRIORITIZED") != "1"
    prefers = at_least(PREFERRED_SINCE) and sm in PREFERRED_BY and may_prefer
    if order == DEFAULT_ORDER and prefers:
        return Backend.CUDNN, Backend.FLASH, Backend.EFFICIENT, Backend.MATH
    return order


DEFAULT_ORDER: Final = (Backend.FLASH, Backend.EFFICIENT, Backend.MATH, Backend.CUDNN)


def _is_dense_4d(question: Question) -> bool:
    return all(tensor.dim() == 4 and tensor.size(-2) for tensor in question[:3])


def _same_types(question: Question, types: frozenset[torch.dtype]) -> bool:
    return question.query.dtype in types and len({tensor.dtype for tensor in question[:3]}) == 1


def _heads_fit(question: Question, *, grouped: bool, same_kv: bool = True) -> bool:
    """Equal batches, and heads that are equal or whole groups where the kernel groups them."""
    query, key, value = question[:3]
    if not query.size(0) == key.size(0) == value.size(0):
        return False
    heads, kv_heads, v_heads = (tensor.size(1) for tensor in question[:3])
    if question.enable_gqa and grouped:
        return (not same_kv or kv_heads == v_heads) and heads % kv_heads == 0 and heads % v_heads == 0
    return heads == kv_heads == v_heads


def _last_is_dense(question: Question, *, ignores_single: bool) -> bool:
    """The last dimensions have stride one."""
    fits = all(tensor.stride(-1) == 1 for tensor in question[:3])
    fits = fits or (ignores_single and question.query.size(-1) == 1)
    return fits and (question.mask is None or question.mask.stride(-1) == 1)


def _takes_gradient(question: Question) -> bool:
    return torch.is_grad_enabled() and any(tensor.requires_grad for tensor in question[:3])


def _flash_fits(question: Question, sm: int) -> bool:
    """[choice `can_use_flash_attention`]"""
    query, key, value = question[:3]
    width = query.size(-1)
    too_wide = 192 < width <= 224 or (width > 224 and question.dropout > 0)
    return (
        _is_dense_4d(question)
        and question.mask is None
        and OLDEST_FLASH <= sm <= NEWEST
        and key.size(-1) == value.size(-1) == width <= WIDEST
        and not (sm in LITTLE_SHARED and too_wide and _takes_gradient(question))
        and not (question.is_causal and query.size(-2) != key.size(-2))
        and _same_types(question, NARROW)
        and _heads_fit(question, grouped=True)
        and _last_is_dense(question, ignores_single=True)
    )


def _efficient_fits(question: Question, sm: int) -> bool:
    """[choice `can_use_mem_efficient_attention`]"""
    query, key, value = question[:3]
    types = NARROW | {torch.float32} if sm >= OLDEST_FLASH else frozenset({torch.float16, torch.float32})
    alignment = _alignment(query.dtype, sm)
    return (
        _is_dense_4d(question)
        and OLDEST_EFFICIENT <= sm <= NEWEST
        and query.size(-1) == key.size(-1)
        and query.size(-1) > 0
        and value.size(-1) > 0
        and query.size(-1) % alignment == 0
        and value.size(-1) % alignment == 0
        and _same_types(question, types)
        and _heads_fit(question, grouped=False)
        and _last_is_dense(question, ignores_single=False)
    )


def _alignment(dtype: torch.dtype, sm: int) -> int:
    """Elements [choice `minimum_gemm_alignment`]."""
    is_half = dtype in NARROW
    if sm >= 80 or (sm >= 70 and is_half):
        return max(4 if sm >= 80 else 1, 128 // (16 if is_half else 32))
    return 1


def _cudnn_fits(question: Question, sm: int) -> bool:
    """[choice `can_use_cudnn_attention`] with cuDNN 9.15 or later"""
    query, key, value = question[:3]
    widths = query.size(-1), value.size(-1)
    widest = 192 if sm // 10 == 10 and widths == (192, 128) else CUDNN_WIDEST.get(sm, CUDNN_WIDEST_ELSEWHERE)
    return (
        _is_dense_4d(question)
        and not torch.are_deterministic_algorithms_enabled()
        and OLDEST_FLASH <= sm <= NEWEST
        and _same_types(question, NARROW)
        and _mask_fits(question)
        and _heads_fit(question, grouped=True, same_kv=False)
        and _last_is_dense(question, ignores_single=True)
        and max(widths) <= widest
        and not any(width % 8 for width in widths)
        and key.size(-2) != 1
        and not (query.size(-2) == 1 and question.dropout > 0)
    )


def _mask_fits(question: Question) -> bool:
    """[checks `check_attn_mask_shape`]"""
    mask, (batch, heads, queries, _), keys = question.mask, question.query.size(), question.key.size(2)
    if mask is None:
        return True
    if mask.requires_grad or mask.size(-2) not in (queries, 1) or mask.size(-1) not in (keys, 1):
        return False
    return mask.dim() == 2 or (mask.dim() == 4 and mask.size(0) in (batch, 1) and mask.size(1) in (heads, 1))


FITS: Final[Mapping[Backend, Callable[[Question, int], bool]]] = {
    Backend.FLASH: _flash_fits,
    Backend.EFFICIENT: _efficient_fits,
    Backend.CUDNN: _cudnn_fits,
    Backend.MATH: lambda _question, _sm: True,
}
ALLOWED: Final[Mapping[Backend, Callable[[], bool]]] = {
    Backend.FLASH: lambda: bool(torch._C._get_flash_sdp_enabled()),
    Backend.EFFICIENT: lambda: bool(torch._C._get_mem_efficient_sdp_enabled()),
    Backend.CUDNN: lambda: bool(torch._C._get_cudnn_sdp_enabled()),
    Backend.MATH: lambda: bool(torch._C._get_math_sdp_enabled()),
}


FLASH_ALIGNMENT: Final = 8  # of the head size
MASK_ALIGNMENT: Final = 8  # of the efficient kernel's mask
HALF_BYTES: Final = 2
LOWEST: Final = -65504.0  # of fp16: what older cuDNN takes for minus infinity


def attention(
    simulation: Simulation, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor,
    attn_mask: torch.Tensor | None = None, dropout_p: float = 0.0, is_causal: bool = False, *,
    scale: float | None = None, enable_gqa: bool = False,
) -> torch.Tensor:
    """[sdpa]"""
    card = simulation.memory.card_of(local_part(query))
    options: dict[str, Any] = {"scale": scale, "enable_gqa": enable_gqa}
    if card is None and simulation.compiles_for:
        return on_card(simulation.compiles_for, query, key, value, attn_mask, dropout_p, is_causal, **options)
    if card is None:
        operator = torch.ops.aten.scaled_dot_product_attention.default
        return apart(operator, query, key, value, attn_mask, dropout_p, is_causal, **options)
    return on_card(card.sm, query, key, value, attn_mask, dropout_p, is_causal, **options)


def on_card(
    sm: int, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, attn_mask: torch.Tensor | None = None,
    dropout_p: float = 0.0, is_causal: bool = False, *, scale: float | None = None, enable_gqa: bool = False,
) -> torch.Tensor:
    """[sdpa] with the kernel of a card of that compute capability x 10."""
    question = Question(query, key, value, attn_mask, dropout_p, is_causal, enable_gqa)
    return RUNS[chosen(question, sm)](question, scale)


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
        query, key, value, mask, _takes_gradient(question), question.dropout, question.is_causal, scale=scale
    )[0]


def _cudnn(question: Question, scale: float | None) -> torch.Tensor:
    query, key, value = question[:3]
    return torch.ops.aten._scaled_dot_product_cudnn_attention(
        query, key, value, _additive(question, LOWEST), _takes_gradient(question), question.dropout,
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


RUNS: Final[Mapping[Backend, Callable[[Question, float | None], torch.Tensor]]] = {
    Backend.FLASH: _flash,
    Backend.EFFICIENT: _efficient,
    Backend.CUDNN: _cudnn,
    Backend.MATH: _math,
}


COMPOSITES: Final[Mapping[str, Any]] = {"scaled_dot_product_attention": attention}


FUSED: Final = frozenset({Backend.FLASH, Backend.EFFICIENT})
HEAD_ALIGNMENT: Final = 8


class Heads(NamedTuple):
    """Weights of one self-attention."""

    size: int
    number: int
    weight: torch.Tensor
    bias: torch.Tensor
    out_weight: torch.Tensor
    out_bias: torch.Tensor


def multi_head_attention(
    simulation: Simulation, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *given: Any
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """[heads]"""
    heads, rest = Heads(*given[:6]), (*given[6:], *(None, True, True)[len(given) - 6 :])
    mask, needs_weights, averages = rest[:3]
    is_same = query is key and key is value
    if is_same and mask is None and not needs_weights and _is_fused(simulation, heads, query):
        return _fused(heads, query), None
    return _apart(heads, query, mask, needs_weights=needs_weights, averages=averages)


def encoder_layer(simulation: Simulation, source: torch.Tensor, size: int, count: int, *given: Any) -> torch.Tensor:
    """[layer]"""
    attention, (use_gelu, norm_first, epsilon), weights = given[:4], given[4:7], given[7:15]
    norm1, norm2, (up, up_bias, down, down_bias) = weights[:2], weights[2:4], weights[4:]
    mask = given[15] if len(given) > 15 else None
    x = functional.layer_norm(source, (size,), *norm1, epsilon) if norm_first else source
    x = multi_head_attention(simulation, x, x, x, size, count, *attention, mask, False)[0]
    x.add_(source)
    x = x if norm_first else functional.layer_norm(x, (size,), *norm1, epsilon)
    before = x
    x = functional.layer_norm(x, (size,), *norm2, epsilon) if norm_first else x
    wide = torch.ops.aten._addmm_activation(up_bias, x.reshape(-1, size), up.t(), use_gelu=use_gelu)
    x = torch.addmm(down_bias, wide, down.t()).view(source.size())
    del wide
    x.add_(before)
    return x if norm_first else functional.layer_norm(x, (size,), *norm2, epsilon)


def _split(heads: Heads, x: torch.Tensor) -> torch.Tensor:
    return x.view(x.size(0), -1, heads.number, heads.size // heads.number).transpose(1, 2)


def _is_fused(simulation: Simulation, heads: Heads, query: torch.Tensor) -> bool:
    """Whether scaled_dot_product_attention would take a fused kernel other than cuDNN's."""
    card = simulation.memory.card_of(query)
    if card is None or heads.size // heads.number % HEAD_ALIGNMENT:
        return False
    one = _split(heads, query)
    return chosen(Question(one, one, one, None, 0.0, False, False), card.sm) in FUSED


def _fused(heads: Heads, query: torch.Tensor) -> torch.Tensor:
    projected = functional.linear(query, heads.weight, heads.bias)
    parts = [_split(heads, part) for part in projected.chunk(3, -1)]
    out = functional.scaled_dot_product_attention(*parts)
    return functional.linear(out.transpose(1, 2).reshape(query.size()), heads.out_weight, heads.out_bias)


def _apart(
    heads: Heads, query: torch.Tensor, mask: torch.Tensor | None, *, needs_weights: bool, averages: bool
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Scores of all heads; what attention gives is written over the queries. Weights are averaged over heads."""
    projected = torch.matmul(query, heads.weight.t())
    batch, tokens, _ = query.size()
    packed = query.new_empty((3, batch, heads.number, tokens, heads.size // heads.number))
    del projected
    q, k, _ = packed
    scores = torch.matmul(q, k.transpose(-2, -1))
    mask = mask if mask is None or mask.dtype is torch.bool else mask.to(torch.bool)
    weights = torch.softmax(scores, -1) if mask is None else torch.empty_like(scores)
    del scores
    rows = q.transpose(1, 2).reshape(-1, heads.size)
    out = torch.addmm(heads.out_bias, rows, heads.out_weight.t()).view(query.size())
    if not needs_weights:
        return out, None
    return out, weights.sum(1).div_(heads.number) if averages else weights


ENCODER_COMPOSITES: Final[Mapping[str, Any]] = {
    "_native_multi_head_attention": multi_head_attention, "_transformer_encoder_layer_fwd": encoder_layer,
}
