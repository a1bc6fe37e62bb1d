"""What a block needs to know about the run: local sizes, element widths and implementations."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import Struct

from vramcast.domain.job import AttentionKernel
from vramcast.domain.model import Model, Norm
from vramcast.operators.linear import Numerics

if TYPE_CHECKING:
    from vramcast.operators.fake_quantised import Fake
    from vramcast.operators.lora import Adapter


def norm_variant(model: Model) -> str:
    """The RMSNorm that a family's code in transformers writes, a key of RMS_NORM_VARIANTS."""
    if model.main.layers[0].norm is not Norm.RMS:
        return "eager"
    return next((name for name in ("gemma", "t5") if model.family.startswith(name)), "eager")


class Dispatch(Struct, frozen=True):
    """How torchtitan brings rows to their experts and back."""

    ranks: int = 1  # over which whole experts are spread
    row_ranks: int = 1  # tensor-parallel ranks that divide the rows among themselves
    in_order: bool = False  # rows come back in the order of tokens and are summed in fp32, instead of scattered
    fp32_gate: bool = False  # the gate reads an fp32 copy of the states


class Sizes(Struct, frozen=True):
    """One rank's share of a micro-batch, and how its operators are implemented."""

    batch: int  # samples
    seq_len: int  # positions of one sample that this rank attends from [tokens]
    hidden: int  # H
    numerics: Numerics = Numerics()
    attention: AttentionKernel = AttentionKernel.FLASH
    norm: str = "eager"  # key of RMS_NORM_VARIANTS
    activation: str = "eager"  # or a key of OVERWRITES
    rope: str = "eager"  # key of ROPE_VARIANTS
    fp32_softmax: bool = True  # eager attention computes its softmax in fp32
    masked: bool = False  # attention gets an explicit mask (padded batches)
    grouped: bool = True  # the attention kernel reads grouped key/value heads without copies
    keys: int | None = None  # positions attended to, when not seq_len (context parallelism)
    tp: int = 1  # tensor-parallel ranks
    sequence_parallel: bool = False  # norms and residuals hold seq_len / tp positions
    hidden_dropout: float = 0.0
    attention_dropout: float = 0.0
    frozen: bool = False  # no weight of the block learns, but those `trained` names
    trained: tuple[str, ...] = ()  # paths that learn although the block is frozen
    adapter: Adapter | None = None
    norm_weights: int | None = None  # bytes of an element of a norm's weight; None: as the other weights
    wide_layer_norms: bool = False  # autocast runs LayerNorm in fp32 although the stream is 16 bits wide
    stored: str = "full"  # key of QUANTISED: how frozen linear weights are stored
    left_whole: tuple[str, ...] = ()  # how the paths of those begin that are not
    fake: Fake | None = None  # linear layers round what they read to few bits and back
    stacked: bool = False  # packed experts are one tensor, unpacked all together
    loss_chunks: int = 1  # that a chunked loss takes the tokens in
    last_logits: int | None = None  # the head reads so many positions of a sample, counted from its end
    source_len: int = 0  # encoder positions that cross-attention reads [tokens]
    fused_gate: bool = False  # gate and up are halves of one product, which lives as long as either
    copies_scores: bool = False  # bf16 scores become fp32 in a copy before eager softmax; fp16 ones inside its kernel
    expert_loop: bool = False  # experts run one after the other instead of in one grouped product
    every_expert: bool = False  # all experts read all tokens, most of them with a score of zero (Llama 4)
    experts_in_place: bool = False  # ScatterMoE's kernels read and write rows where they are
    expert_ranks: int = 1  # that divide those experts
    expert_turns: int = 1  # how many turns of that loop are told apart: each leaves behind what backward reads
    caches: bool = False  # keys and values outlive the block
    caches_products: bool = False  # what the projections made outlives it, looked at as keys and values
    dispatch: Dispatch | None = None  # of experts, where they are not run as transformers does

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

    def packs(self, path: str) -> bool:
        """Whether a weight that does not learn is stored in few bits."""
        return self.stored != "full" and not path.startswith(self.left_whole)

    def trains(self, path: str) -> bool:
        """Whether a weight of a frozen block learns."""
        return any(path.startswith(name) for name in self.trained)
