"""How a checkpoint packs the weights of its linears, from `quantization_config`.

Keys per method: transformers v5.23.0, src/transformers/utils/quantization_config.py; modelopt and compressed-tensors
write `quant_algo` and `config_groups`.
"""

from __future__ import annotations

from typing import Final

from vramcast.families.fields import Fields

BY_BITS: Final = frozenset({"gptq", "awq", "auto-round", "autoround", "eetq", "hqq", "quanto", "vptq", "aqlm"})
"""Methods whose storage is an integer of `bits`."""

ALGORITHMS: Final[dict[str, str]] = {
    "FP8": "fp8",
    "FP8_PB_WO": "fp8",
    "NVFP4": "nvfp4",
    "NVFP4_AWQ": "nvfp4",
    "MIXED_PRECISION": "nvfp4",
    "W4A16_AWQ": "int4",
    "W8A8_SQ_PER_CHANNEL": "int8",
}
"""modelopt's `quant_algo` -> storage; mixed precision keeps most of it in 4 bits."""


def quantisation_of(fields: Fields) -> str | None:
    """Storage of the linears: fp8, nvfp4, mxfp4, nf4, int4, int8 ..., the method's own name when unknown, or None."""
    inner = fields.section("quantization_config")
    if inner is None:
        return None
    algorithm = inner.word("quant_algo", "")
    if algorithm:
        return ALGORITHMS.get(algorithm, algorithm.lower())
    method = inner.word("quant_method", "").lower()
    if method in ("fp8", "fbgemm_fp8"):
        return "fp8"
    if method == "bitsandbytes" or inner.flag("load_in_4bit") or inner.flag("load_in_8bit"):
        return inner.word("bnb_4bit_quant_type", "nf4") if inner.flag("load_in_4bit") else "int8"
    if method in BY_BITS:
        return f"int{inner.count('bits', 4)}"
    if method == "compressed-tensors":
        return _compressed(inner)
    return method or None


def _compressed(inner: Fields) -> str:
    """The weights' format of the first group."""
    groups = inner.section("config_groups")
    first = groups.section(groups.keys()[0]) if groups is not None and groups.keys() else None
    weights = first.section("weights") if first is not None else None
    if weights is None:
        return "compressed-tensors"
    kind, bits = weights.word("type", "int"), weights.count("num_bits", 8)
    return ("fp8" if bits == 8 else "nvfp4") if kind == "float" else f"int{bits}"
