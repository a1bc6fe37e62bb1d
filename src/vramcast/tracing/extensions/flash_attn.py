"""flash-attn's functions over its compiled part, for where the package is not installed: what each keeps for backward.

[interface] flash-attention 0251105a flash_attn/flash_attn_interface.py: `FlashAttnFunc`, `FlashAttnVarlenFunc` and
their packed kin, which keep the contiguous query, key and value, the output and its log-sum-exps; a packed input gets
one gradient for all its parts; heads are padded to a multiple of 8
[padding] flash_attn/bert_padding.py: `unpad_input`, `pad_input`, `index_first_axis`
Left out: `flash_attn_with_kvcache`, which raises, as its compiled function was not read.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

import torch
from torch.nn.functional import pad

from vramcast.tracing.extensions.stand_ins import unread

__all__ = (
    "flash_attn_func", "flash_attn_kvpacked_func", "flash_attn_qkvpacked_func", "flash_attn_varlen_func",
    "flash_attn_varlen_kvpacked_func", "flash_attn_varlen_qkvpacked_func", "flash_attn_with_kvcache",
    "index_first_axis", "index_put_first_axis", "pad_input", "unpad_input",
)

HEAD_ALIGNMENT = 8
flash_attn_with_kvcache = unread("flash_attn_2_cuda.fwd_kvcache")


def _compiled() -> Any:
    return import_module("flash_attn_2_cuda")


def _dense(tensor: torch.Tensor) -> torch.Tensor:
    return tensor if tensor.stride(-1) == 1 else tensor.contiguous()


def _padded(tensor: torch.Tensor) -> torch.Tensor:
    over = tensor.size(-1) % HEAD_ALIGNMENT
    return pad(tensor, [0, HEAD_ALIGNMENT - over]) if over else tensor


class _Attention(torch.autograd.Function):
    """Of tensors apart, or of one that holds three or two of them: `packed` is the dimension of these."""

    @staticmethod
    def forward(ctx: Any, starts: Any, longest: Any, how: dict[str, Any], packed: int | None, *given: Any) -> Any:
        *parts, last = given
        parts += (last,) if packed is None else last.unbind(packed)
        width = parts[0].size(-1)
        query, key, value = map(_dense, map(_padded, parts))
        scale = width ** -0.5 if how["scale"] is None else how["scale"]
        shared = how["dropout"], scale
        rest = how["causal"], *how["window"], how["softcap"]
        keeps = how["returns"] and how["dropout"] > 0
        if starts is None:
            made = _compiled().fwd(query, key, value, None, how["slopes"], *shared, *rest, keeps, None)
        else:
            made = _compiled().varlen_fwd(
                query, key, value, None, *starts, None, None, how["table"], how["slopes"], *longest, *shared, False,
                *rest, keeps, None, 0,
            )
        out, statistics, probabilities, state = made
        ctx.save_for_backward(query, key, value, out, statistics, state, *(starts or ()))
        ctx.longest, ctx.packed, ctx.width, ctx.given = longest, packed, width, len(given)
        ctx.how = shared, rest, how["slopes"], how["deterministic"]
        found = out[..., :width]
        return (found, statistics, probabilities) if how["returns"] else found

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor, *_: Any) -> Any:
        query, key, value, out, statistics, state, *starts = ctx.saved_tensors
        shared, (causal, *window, softcap), slopes, deterministic = ctx.how
        parts = query, key, value
        alone = parts if ctx.packed is None else parts[:ctx.given - 1]
        together = parts[len(alone):]
        given = [torch.empty_like(part) for part in alone]
        made = [*given]
        if together:  # the kernels write into one gradient, part by part
            sizes = [*together[0].size()]
            sizes.insert(ctx.packed, len(together))
            given.append(together[0].new_empty(sizes))
            made += given[-1].unbind(ctx.packed)
        taken = _dense(_padded(gradient)), *parts, out, statistics, *made
        rest = deterministic, None, state
        if starts:
            _compiled().varlen_bwd(
                *taken, *starts, slopes, *ctx.longest, *shared, False, causal, *window, softcap, *rest
            )
        else:
            _compiled().bwd(*taken, slopes, *shared, causal, *window, softcap, *rest)
        return None, None, None, None, *(each[..., :ctx.width] for each in given)


def _attend(
    given: tuple[Any, ...], packed: int | None, starts: Any, longest: Any, dropout_p: float = 0.0,
    softmax_scale: float | None = None, causal: bool = False, window_size: tuple[int, int] = (-1, -1),
    softcap: float = 0.0, alibi_slopes: Any = None, deterministic: bool = False, return_attn_probs: bool = False,
    block_table: Any = None,
) -> Any:
    how = {
        "dropout": dropout_p, "scale": softmax_scale, "causal": causal, "window": window_size, "softcap": softcap,
        "slopes": alibi_slopes, "deterministic": deterministic, "returns": return_attn_probs, "table": block_table,
    }
    return _Attention.apply(starts, longest, how, packed, *given)


def flash_attn_func(q: Any, k: Any, v: Any, *args: Any, **kwargs: Any) -> Any:
    return _attend((q, k, v), None, None, None, *args, **kwargs)


def flash_attn_kvpacked_func(q: Any, kv: Any, *args: Any, **kwargs: Any) -> Any:
    return _attend((q, kv), 2, None, None, *args, **kwargs)


def flash_attn_qkvpacked_func(qkv: Any, *args: Any, **kwargs: Any) -> Any:
    return _attend((qkv,), 2, None, None, *args, **kwargs)


def flash_attn_varlen_func(
    q: Any, k: Any, v: Any, cu_seqlens_q: Any, cu_seqlens_k: Any, max_seqlen_q: int, max_seqlen_k: int, *args: Any,
    **kwargs: Any,
) -> Any:
    return _attend((q, k, v), None, (cu_seqlens_q, cu_seqlens_k), (max_seqlen_q, max_seqlen_k), *args, **kwargs)


def flash_attn_varlen_kvpacked_func(
    q: Any, kv: Any, cu_seqlens_q: Any, cu_seqlens_k: Any, max_seqlen_q: int, max_seqlen_k: int, *args: Any,
    **kwargs: Any,
) -> Any:
    return _attend((q, kv), 1, (cu_seqlens_q, cu_seqlens_k), (max_seqlen_q, max_seqlen_k), *args, **kwargs)


def flash_attn_varlen_qkvpacked_func(qkv: Any, cu_seqlens: Any, max_seqlen: int, *args: Any, **kwargs: Any) -> Any:
    return _attend((qkv,), 1, (cu_seqlens, cu_seqlens), (max_seqlen, max_seqlen), *args, **kwargs)


class _Taken(torch.autograd.Function):
    """Rows by their numbers, by gather and scatter, whose indices are as wide as the rows [padding]."""

    @staticmethod
    def forward(ctx: Any, rows: torch.Tensor, indices: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(indices)
        ctx.count, width = rows.size(0), rows[0].numel()
        wide = indices.unsqueeze(1).repeat(1, width)
        return torch.gather(rows.reshape(ctx.count, width), 0, wide).reshape(-1, *rows.size()[1:])

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        indices, = ctx.saved_tensors
        flat = gradient.reshape(gradient.size(0), -1)
        found = flat.new_zeros((ctx.count, flat.size(1)))
        found.scatter_(0, indices.unsqueeze(1).repeat(1, flat.size(1)), flat)
        return found.reshape(ctx.count, *gradient.size()[1:]), None


class _Put(torch.autograd.Function):
    """Rows to their places among zeros [padding]."""

    @staticmethod
    def forward(ctx: Any, values: torch.Tensor, indices: torch.Tensor, count: int) -> torch.Tensor:
        ctx.save_for_backward(indices)
        found = values.new_zeros((count, *values.size()[1:]))
        found[indices] = values
        return found

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        indices, = ctx.saved_tensors
        return gradient[indices], None, None


index_first_axis, index_put_first_axis = _Taken.apply, _Put.apply


def unpad_input(hidden_states: Any, attention_mask: Any, unused_mask: Any = None) -> Any:
    """Rows that a mask keeps, their numbers, where sequences start, the longest, how many each has."""
    kept = attention_mask if unused_mask is None else attention_mask + unused_mask
    lengths, used = (mask.sum(dim=-1, dtype=torch.int32) for mask in (kept, attention_mask))
    indices = torch.nonzero(kept.flatten(), as_tuple=False).flatten()
    longest = lengths.max().item()
    starts = pad(torch.cumsum(lengths, dim=0, dtype=torch.int32), (1, 0))
    return index_first_axis(hidden_states.flatten(0, 1), indices), indices, starts, longest, used


def pad_input(hidden_states: Any, indices: Any, batch: int, seqlen: int) -> Any:
    return index_put_first_axis(hidden_states, indices, batch * seqlen).unflatten(0, (batch, seqlen))
