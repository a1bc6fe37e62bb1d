"""What one step does, kernel by kernel: operations, bytes by what they are, messages."""

from __future__ import annotations

from msgspec import Struct

from vramcast.domain.model import Parameter
from vramcast.states.storage import format_for
from vramcast.timing.execution import Execution


class Work(Struct, frozen=True):
    """One operator on one rank."""

    name: str  # "attention.q", "norm"
    flops: float = 0.0
    operands: str = ""  # storage format of the weights, which decides the rate of the products; "": the model's dtype
    weight_bytes: float = 0.0
    cache_bytes: float = 0.0  # keys, values and recurrent states, read and written
    activation_bytes: float = 0.0
    bytes_per_s: float | None = None  # where the kernel itself moves no more, however fast the memory
    message_bytes: float = 0.0  # of one rank's part in a collective
    ranks: int = 1  # of that collective
    pattern: str = ""  # key of `links.PATTERNS`
    kernels: float = 1.0

    @property
    def num_bytes(self) -> float:
        """Everything moved between the card's memory and its processors [bytes]."""
        return self.weight_bytes + self.cache_bytes + self.activation_bytes


class Step(Struct, frozen=True):
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


class Placement(Struct, frozen=True):
    """How the network lies on the ranks, and in which formats."""

    quantised: str = "bf16"  # key of `states.storage.FORMATS` for the weights that quantisers convert
    whole: str = "bf16"  # of all others, and the dtype of activations
    k_dtype: str = "bf16"
    v_dtype: str | None = None
    tp: int = 1
    ep: int = 1  # ranks over which whole experts are spread
    dcp: int = 1  # ranks over which a sequence's cache is spread
    left_whole: tuple[str, ...] | None = None  # see `states.storage.format_for`

    def stored_as(self, parameter: Parameter) -> str:
        """Key of FORMATS: how a weight is stored."""
        return format_for(parameter, quantised=self.quantised, whole=self.whole, left_whole=self.left_whole)

    @property
    def width(self) -> int:
        """Bytes of an activation."""
        return 4 if self.whole == "fp32" else 2


class Setting(Struct, frozen=True):
    """What a step's work depends on beside the network."""

    step: Step
    placement: Placement
    execution: Execution


def collective(pattern: str, num_bytes: float, *, ranks: int) -> Work:
    """A message between ranks; no kernel of its own is counted, its latency holds the launch."""
    return Work(pattern, message_bytes=num_bytes, ranks=ranks, pattern=pattern, kernels=0.0)
