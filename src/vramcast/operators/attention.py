"""softmax(Q K^T / sqrt(D)) V in its PyTorch forms, and over positions that ranks divide among themselves.

Symbols:  B batch   S queries   K keys   A heads   G key/value heads   D head width   D_v width of values
[flash] pytorch aten/src/ATen/native/transformers/cuda/flash_attn/flash_api.cpp `mha_fwd`, `mha_bwd`
[efficient] pytorch aten/src/ATen/native/transformers/cuda/attention.cu and mem_eff_attention/kernel_backward.h
[cudnn] pytorch aten/src/ATen/native/cudnn/MHA.cpp
[HF] transformers integrations/sdpa_attention.py `sdpa_attention_forward`, models/llama/modeling_llama.py
`eager_attention_forward`: both copy keys and values per query head unless the kernel groups heads itself.
[ring] pytorch torch/distributed/tensor/experimental/_attention.py `_AllGatherRotater`, `_SDPAMerger`,
`_templated_ring_attention_backward`

Rotary position embedding of queries and keys.

Symbols:  E elements of one of q, k   D head dimension
[hf] transformers models/llama/modeling_llama.py `apply_rotary_pos_emb`, `rotate_half`
[liger] Liger-Kernel src/liger_kernel/ops/rope.py: rotates in place, forward and backward
[titan] torchtitan torchtitan/models/llama/model.py `apply_rotary_emb`
[te] TransformerEngine transformer_engine/pytorch/attention/rope.py `FusedRoPEFunc`: keeps the frequencies only
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from vramcast.domain.job import AttentionKernel
from vramcast.operators import aten
from vramcast.operators.graph import Graph, Value
from vramcast.units import round_up


class Scores(Struct, frozen=True):
    """One attention's sizes on one rank."""

    batch: int
    queries: int  # S [tokens]
    keys: int  # K [tokens]
    heads: int  # A
    kv_heads: int  # G
    head_dim: int  # D
    v_head_dim: int  # D_v
    width: int = 2  # element of q, k, v and of the output [bytes]
    dropout: float = 0.0
    masked: bool = False  # an explicit mask is added: flash cannot take it
    additions: int = 0  # further tensors added to eager scores: alibi, relative positions
    fp32_softmax: bool = True  # eager: softmax runs in fp32 and is cast back (LLaMA-like); False: in the width (BERT)
    grouped: bool = True  # the kernel reads grouped heads without copies
    sinks: bool = False  # eager: a column of the heads' sinks is joined to the scores, whose maximum is taken off
    copies: bool = False  # eager: scores are copied to fp32 before softmax, whose kernel converts fp16 only

    @property
    def output_elements(self) -> int:
        """B S A D_v."""
        return self.batch * self.queries * self.heads * self.v_head_dim

    @property
    def score_elements(self) -> int:
        """B A S K."""
        return self.batch * self.heads * self.queries * self.keys

    @property
    def flops(self) -> int:
        """Both products of forward, a causal mask not taken off."""
        return 2 * self.score_elements * (self.head_dim + self.v_head_dim)


def attention(graph: Graph, q: Value, k: Value, v: Value, *, scores: Scores, kernel: AttentionKernel) -> Value:
    """The attention output (B, S, A, D_v) by the chosen implementation.

    With a mask PyTorch's dispatcher passes flash by and takes the efficient kernel [sdp_utils.cpp].
    """
    if kernel is AttentionKernel.FLASH and scores.masked:
        kernel = AttentionKernel.EFFICIENT
    if scores.kv_heads != scores.heads and (not scores.grouped or kernel is AttentionKernel.EAGER):
        k = _repeat(graph, k, scores, scores.head_dim)
        v = _repeat(graph, v, scores, scores.v_head_dim)
        scores = replace(scores, kv_heads=scores.heads)
    return KERNELS[kernel](graph, q, k, v, scores)


def _repeat(graph: Graph, value: Value, scores: Scores, width: int) -> Value:
    """repeat_kv: a copy per query head; backward sums the copies."""
    size = scores.batch * scores.keys * scores.heads * width * scores.width
    copy = graph.value(f"{value.name}.repeated", size, gradient_bytes=size if value.gradient_bytes else 0)
    return graph.call("repeat_kv", [value], [copy])


def _output(graph: Graph, scores: Scores) -> Value:
    size = scores.output_elements * scores.width
    return graph.value("attention.context", size, formula=f"{scores.output_elements} x {scores.width} B")


def _fused(
    graph: Graph, name: str, read: tuple[Value, Value, Value], scores: Scores, made: Mapping[str, int],
    padded: int | None = None,
) -> Value:
    """One kernel that keeps its output and a number a row; `made`: what its backward makes on the way [bytes]."""
    out, rows = _output(graph, scores), scores.batch * scores.heads * (padded or scores.queries)
    return graph.call(
        f"{name}_attention", read, [out], saved=[*read, out], flops=scores.flops,
        extra=[graph.value("attention.logsumexp", rows * 4, gradient_bytes=0)],
        backward_temporaries=[graph.tensor(f"attention.{temporary}", size) for temporary, size in made.items()],
    )


def _flash(graph: Graph, q: Value, k: Value, v: Value, scores: Scores) -> Value:
    padded, width = round_up(scores.queries, 128), round_up(scores.head_dim, 32 if scores.head_dim <= 128 else 64)
    rows = scores.batch * scores.heads * padded
    made = {"softmax_d": rows * 4, "dq_accumulator": rows * width * 4}
    if scores.kv_heads != scores.heads:
        expanded = scores.batch * scores.keys * scores.heads * scores.head_dim * scores.width
        made |= {"dk_expanded": expanded, "dv_expanded": expanded}
    return _fused(graph, "flash", (q, k, v), scores, made)


def _efficient(graph: Graph, q: Value, k: Value, v: Value, scores: Scores) -> Value:
    rows = scores.batch * scores.heads
    accumulators = 0
    if scores.width == 2:  # dQ is summed in fp32 outside the output
        accumulators += rows * round_up(scores.queries, 64) * round_up(scores.head_dim, 32) * 4
    if scores.head_dim > 128:  # dK and dV do not fit into registers either
        accumulators += 2 * rows * round_up(scores.keys, 64) * round_up(scores.head_dim, 64) * 4
    workspace = {"backward_workspace": accumulators} if accumulators else {}
    made = {"delta": rows * scores.queries * 4} | workspace
    return _fused(graph, "efficient", (q, k, v), scores, made, round_up(scores.queries, 32))


def _cudnn(graph: Graph, q: Value, k: Value, v: Value, scores: Scores) -> Value:
    rows = scores.batch * scores.heads * scores.queries
    return _fused(graph, "cudnn", (q, k, v), scores, {"cudnn_workspace": rows * scores.head_dim * 4 + rows * 4})


def _batched(graph: Graph, value: Value, scores: Scores) -> Value:
    """The contiguous copy that a batched product of transposed heads makes; a view when the batch is 1."""
    if scores.batch == 1:
        return value
    copy = graph.value(f"{value.name}.batched", value.num_bytes, gradient_bytes=value.gradient_bytes)
    return graph.call("contiguous", [value], [copy], passes_gradient=True)


def _eager(graph: Graph, q: Value, k: Value, v: Value, scores: Scores) -> Value:
    q, k, v = (_batched(graph, value, scores) for value in (q, k, v))
    size = scores.score_elements * scores.width
    formula = f"{scores.batch} x {scores.heads} x {scores.queries} x {scores.keys} x {scores.width} B"
    raw = graph.value("attention.scores", size, formula=formula)
    graph.call("matmul", [q, k], [raw], saved=[q, k], flops=scores.flops // 2)
    current = graph.call("scale", [raw], [graph.value("attention.scores_scaled", size, formula=formula)])
    for index in range(1 + scores.additions):
        total = graph.value(f"attention.scores_added_{index}", size, formula=formula)
        current = graph.call("add", [current], [total], passes_gradient=True)
    if scores.sinks:
        current = _with_sinks(graph, current, scores)
    current = _softmax(graph, current, scores)
    if scores.sinks:
        # without the sinks' column
        current = graph.call("slice", [current], [graph.view(current, "attention.probabilities_of_keys")])
    if scores.dropout:
        kept = graph.value("attention.probabilities_dropped", current.num_bytes)
        mask = graph.value("attention.dropout_mask", scores.score_elements, gradient_bytes=0)
        current = graph.call("dropout", [current], [kept], extra=[mask])
    context = _output(graph, scores)
    graph.call("matmul", [current, v], [context], saved=[current, v], flops=scores.flops // 2)
    merged = graph.value("attention.context_merged", context.num_bytes)
    return graph.call("contiguous", [context], [merged])


def _with_sinks(graph: Graph, scores: Value, spec: Scores) -> Value:
    """transformers models/gpt_oss/modeling_gpt_oss.py `eager_attention_forward`: cat, then minus the maximum."""
    size = scores.num_bytes // spec.keys * (spec.keys + 1)
    joined = graph.call("cat", [scores], [graph.value("attention.scores_and_sinks", size)], slices_gradient=True)
    shifted = graph.value("attention.scores_shifted", size)
    graph.call("sub", [joined], [shifted], passes_gradient=True)
    graph.hold(joined, scores)
    return shifted


def _softmax(graph: Graph, raw: Value, scores: Scores) -> Value:
    width, read = 4 if scores.fp32_softmax else scores.width, raw
    size = scores.score_elements * width
    if scores.sinks:
        size = raw.num_bytes // scores.width * width
    if scores.copies and width == 4:  # only fp16 is converted inside the kernel
        read = graph.call("cast", [raw], [graph.value("attention.scores_fp32", size)])
    probabilities = graph.value("attention.probabilities", size)
    # backward multiplies gradient and result first: pytorch aten/src/ATen/native/cuda/SoftMax.cu
    product = graph.tensor("attention.softmax_product", size)
    graph.call("softmax", [read], [probabilities], saved=[probabilities], backward_temporaries=[product])
    if read is not raw:
        graph.hold(raw)
    if width == scores.width:
        return probabilities
    narrow = graph.value("attention.probabilities_cast", scores.score_elements * scores.width)
    return graph.call("cast", [probabilities], [narrow])


KERNELS: Final[dict[AttentionKernel, Callable[[Graph, Value, Value, Value, Scores], Value]]] = {
    AttentionKernel.FLASH: _flash,
    AttentionKernel.EFFICIENT: _efficient,
    AttentionKernel.CUDNN: _cudnn,
    AttentionKernel.EAGER: _eager,
}
"""Implementation of each choice; a new one is one function and one line."""


FUSED_KERNELS: Final = ("flash_attention", "efficient_attention", "cudnn_attention")


def ulysses_attention(graph: Graph) -> None:
    """Every rank exchanges its positions of all heads for all positions of some: as many bytes, which the kernel keeps.

    What goes and what comes lies in the order of ranks beside it, one of the three after the other, in backward the
    gradients.

    Source: modelscope/ms-swift 3602360a5 swift/sequence_parallel/ulysses.py `single_all_to_all`
    """
    for operator in graph.operators:
        if operator.name in FUSED_KERNELS:
            q, k, v = operator.inputs
            largest = max(q.num_bytes, k.num_bytes, v.num_bytes)
            exchanged = (graph.tensor("ulysses.sent", largest), graph.tensor("ulysses.received", largest))
            operator.temporaries = (*operator.temporaries, *exchanged)
            operator.backward_temporaries = (*operator.backward_temporaries, *exchanged)


def ring_attention(graph: Graph, ranks: int) -> None:
    """Context parallelism: keys and values of all ranks are gathered, partial results merged in fp32 [ring]."""
    for operator in graph.operators:
        if operator.name not in FUSED_KERNELS:
            continue
        q, k, v = operator.inputs
        local = k.num_bytes + v.num_bytes
        both = [graph.tensor("ring.kv", local), graph.tensor("ring.kv_gathered", ranks * local)]
        merged = [graph.tensor("ring.output_fp32", 2 * operator.outputs[0].num_bytes)]
        gradients = [
            graph.tensor("ring.gradients_fp32", 2 * (q.num_bytes + local)),
            graph.tensor("ring.gradients_sent", 2 * local),
            graph.tensor("ring.gradients_received", 2 * local),
            graph.tensor("ring.block_gradients", q.num_bytes + local),
        ]
        operator.temporaries = (*operator.temporaries, *both, *merged)
        operator.backward_temporaries = (*operator.backward_temporaries, *both, *gradients)


def _rotate_half(graph: Graph, x: Value, num_bytes: int) -> Value:
    """cat(-x2, x1): the halves are views; each slice's gradient is padded to full size [derivatives: slice]."""
    half = num_bytes // 2
    gradient = half if x.gradient_bytes else 0
    first = graph.view(x, f"{x.name}.x1", gradient_bytes=gradient)
    second = graph.view(x, f"{x.name}.x2", gradient_bytes=gradient)
    graph.call("slice", [x], [first])
    graph.call("slice", [x], [second])
    negated = graph.value(f"{x.name}.neg", half, gradient_bytes=gradient)
    graph.call("neg", [second], [negated])
    rotated = graph.value(f"{x.name}.rotated", num_bytes, gradient_bytes=2 * gradient)
    graph.call("cat", [negated, first], [rotated], slices_gradient=True)
    graph.hold(first, second)
    return rotated


def _huggingface(graph: Graph, x: Value, num_bytes: int) -> Value:
    """[hf]: x * cos + rotate_half(x) * sin; only cos and sin are kept, which the model owns."""
    cosine = aten.unary(graph, x, num_bytes=num_bytes, name=f"{x.name}.cos")
    rotated = _rotate_half(graph, x, num_bytes)
    sine = aten.unary(graph, rotated, num_bytes=num_bytes, name=f"{x.name}.sin")
    return aten.add(graph, cosine, sine, num_bytes=num_bytes, name=f"{x.name}.rope")


def _in_place(graph: Graph, x: Value, num_bytes: int) -> Value:
    """[liger]: the same storage forward and backward; num_bytes stay where they are."""
    del num_bytes
    out = graph.view(x, f"{x.name}.rope")
    return graph.call("rope", [x], [out], passes_gradient=True)


def _rope_fused(graph: Graph, x: Value, num_bytes: int) -> Value:
    """[te], torch.compile: one output forward, one gradient backward."""
    return aten.unary(graph, x, num_bytes=num_bytes, name=f"{x.name}.rope")


def _complex(graph: Graph, x: Value, num_bytes: int) -> Value:
    """[titan] `apply_rotary_emb`: fp32 pairs times complex numbers that do not learn, then back."""
    elements = num_bytes // 2
    wide = aten.unary(graph, x, num_bytes=4 * elements, name=f"{x.name}.fp32")
    turned = aten.unary(graph, wide, num_bytes=4 * elements, name=f"{x.name}.turned")
    return aten.unary(graph, turned, num_bytes=num_bytes, name=f"{x.name}.rope")


ROPE_VARIANTS: Final[dict[str, Callable[[Graph, Value, int], Value]]] = {
    "eager": _huggingface,
    "huggingface": _huggingface,
    "complex": _complex,
    "compiled": _rope_fused,
    "megatron": _rope_fused,
    "transformer_engine": _rope_fused,
    "liger": _in_place,
}


def rope(
    graph: Graph, q: Value, k: Value, *, q_bytes: int, k_bytes: int, variant: str = "eager"
) -> tuple[Value, Value]:
    """Append the rotation of q and k; `variant` is a key of ROPE_VARIANTS."""
    build = ROPE_VARIANTS[variant]
    q_out = build(graph, q, q_bytes)
    k_out = build(graph, k, k_bytes)
    graph.hold(q, k)  # the caller's variables, until both are rotated
    return q_out, k_out
