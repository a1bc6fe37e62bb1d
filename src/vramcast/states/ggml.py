"""Tensor types of ggml, and which of them each tensor of a GGUF file has by the name of the file's mix ("Q4_K_M").

The rows of `ggml_types.csv` say elements and bytes of a block, bytes beside each row.

[ggml] ggml-org/llama.cpp gguf-py/gguf/constants.py GGMLQuantizationType and GGML_QUANT_SIZES at ef035f7; ids 31 to 33
and 36 to 38 are run-time repackings that early files carried.
[ik] ikawrakow/ik_llama.cpp gguf-py/gguf/constants.py and ggml/src/ggml.c `type_traits` (row_meta_size) at 8337e4c;
names that end in _r4, _r8 or _r16 interleave rows and take the same bytes.
[quant] ggml-org/llama.cpp src/llama-quant.cpp `llama_tensor_get_type_impl`, `tensor_allows_quantization`,
`tensor_type_fallback`, with an importance matrix; [ik] ikawrakow/ik_llama.cpp src/llama.cpp `llama_tensor_get_type`.
Leaves out mixes that publishers tune tensor by tensor (UD-Q4_K_XL, own rules): the nearest plain mix stands for them.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Callable
from pkgutil import get_data
from typing import Final

from msgspec import Struct

from vramcast.errors import UnknownName
from vramcast.lazy import lazy_pattern


class GgmlType(Struct, frozen=True):
    """How one type stores elements."""

    block: int  # elements of a block
    block_bytes: int
    row_bytes: int = 0  # beside the blocks of each row: a scale
    source: str = "ggml"  # whose: "ggml", "ik"


def _tensor_types() -> dict[int, tuple[str, GgmlType]]:
    _, *rows = csv.reader((get_data(__package__, "ggml_types.csv") or b"").decode().splitlines())
    return {
        int(number): (name, GgmlType(int(block), int(block_bytes), int(row_bytes), source))
        for number, name, block, block_bytes, row_bytes, source in rows
    }


TENSOR_TYPES: Final[dict[int, tuple[str, GgmlType]]] = _tensor_types()
"""Types of llama.cpp and of ik_llama.cpp by the id that files carry."""

TYPES: Final[dict[str, GgmlType]] = dict(TENSOR_TYPES.values())
"""Name -> type."""

QUANTISED: Final = frozenset(name for name, stored in TYPES.items() if stored.block > 1)
"""Types of blocks with a scale of their own."""


def type_of(name: str) -> GgmlType:
    """The type of a name.

    Raises: UnknownName with the nearest names
    """
    if name not in TYPES:
        raise UnknownName.of("ggml type", name, TYPES)
    return TYPES[name]


def row_bytes(name: str, elements: int) -> int:
    """A row of so many elements [bytes]; a row that does not fill its blocks is no row of ggml.

    >>> row_bytes("q4_k", 4096), row_bytes("iq4_ks", 4096)
    (2304, 2180)
    """
    stored = type_of(name)
    return stored.row_bytes + elements // stored.block * stored.block_bytes


KEPT_WHOLE: Final = (
    "_norm.", "ffn_gate_inp", "ssm_conv1d", "position_embd", "token_types", "altup", "laurel", "per_layer_model_proj"
)
"""Parts of names of matrices that are never quantised [quant]."""

FALLBACKS: Final = {
    "iq2_xxs": "iq4_nl", "iq2_xs": "iq4_nl", "iq2_s": "iq4_nl", "iq3_xxs": "iq4_nl", "iq3_s": "iq4_nl",
    "iq1_s": "iq4_nl", "iq1_m": "iq4_nl", "q2_k": "iq4_nl", "q3_k": "iq4_nl", "iq4_xs": "iq4_nl",
    "tq1_0": "q4_0", "tq2_0": "q4_0",
    "q4_k": "q5_0", "q5_k": "q5_1", "q6_k": "q8_0",
}
"""What a row that does not fill blocks of 256 is stored in."""

NOT_RAISED: Final = ("q5_k", "q6_k", "q8_0", "q4_0", "q4_1", "q5_0", "q5_1", "tq1_0", "tq2_0")
"""Mixes whose output projections stay as they are in networks of 8 experts."""

MOST_EXPERTS_BOOSTED: Final = 8
"""Mixtral's number of experts: its keys and values are kept in Q8_0."""


class Where(Struct, frozen=True):
    """What a rule may look at."""

    layer: int
    layers: int
    grouped: bool  # at least 4 query heads per key/value head
    experts: int
    layers_80: bool = False  # Llama-2-70B and its kin
    tied: bool = False  # the embedding is the head too, and stored as a head

    @property
    def important(self) -> bool:
        """The first and last eighth of layers, and every third between [quant `use_more_bits`]."""
        eighth = self.layers // 8
        return self.layer < eighth or self.layer >= 7 * self.layers // 8 or (self.layer - eighth) % 3 == 2

    def first(self, share: int) -> bool:
        """In the first layers, one of so many parts."""
        return self.layer < self.layers // share


Rule = str | Callable[[Where], str]


class Mix(Struct, frozen=True):
    """A mix: the type of most tensors, and who gets another one."""

    base: str
    value: Rule = ""
    key: Rule = ""
    query: Rule = ""
    down: Rule = ""
    out: Rule = ""
    wide: Rule = ""  # gate and up
    output: str = "q6_k"
    embedding: str = ""


def _important(more: str, less: str) -> Rule:
    return lambda where: more if where.important else less


def _first(share: int, more: str, less: str) -> Rule:
    return lambda where: more if where.first(share) else less


def _grouped(more: str, less: str) -> Rule:
    return lambda where: more if where.grouped else less


def _start(count: int, more: str, less: str) -> Rule:
    return lambda where: more if where.layer < count else less


def _middle(less: str, more: str) -> Rule:
    return lambda where: less if not where.first(8) and where.layer < 7 * where.layers // 8 else more


def _low(base: str, small: str, out: str, embedding: str) -> Mix:
    """The mixes of 1 and 2 bits share one rule."""
    value: Rule = lambda where: "q4_k" if where.grouped or where.experts >= 4 else small  # noqa: E731
    return Mix(base, value=value, down=_first(8, small, base), out=out, output="q5_k", embedding=embedding)


MIXES: Final[dict[str, Mix]] = {
    "q2_k": Mix("q2_k", value=_grouped("q4_k", "q3_k"), down="q3_k", out="q3_k"),
    "q2_k_s": Mix("q2_k", value=_grouped("q4_k", "q2_k"), down=_first(8, "q4_k", "q2_k")),
    "q3_k_s": Mix("q3_k"),
    "q3_k_m": Mix("q3_k", value=_start(2, "q5_k", "q4_k"), down=_first(16, "q5_k", "q4_k"), out="q4_k"),
    "q3_k_l": Mix("q3_k", value="q5_k", down="q5_k", out="q5_k"),
    "q4_k_s": Mix("q4_k", value=_start(4, "q5_k", "q4_k"), down=_first(8, "q5_k", "q4_k")),
    "q4_k_m": Mix("q4_k", value=_important("q6_k", "q4_k"), down=_important("q6_k", "q4_k")),
    "q5_k_s": Mix("q5_k"),
    "q5_k_m": Mix("q5_k", value=_important("q6_k", "q5_k"), down=_important("q6_k", "q5_k")),
    "q6_k": Mix("q6_k"),
    "q8_0": Mix("q8_0", output="q8_0"),
    "q4_0": Mix("q4_0", down=_first(8, "q4_1", "q4_0")),
    "q4_1": Mix("q4_1"),
    "q5_0": Mix("q5_0", down=_first(8, "q5_1", "q5_0")),
    "q5_1": Mix("q5_1"),
    "iq1_s": _low("iq1_s", "q2_k", "iq2_xxs", "q2_k"),
    "iq1_m": _low("iq1_m", "q2_k", "iq2_xxs", "q2_k"),
    "iq2_xxs": _low("iq2_xxs", "q2_k", "", "q2_k"),
    "iq2_xs": _low("iq2_xs", "q2_k", "", "q2_k"),
    "iq2_s": _low("iq2_xs", "iq3_s", "iq3_s", "iq3_s"),
    "iq2_m": _low("iq2_s", "iq3_s", "iq3_s", "iq3_s"),
    "iq3_xxs": Mix(
        "iq3_xxs", value=_grouped("q4_k", "iq3_xxs"), key="iq2_s", query="iq2_s", out="iq3_s", output="q5_k",
        embedding="iq3_s",
    ),
    "iq3_xs": Mix(
        "iq3_s", value=_grouped("q4_k", "iq3_s"), key="iq3_xxs", query="iq3_xxs", wide=_middle("iq3_xxs", "iq3_s")
    ),
    "iq3_s": Mix("iq3_s", value=_grouped("q4_k", "iq3_s")),
    "iq3_m": Mix("iq3_s", value="q4_k", down=_first(8, "q4_k", "iq3_s"), out="q4_k"),
    "iq4_nl": Mix("iq4_nl", value=_grouped("q5_k", "iq4_nl")),
    "iq4_xs": Mix("iq4_xs", value=_grouped("q5_k", "iq4_xs")),
    "tq1_0": Mix("tq1_0", embedding="q4_k"),
    "tq2_0": Mix("tq2_0", embedding="q4_k"),
}
"""Mixes by their names in lower case [quant]."""

WHOLE: Final = {"f16": "f16", "bf16": "bf16", "f32": "f32", "fp16": "f16", "fp32": "f32"}
"""Mixes that quantise nothing."""

TUNED: Final = {"xl": "m", "nl": "nl", "xxl": "m"}
"""Size letters of publishers' own mixes -> those of plain ones."""

NAME: Final = lazy_pattern(r"(?<![a-z0-9])((?:i?q|tq)\d(?:_[a-z0-9]+)*|mxfp4(?:_moe)?|bf16|fp?16|fp?32)(?![a-z0-9])")


def known_mix(text: str) -> str | None:
    """The mix that a file's name or a log's words name, None when there is none.

    >>> known_mix("Qwen3.5-9B-UD-Q4_K_XL.gguf"), known_mix("Q4_K - Medium"), known_mix("IQ4_K_R4 - 4.5 bpw")
    ('q4_k_m', 'q4_k_m', 'iq4_k_r4')
    """
    lower = re.sub(r"\s*-\s*(small|medium|large)\b", lambda size: f"_{size[1][0]}", text.lower())
    for found in NAME.findall(lower.replace(".gguf", " ")):
        stem, _, size = found.rpartition("_")
        for name in (found, f"{stem}_{TUNED.get(size, size)}", stem, f"{found}_m"):
            if name in MIXES or name in WHOLE or name in QUANTISED or name == "mxfp4_moe":
                return str(name)
    return None


def mix_format(mix: str, name: str, shape: tuple[int, ...], where: Where) -> str:
    """The type of one tensor.

    Args:
        mix: name of a mix or of a type, lower case
        name: of the tensor, as GGUF files call it ("blk.0.attn_v.weight")
        shape: the fastest dimension last
        where: which layer of how many, and what of the network decides

    Raises: UnknownName for a mix that is not known
    """
    if len(shape) < 2 or not name.endswith(".weight"):
        return "f32"
    if any(part in name for part in KEPT_WHOLE):
        return "f32"
    if mix in WHOLE:
        return WHOLE[mix]
    if mix == "mxfp4_moe":
        return "mxfp4" if "_exps." in name else "q8_0"
    if mix not in MIXES and mix not in QUANTISED:
        raise UnknownName.of("GGUF mix", mix, (*MIXES, *WHOLE, *QUANTISED))
    chosen = _choose(MIXES.get(mix) or Mix(mix), name, where)
    return chosen if shape[-1] % TYPES[chosen].block == 0 else _fallback(chosen, shape[-1])


def _fallback(chosen: str, columns: int) -> str:
    other = FALLBACKS.get(chosen, "q8_0")
    return other if columns % TYPES[other].block == 0 else "f16"


def _choose(mix: Mix, name: str, where: Where) -> str:
    """The type before the row's length is looked at."""
    part = name.removesuffix(".weight").rpartition(".")[2]
    if part == "output" or (part == "token_embd" and where.tied):
        return mix.output
    if part == "token_embd":
        return mix.embedding or mix.base
    field = PARTS.get(part.removesuffix("_exps").removesuffix("_shexp"))
    if field is None:
        return mix.base
    if where.experts == MOST_EXPERTS_BOOSTED and field in ("value", "key") and mix.base != "q8_0":
        return "q8_0" if not mix.base.startswith(("iq1", "iq2")) else "q4_k"
    rule: Rule = getattr(mix, field)
    chosen = rule(where) if callable(rule) else rule
    if field == "value" and where.layers_80 and chosen in ("q3_k", "q4_k"):
        return "q5_k"
    if field == "out" and where.experts == MOST_EXPERTS_BOOSTED and mix.base not in NOT_RAISED:
        return "q5_k"
    return chosen or mix.base


PARTS: Final = {
    "attn_v": "value", "attn_kv_b": "value", "attn_qkv": "value", "attn_k": "key", "attn_q": "query",
    "attn_output": "out", "ffn_down": "down", "ffn_gate": "wide", "ffn_up": "wide",
}
"""Last part of a tensor's name -> field of the mix."""
