"""The architecture of a neural network, free of any framework's config names.

A model is a tuple of *stacks* (text decoder, encoder, vision tower); a stack is a run-length list of
*layers*; a layer mixes tokens (attention, MLA, state space) and then channels (MLP, MoE).
Axis letters in comments: H hidden, A heads, G key/value heads, D head width, F feed-forward width, V vocabulary.

A model with what the headers of its checkpoint say: tensors with their exact bytes.
"""

from __future__ import annotations

from enum import StrEnum
from math import prod
from typing import Any, ClassVar, Final, Literal

from msgspec import Struct, to_builtins
from msgspec.structs import asdict, replace


class Norm(StrEnum):
    """What normalises hidden states, and which weights it owns."""

    RMS = "rms"  # H weights
    LAYER = "layer"  # H weights + H biases
    LAYER_NO_BIAS = "layer_no_bias"  # H weights
    PLAIN = "plain"  # no weights (OLMo 1)


class Noun(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """Base of the frozen nouns. Their fields are also the keys of their JSON, by the names that `rename` gives them; a
    field that holds its default is absent. `report.document` writes it, `web.documents` describes it.
    """

    KEYS: ClassVar[tuple[Any, ...]] = ()
    """Where they are not the fields alone: the keys in order, each the name of a field or a property, or a pair of a
    key and the path to what it shows ("price.region"); `...` stands for all fields."""
    SHOWN: ClassVar[tuple[str, ...]] = ()
    """Of those, keys that hold a default and are there nevertheless."""

    def as_plain(self) -> dict[str, Any]:
        """As plain data, without what is not known."""
        known = {name: value for name, value in asdict(self).items() if value is not None}
        plain: dict[str, Any] = to_builtins(known)
        return plain


class Split(StrEnum):
    """How tensor parallelism divides a parameter."""

    REPLICATED = "replicated"
    COLUMN = "column"  # first (output) dimension
    ROW = "row"  # second (input) dimension
    VOCAB = "vocab"  # embedding rows, padded to a multiple first
    KV = "kv"  # as COLUMN, but copied when there are fewer key/value heads than ranks


class Parameter(Noun, frozen=True):
    """One weight tensor of one layer or of an embedding/head."""

    path: str  # within its owner, e.g. "attention.q"
    shape: tuple[int, ...]
    split: Split = Split.REPLICATED
    expert: bool = False  # divided by expert parallelism
    kind: Literal["matrix", "embedding", "norm", "bias", "scalar", "conv"] = "matrix"
    trainable: bool = True  # False: the optimizer never sees it (routing corrections, fixed positions)

    @property
    def elements(self) -> int:
        return prod(self.shape)


class Attention(Noun, frozen=True, tag="attention"):
    """Multi-head, grouped-query or multi-query attention (G = A, 1 < G < A, G = 1)."""

    num_heads: int
    num_kv_heads: int
    head_dim: int
    v_head_dim: int | None = None  # differs from head_dim in a few models
    qkv_bias: bool = False
    k_bias: bool | None = None  # None: as qkv_bias; Whisper's keys have none
    out_bias: bool = False
    qk_norm: Literal["none", "head", "full"] = "none"  # head: D weights each; full: A*D and G*D
    qk_norm_kind: Norm = Norm.RMS
    rope: bool = True
    rope_fraction: float = 1.0
    position_bias: Literal["none", "alibi", "relative"] = "none"  # added to the scores
    window: int | None = None  # sliding window [tokens]
    output_gate: bool = False  # q projection twice as wide (Qwen3-Next)
    softcap: bool = False  # scores pass through tanh (Gemma 2)
    sinks: bool = False  # one learned logit per head (gpt-oss)
    relative_buckets: int = 0  # T5: buckets x A biases, owned by the first layer of a stack
    shared_kv: bool = False  # cross-layer KV sharing: no own k/v projection
    k_is_v: bool = False  # one projection serves keys and values
    q_lora_rank: int | None = None  # queries through a narrow, normed projection (DeepSeek V4)
    kv_norm: bool = False  # a norm over the one key/value head (DeepSeek V4)
    out_lora_rank: int = 0  # output in two steps: per group of heads to this width, then to H (DeepSeek V4)
    out_groups: int = 1
    copies_context: bool = False  # heads come first in memory, so that what they put out is copied (Whisper)
    source_width: int | None = None  # cross-attention: width of the states that keys and values read


class MultiLatentAttention(Noun, frozen=True, tag="mla"):
    """DeepSeek-V2/V3 attention with compressed keys and values."""

    num_heads: int
    q_lora_rank: int | None
    kv_lora_rank: int
    qk_nope_dim: int
    qk_rope_dim: int
    v_head_dim: int
    bias: bool = False
    indexer_heads: int = 0  # DeepSeek sparse attention (V3.2): lightning indexer
    indexer_dim: int = 0


class Mamba(Noun, frozen=True, tag="mamba"):
    """Selective state space layer; version 1 (Mamba, Jamba) or 2 (Mamba-2, Nemotron-H)."""

    version: Literal[1, 2]
    inner_dim: int
    state_dim: int
    conv_kernel: int = 4
    dt_rank: int = 0  # version 1
    num_heads: int = 0  # version 2
    head_dim: int = 0
    num_groups: int = 1
    conv_bias: bool = True
    proj_bias: bool = False
    inner_norms: bool = False  # Jamba's dt/B/C norms
    gated_norm: bool = True  # version 2: what the scan makes is normed behind its gate


class LinearAttention(Noun, frozen=True, tag="linear_attention"):
    """Gated delta net (Qwen3-Next, Qwen3.5) and its kin (Kimi delta attention); a gated short convolution has no keys
    and keeps only its last inputs (LFM2)."""

    num_k_heads: int
    num_v_heads: int
    k_head_dim: int
    v_head_dim: int
    conv_kernel: int = 4
    variant: Literal["gated_delta", "kimi_delta", "lightning", "short_conv"] = "gated_delta"


class MLP(Noun, frozen=True, tag="mlp"):
    """Feed-forward block; gated ones (SwiGLU, GeGLU) own two input projections."""

    width: int  # F
    gated: bool
    activation: str = "silu"
    bias: bool = False


class MoE(Noun, frozen=True, tag="moe"):
    """Routed experts beside optional shared ones."""

    num_experts: int
    top_k: int
    expert: MLP
    shared_width: int = 0  # summed width of the shared experts; 0 when there is none
    shared_gate: bool = False  # H -> 1 sigmoid gate (Qwen2-MoE)
    router_bias: bool = False  # a bias the router's linear adds
    score_bias: bool = False  # load-balancing correction, a parameter or buffer of num_experts
    score_bias_is_parameter: bool = True
    latent_width: int = 0  # experts work in a narrower space (Nemotron 3 Super)


Mixer = Attention | MultiLatentAttention | Mamba | LinearAttention
Channel = MLP | MoE


class Layer(Noun, frozen=True):
    """One residual layer. Either part may be missing (Nemotron-H alternates them)."""

    mixer: Mixer | None
    channel: Channel | None
    beside: Mamba | None = None  # reads the mixer's normed input and is added to what that makes (Falcon-H1)
    norm: Norm = Norm.RMS
    post_norms: bool = False  # Gemma 2/3: a second norm after each part
    parallel: bool = False  # GPT-J, Falcon, Phi: both parts read the same normed input
    shared_input_norm: bool = False  # parallel with one norm instead of two
    norm_placement: Literal["pre", "post", "output"] = "pre"  # post: after the sum (BERT); output: before it (OLMo 2)
    cross_attention: Attention | None = None
    extra: tuple[Parameter, ...] = ()  # weights only this family has: gates, scalars, further norms
    extra_parameters: int = 0  # weights of this layer known only as a number

    @property
    def without_indexer(self) -> Layer:
        """The layer whose tape can be written: an indexer's few vectors are counted with its products."""
        if isinstance(self.mixer, MultiLatentAttention) and self.mixer.indexer_heads:
            return replace(self, mixer=replace(self.mixer, indexer_heads=0))
        return self


class Run(Noun, frozen=True):
    """`count` equal layers in a row."""

    count: int
    layer: Layer


class VisionEmbedding(Noun, frozen=True):
    """Patch projection of an image, video or spectrogram encoder."""

    in_channels: int
    patch: tuple[int, ...]  # kernel = stride, e.g. (14, 14) or (2, 14, 14)
    bias: bool
    positions: int = 0  # learned positions
    class_token: bool = False
    pre_norm: bool = False
    convolutions: tuple[tuple[int, int, int], ...] = ()  # Whisper: (in, out, kernel) one-dimensional


class Stack(Noun, frozen=True):
    """A tower: embeddings, layers, final norm."""

    name: str  # "decoder", "encoder", "vision"
    hidden: int  # H
    runs: tuple[Run, ...]
    final_norm: Norm | None = Norm.RMS
    embedding_norm: Norm | None = None
    vision: VisionEmbedding | None = None
    positions: int = 0  # position embeddings
    positions_trained: bool = True  # Whisper's encoder keeps sinusoids as a weight
    token_types: int = 0
    embedding_width: int | None = None  # width of positions, token types and their norm, when not H
    projector: tuple[tuple[int, int, bool], ...] = ()  # (in, out, bias) linears behind the tower
    projector_norm_dim: int = 0  # width of the projector's norm weight, 0 when none
    projector_norm: Norm = Norm.RMS
    projector_positions: int = 0  # of an image behind pooling (Gemma 3); 0: as the width of the first linear says
    pooled: int = 1  # patches whose average is one position of the projector (Gemma 4)
    extra: tuple[Parameter, ...] = ()
    extra_parameters: int = 0  # weights known only as a number
    causal: bool = True
    residual_streams: int = 1  # hyper-connections keep several copies of the residual (DeepSeek V4)

    @property
    def num_layers(self) -> int:
        return sum(run.count for run in self.runs)

    @property
    def layers(self) -> tuple[Layer, ...]:
        return tuple(run.layer for run in self.runs for _ in range(run.count))


class Head(StrEnum):
    """What reads the last hidden state."""

    LM = "lm"  # H x V
    MLM = "mlm"  # BERT: H x H dense + norm + decoder with bias
    CLASSIFIER = "classifier"
    NONE = "none"


class Model(Noun, frozen=True):
    """One network. `main` is the stack whose tokens the workload counts."""

    name: str
    family: str
    vocab: int  # rows of the embedding as trained (padding included) [count]
    stacks: tuple[Stack, ...]  # the last one is the main stack
    tied: bool = False  # output projection is the embedding
    embedding_width: int | None = None  # factorised embeddings: differs from H
    embedding_projection_bias: bool = False  # of the projection a factorised embedding needs
    head: Head = Head.LM
    head_bias: bool = False
    num_labels: int = 0  # CLASSIFIER
    pooler: bool = False
    mtp_layers: tuple[Layer, ...] = ()  # multi-token-prediction modules: 2H x H projection, 3 norms, a layer
    mtp_own_embeddings: bool = False
    mtp_own_head: bool = False
    per_layer_embedding_width: int = 0  # Gemma 3n/4
    per_layer_vocab: int = 0  # rows of that second table, when not V
    hidden_dropout: float = 0.0  # on embeddings and on what layers add; training configs may override
    attention_dropout: float = 0.0
    logits_softcap: bool = False  # logits pass through tanh (Gemma 2)
    context: int | None = None  # longest position trained [tokens]
    rope_scale: float = 1.0  # positions of a rotary table over those of `context`: linear, dynamic and YaRN scaling
    dtype: str = "bf16"  # what the checkpoint stores
    quantisation: str | None = None  # how it packs the weights of linears: "fp8", "nvfp4", "mxfp4", "int4" ...
    fp8_blocks: bool = False  # FP8 has a scale per square block, not per tensor or channel
    buffers: int = 0  # elements a checkpoint stores that are not parameters (rotary, causal masks)
    notes: tuple[str, ...] = ()

    @property
    def main(self) -> Stack:
        """The stack that reads the tokens."""
        return self.stacks[-1]

    @property
    def hidden(self) -> int:
        """H of the main stack."""
        return self.main.hidden

    @property
    def num_layers(self) -> int:
        return self.main.num_layers


def scorer(model: Model) -> Model:
    """The network with one number in the place of a vocabulary: reward models, and the critics of PPO.

    Source: [TRL] trl/trainer/reward_trainer.py and examples/scripts/ppo/ppo.py: `AutoModelForSequenceClassification`,
    num_labels=1; [transformers] modeling_layers.py `GenericForSequenceClassification`
    """
    return replace(model, head=Head.CLASSIFIER, num_labels=1, tied=False, head_bias=False, mtp_layers=())


FEW_LABELS: Final = 2
"""`num_labels` where neither question nor configuration says more [transformers configuration_utils.py]."""


def classifier(model: Model, *, pooled: bool) -> Model:
    """The network with labels in the place of a vocabulary, of each sample or of each token.

    Encoders of text have a dense layer in between where they label samples.

    Source: [transformers] models/bert/modeling_bert.py `BertForSequenceClassification`, `BertForTokenClassification`,
    models/roberta/modeling_roberta.py `RobertaClassificationHead`; modeling_layers.py
    """
    return replace(
        model, head=Head.CLASSIFIER, num_labels=model.num_labels or FEW_LABELS, tied=False, head_bias=False,
        mtp_layers=(), pooler=pooled and not model.main.causal and model.main.vision is None,
    )


class StoredTensor(Noun, frozen=True):
    """One tensor of a checkpoint, by its header."""

    name: str
    dtype: str  # lower case, as the format names it: "bf16", "f8_e4m3", "q4_k"
    shape: tuple[int, ...]
    num_bytes: int

    @property
    def elements(self) -> int:
        return prod(self.shape)


class StoredWeights(Noun, frozen=True):
    """All tensors of a checkpoint. Without headers only `listed_bytes`, which the index states, is known."""

    tensors: tuple[StoredTensor, ...] = ()
    listed_bytes: int | None = None  # metadata.total_size of an index whose shards were not read

    @property
    def num_bytes(self) -> int:
        """Bytes of all tensors, headers and padding not counted."""
        if self.listed_bytes is not None and not self.tensors:
            return self.listed_bytes
        return sum(tensor.num_bytes for tensor in self.tensors)

    @property
    def elements(self) -> int:
        return sum(tensor.elements for tensor in self.tensors)

    @property
    def bytes_by_dtype(self) -> dict[str, int]:
        """Bytes of each storage dtype, largest first."""
        sums: dict[str, int] = {}
        for tensor in self.tensors:
            sums[tensor.dtype] = sums.get(tensor.dtype, 0) + tensor.num_bytes
        return dict(sorted(sums.items(), key=lambda item: -item[1]))


class Checkpoint(Noun, frozen=True):
    """A network, and its stored tensors where headers were at hand."""

    model: Model
    weights: StoredWeights | None = None
