"""What a block needs to know about the run: local sizes, element widths and implementations."""

from __future__ import annotations

from typing import NamedTuple

from vramcast.domain.job import AttentionKernel
from vramcast.operators.linear import Dense, Numerics


class Adapter(NamedTuple):
    """A trainable correction beside frozen linear layers."""

    rank: int
    targets: tuple[str, ...]  # paths, "attention.q"
    width: int = 4  # bytes of an adapter weight: PEFT keeps them in fp32
    dropout: float = 0.0
    dora: bool = False


class Quantised(NamedTuple):
    """Frozen weights that a linear layer unpacks when it runs."""

    kind: str  # "nf4", "int8", "gptq-int4" ...
    excluded: tuple[str, ...] = ()  # paths stored in full


class Sizes(NamedTuple):
    """One rank's share of a micro-batch, and how its operators are implemented."""

    batch: int  # samples
    seq_len: int  # positions of one sample that this rank attends from [tokens]
    hidden: int  # H
    numerics: Numerics = Numerics()
    attention: AttentionKernel = AttentionKernel.FLASH
    norm: str = "eager"  # variant name of the norm operator
    activation: str = "eager"
    rope: str = "eager"
    fp32_softmax: bool = True  # eager attention computes its softmax in fp32
    masked: bool = False  # attention gets an explicit mask (padded batches)
    grouped: bool = True  # the attention kernel reads grouped key/value heads without copies
    keys: int | None = None  # positions attended to, when not seq_len (context parallelism)
    tp: int = 1  # tensor-parallel ranks
    sequence_parallel: bool = False  # norms and residuals hold seq_len / tp positions
    hidden_dropout: float = 0.0
    attention_dropout: float = 0.0
    frozen: bool = False  # no weight of the block learns
    adapter: Adapter | None = None
    quantised: Quantised | None = None
    source_len: int = 0  # encoder positions that cross-attention reads [tokens]

    @property
    def tokens(self) -> int:
        """Rows of every matrix product."""
        return self.batch * self.seq_len

    @property
    def residual_tokens(self) -> int:
        """Rows of the residual stream on this rank."""
        return self.tokens // self.tp if self.sequence_parallel else self.tokens

    @property
    def residual_bytes(self) -> int:
        """The residual stream of one rank [bytes]."""
        return self.residual_tokens * self.hidden * self.numerics.residual

    def dense(self, out_features: int, in_features: int, *, bias: bool = False) -> Dense:
        """A linear layer that learns unless the block is frozen."""
        return Dense(out_features, in_features, bias, not self.frozen)
