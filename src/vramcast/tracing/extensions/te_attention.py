"""Attention of TransformerEngine: cuDNN's fused kernels, softmax kernels, rotary embeddings.

Symbols:  B batch   S queries   H heads   D head width   T tokens of sequences one after the other
[attention] TransformerEngine transformer_engine/pytorch/csrc/extensions/attention.cpp: `fused_attn_fwd`,
`fused_attn_bwd`, commit d0067d0d
[choice] TransformerEngine transformer_engine/common/fused_attn/fused_attn.cpp `nvte_get_fused_attn_backend`
[softmax] TransformerEngine transformer_engine/pytorch/csrc/extensions/softmax.cpp
Left out: attention in 8 bits, pages of keys and values, conditions of [choice] on masks and windows.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

import torch

from vramcast.errors import Unsupported
from vramcast.tracing.call import Call, Rule
from vramcast.tracing.extensions.te_tensors import BACKENDS, DTYPES, ENUMERATIONS, Scaling, scaling_of
from vramcast.tracing.rules.layouts import FP32, contiguous_copy

LEAST_WORKSPACE: Final = 1  # byte, where a kernel needs none
ESTIMATED: Final = "cuDNN's attention is taken to work in one fp32 gradient of the queries and their row sums"
NARROW: Final = (DTYPES.kFloat16, DTYPES.kBFloat16)  # type: ignore[attr-defined]
AMPERE, HOPPER, BLACKWELL = 80, 90, 100
HEAD_ALIGNMENT: Final = 8
WIDEST, WIDEST_HOPPER = 128, 256
PAGED: Final = "Paged"
PARTS: Final = re.compile(r"[23]")


def chosen(call: Call) -> Any:
    """The kernels of cuDNN that take the heads on this card [choice]."""
    if len(call.args) != 1:
        raise Unsupported("TransformerEngine before 2.20 asks for its attention otherwise; trace with 2.20 or later")
    (asked,) = call.args
    backend = BACKENDS.NVTE_No_Backend  # type: ignore[attr-defined]
    if int(asked.qkv_dtype) not in (int(dtype) for dtype in NARROW):
        return backend, "attention in 8 bits is not simulated"
    widths = asked.head_dim_qk, asked.head_dim_v
    widest = WIDEST_HOPPER if HOPPER <= call.device.sm < BLACKWELL else WIDEST
    if call.device.sm < AMPERE or max(widths) > widest or any(width % HEAD_ALIGNMENT for width in widths):
        return backend, f"heads of {widths} on a card of compute capability {call.device.sm / 10}"
    return BACKENDS.NVTE_F16_arbitrary_seqlen, ""  # type: ignore[attr-defined]


def fused_forward(call: Call) -> Any:
    """Output, state of the generator, workspace, log-sum-exps [attention `fused_attn_fwd`]."""
    layout, out_format, bias_type, softmax_type = (_name(call.args[index], kind) for index, kind in (
        (6, "NVTE_QKV_Layout"), (7, "NVTE_QKV_Format"), (9, "NVTE_Bias_Type"), (11, "NVTE_Softmax_Type"),
    ))
    query, value = call.args[16], call.args[18]
    bias, offset = call.args[26], call.args[27]
    if PAGED in layout or any(scaling_of(call.args[index]) is not Scaling.NONE for index in (24, 25)):
        raise Unsupported("{} of pages, or in 8 bits, is not known; trace with attention in 16 bits", call.name)
    sizes = dict(zip(_letters(layout), query.size(), strict=True))
    sizes["d"] = value.size(-1)
    out = call.empty([sizes[letter] for letter in out_format.lower()], dtype=query.dtype)
    state = call.empty((2,), dtype=torch.int64)
    call.scratch(LEAST_WORKSPACE, "cuDNN workspace")
    statistics = [sizes[letter] for letter in ("th" if "t" in sizes else "bhs")] + [1]
    kept = [out, call.empty(statistics, dtype=torch.float32)]
    if call.args[30]:  # return_max_logit
        kept.append(call.empty(statistics, dtype=torch.float32))
    kept.append(state)
    if bias is not None and bias_type not in ("NO_BIAS", "ALIBI"):
        kept.append(bias)
    if offset is not None and softmax_type != "VANILLA_SOFTMAX":
        kept.append(offset)
    return kept


def fused_backward(call: Call) -> Any:
    """Gradients, parts of one tensor where queries, keys, values were; workspace [attention `fused_attn_bwd`]."""
    layout, target, bias_type, softmax_type = (_name(call.args[index], kind) for index, kind in (
        (5, "NVTE_QKV_Layout"), (8, "NVTE_QKV_Layout"), (11, "NVTE_Bias_Type"), (13, "NVTE_Softmax_Type"),
    ))
    inputs, kept = call.args[19:22], call.args[25]
    query = inputs[0]
    gradients = _gradients(call, layout, target, inputs)
    of_bias = of_offset = None
    if bias_type not in ("NO_BIAS", "ALIBI"):
        of_bias = call.empty(kept[-1].size(), dtype=query.dtype)
    if softmax_type != "VANILLA_SOFTMAX":
        heads = query.size(_letters(layout).index("h"))
        of_offset = call.empty((1, heads, 1, 1), dtype=torch.float32)
    call.simulation.assumptions.note(ESTIMATED)
    call.scratch(query.numel() // query.size(-1) * (query.size(-1) + 1) * FP32, "cuDNN workspace")
    return *gradients, of_bias, of_offset


def _gradients(call: Call, layout: str, target: str, inputs: Any) -> list[torch.Tensor]:
    """Separate ones, or two or three in one, as `target` says: "SB3HD", "SBHD_SB2HD" ..."""
    shapes = []
    for index, tensor in enumerate(inputs):
        sizes = dict(zip(_letters(layout, of_keys=index > 0), tensor.size(), strict=True))
        shapes.append([sizes[letter] for letter in _letters(target, of_keys=index > 0)])
    made: list[torch.Tensor] = []
    for part in target.split("_"):
        count = next((int(digit) for digit in PARTS.findall(part)), 1)
        shape = shapes[len(made)]
        if count == 1:
            made.append(call.empty(shape, dtype=inputs[0].dtype))
            continue
        place = part.index(str(count))
        whole = call.empty((*shape[:place], count, *shape[place:]), dtype=inputs[0].dtype)
        made += whole.unbind(place)
    return made


def _letters(layout: str, *, of_keys: bool = False) -> str:
    """Dimensions of the queries, or of the keys: "sbhd"."""
    parts = layout.split("_")
    return PARTS.sub("", parts[min(1, len(parts) - 1) if of_keys else 0]).lower()


def _name(value: Any, kind: str) -> str:
    return ENUMERATIONS[kind](int(value)).name.removeprefix("NVTE_")


def softmax(call: Call) -> Any:
    """Probabilities, or their gradient; copies of what is not contiguous [softmax]."""
    for tensor in call.args[:2]:
        if isinstance(tensor, torch.Tensor):
            contiguous_copy(call, tensor)
    return call.empty(call.args[0].size(), dtype=call.args[0].dtype)


def rotated(call: Call) -> Any:
    """A tensor like the first [csrc/extensions/apply_rope.cpp `fused_rope_forward`, `fused_rope_backward`]."""
    return call.empty(call.args[0].size(), dtype=call.args[0].dtype)


KERNELS: Final[Mapping[str, Rule]] = {
    "fused_attn_bwd": fused_backward, "fused_attn_fwd": fused_forward, "fused_rope_backward": rotated,
    "fused_rope_forward": rotated, "get_fused_attn_backend": chosen,
    **{
        f"scaled_{kind}softmax_{way}": softmax
        for kind in ("", "masked_", "upper_triang_masked_", "aligned_causal_masked_")
        for way in ("backward", "forward")
    },
}
