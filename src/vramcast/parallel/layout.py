"""What one rank holds of a divided model: local widths, local tokens, local experts.

[Megatron] Shoeybi et al., arXiv:1909.08053; [SP] Korthikanti et al., arXiv:2205.05198.
[apart] sgl-project/sglang srt/models/deepseek_v2.py and qwen3_moe.py under --enable-dp-attention: `DeepseekV2MLP` and
`lm_head` lie on the whole tensor-parallel group, `embed_tokens` has `enable_tp=not is_dp_attention_enabled()`
"""

from __future__ import annotations

from math import prod
from typing import Final

from msgspec.structs import replace

from vramcast.domain.job import Plan, share
from vramcast.domain.model import Noun, Parameter, Split
from vramcast.errors import InvalidSpec
from vramcast.units import ceil_div, round_up

OVER_ALL: Final = ("mlp.", "moe.shared.", "head", "mtp.mlp.", "mtp.moe.shared.", "mtp.head")
"""Beginnings of the paths of weights that copies of attention divide together."""


class Layout(Noun, frozen=True):
    """Degrees of parallelism and the local sizes they lead to."""

    tp: int = 1
    pp: int = 1
    cp: int = 1
    ep: int = 1
    etp: int = 1
    dp: int = 1  # context parallelism not counted in
    sequence_parallel: bool = False
    vocab_divisor: int = 1  # the embedding is padded to a multiple of this times tp
    kv_heads: int = 0  # of the layer in question; 0: no copies of keys and values
    apart: int = 1  # copies of attention that divide the dense feed-forward blocks and the head together [apart]

    def around(self, parameter: Parameter) -> Layout:
        """The degrees that a weight is divided by where attention has copies of its own [apart]."""
        if self.apart == 1 or parameter.expert:
            return self
        if parameter.path.startswith(OVER_ALL):
            return replace(self, tp=self.tp * self.apart)
        return replace(self, tp=1) if parameter.kind == "embedding" else self

    @property
    def expert_dp(self) -> int:
        """Ranks that share one copy of the experts."""
        return max(1, self.dp * self.cp * self.tp // (self.ep * self.etp))

    def local_kv_heads(self, heads: int) -> int:
        """Key/value heads of one rank: at least one, copied when there are fewer than ranks."""
        return max(1, heads // self.tp)

    def local_experts(self, experts: int) -> int:
        """Experts of one rank."""
        return share("ep", experts, self.ep, what="experts")

    def padded_vocab(self, vocab: int) -> int:
        """Rows of the embedding over all ranks."""
        return round_up(vocab, self.vocab_divisor * self.tp)

    def local_vocab(self, vocab: int) -> int:
        """Rows of the embedding on one rank."""
        return self.padded_vocab(vocab) // self.tp

    def local_elements(self, parameter: Parameter) -> int:
        """Elements of a weight that one rank owns."""
        if parameter.expert:
            experts, *rest = parameter.shape
            inner = prod(rest)
            divided = parameter.split in (Split.COLUMN, Split.ROW)
            return ceil_div(experts, self.ep) * (ceil_div(inner, self.etp) if divided else inner)
        match parameter.split:
            case Split.REPLICATED:
                return parameter.elements
            case Split.VOCAB:
                return self.local_vocab(parameter.shape[0]) * prod(parameter.shape[1:])
            case Split.KV:
                kept = min(self.tp, self.kv_heads) if self.kv_heads else self.tp
                return ceil_div(parameter.elements, kept)
            case _:
                return ceil_div(parameter.elements, self.tp)


def uneven(engine: str, plan: Plan, asked: str, length: int, divisor: int) -> InvalidSpec:
    """The refusal of a length that sequence and context parallelism do not divide.

    Args:
        engine: whose rule it is
        plan: how many ranks share the positions
        asked: the option with its value, "seq-len=4097"
        length: its value [tokens]
        divisor: of what would be accepted [tokens]
    """
    below = length // divisor * divisor
    return InvalidSpec(
        "{} divides positions evenly over tp={} and cp={}, by {}; {} does not divide so, use {} or {}",
        engine, plan.tp, plan.cp, divisor, asked, below or divisor, below + divisor
    )
