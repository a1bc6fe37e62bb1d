"""What one step does, kernel by kernel: operations, bytes by what they are, messages."""

from __future__ import annotations

from typing import NamedTuple


class Work(NamedTuple):
    """One operator on one rank, and how often it runs in a step."""

    name: str  # "attention.q", "norm"
    flops: float = 0.0
    operands: str = ""  # storage format of the weights, which decides the rate of the products; "": the model's dtype
    weight_bytes: float = 0.0
    cache_bytes: float = 0.0  # keys, values and recurrent states, read and written
    activation_bytes: float = 0.0
    message_bytes: float = 0.0  # of one rank's part in a collective
    ranks: int = 1  # of that collective
    pattern: str = ""  # key of `links.PATTERNS`
    kernels: float = 1.0
    repeats: int = 1

    @property
    def num_bytes(self) -> float:
        """Everything moved between the card's memory and its processors [bytes]."""
        return self.weight_bytes + self.cache_bytes + self.activation_bytes


class Step(NamedTuple):
    """One forward on one rank: sequences, the tokens each brings, and those already cached."""

    sequences: int
    tokens: int  # new ones of each sequence
    cached: int = 0  # of each sequence, before this step
    head_rows: int = 1  # positions of each sequence whose logits are computed

    @property
    def rows(self) -> int:
        """Rows of every matrix product."""
        return self.sequences * self.tokens

    @property
    def decodes(self) -> bool:
        """Whether every sequence brings one token."""
        return self.tokens == 1 and self.cached > 0


class Placement(NamedTuple):
    """How the network lies on the ranks, and in which formats."""

    quantised: str = "bf16"  # key of `states.storage.FORMATS` for the weights that quantisers convert
    whole: str = "bf16"  # of all others, and the dtype of activations
    k_dtype: str = "bf16"
    v_dtype: str | None = None
    tp: int = 1
    ep: int = 1  # ranks over which whole experts are spread
    dcp: int = 1  # ranks over which a sequence's cache is spread

    @property
    def width(self) -> int:
        """Bytes of an activation."""
        return 4 if self.whole == "fp32" else 2
