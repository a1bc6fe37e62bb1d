"""The plain values a Megatron block is built from."""

from __future__ import annotations

from typing import Literal

from vramcast.domain.model import Noun
from vramcast.operators.transformer_engine import Linear, Lora

Kernel = Literal["flash", "cudnn", "unfused", "local"]


class Shape(Noun, frozen=True):
    """Local sizes of one micro-batch and the implementations in use."""

    seq: int  # positions of a sample on this rank, context parallelism divided out [tokens]
    batch: int  # samples of a micro-batch
    tp: int = 1
    cp: int = 1
    ep: int = 1
    etp: int = 1
    sp: bool = False
    element: int = 2  # bytes of an activation
    te: bool = True
    kernel: Kernel = "cudnn"
    hidden_dropout: bool = False
    attention_dropout: bool = False
    rope_fusion: bool = True
    gelu_fusion: bool = True
    swiglu_fusion: bool = True
    fp8: bool = False
    cp_a2a: bool = False
    dispatcher: Literal["allgather", "alltoall", "flex"] = "alltoall"
    capacity_factor: float | None = None
    router_fp32: bool = False
    kv_seq: int = 0  # encoder positions that cross-attention reads
    recompute_modules: tuple[str, ...] = ()
    lora: Lora | None = None  # all weights are frozen, adapters learn

    @property
    def tokens(self) -> int:
        """Positions inside tensor-parallel regions."""
        return self.seq * self.batch

    @property
    def tokens_between(self) -> int:
        """Positions between blocks."""
        return self.tokens // self.tp if self.sp else self.tokens

    def linear(self, rows: int, columns: int, *, tokens: int | None = None) -> Linear:
        """A linear of these local widths over the positions of a rank, or over `tokens`."""
        n = self.tokens if tokens is None else tokens
        return Linear(rows, columns, n, self.tokens_between, self.element, self.lora)
