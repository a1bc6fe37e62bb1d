"""Output projection and cross entropy as one operator, which makes the logits chunk by chunk from hidden states.

Symbols:  T tokens   V vocabulary on this rank   H hidden size   C tokens of a chunk
[torch] pytorch torch/nn/functional.py `cross_entropy`: log_softmax and nll_loss keep the log-probabilities
[liger] Liger-Kernel src/liger_kernel/ops/cross_entropy.py, fused_linear_cross_entropy.py
[zoo] unsloth_zoo fused_losses/fused_linear.py, since 2026.10.9; fused_losses/cross_entropy_loss.py before
[trl] huggingface/trl v1.9.0 trl/trainer/sft_trainer.py `_chunk`, `_chunked_cross_entropy_loss`
[torchtune] meta-pytorch/torchtune torchtune/modules/loss/cross_entropy_loss.py, ce_chunked_output_loss.py
[verl] volcengine/verl b178a3c (0.8) verl/workers/actor/dp_actor.py `_forward_micro_batch`, verl/utils/
torch_functional.py
[cce] Wijmans et al., Cut Your Losses in Large-Vocabulary Language Models, arXiv:2411.09009
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final

from msgspec import Struct

from vramcast.domain.program import Category, Tensor
from vramcast.operators import aten
from vramcast.operators.graph import Graph, Value
from vramcast.operators.linear import Fake, rounding_bytes
from vramcast.operators.loss import TORCHTUNE_CHUNKS, Vocabulary, cross_entropy, scalar
from vramcast.units import FP32, GIB, MIB, ceil_div

UNSLOTH_LEAST_LOGITS: Final = 512 * 151_936
UNSLOTH_MOST_ROWS: Final = 4096
UNSLOTH_TILE: Final = 256 * MIB
UNSLOTH_BUFFER: Final = 2 * GIB
"""[zoo] `_MIN_LOGITS`, `_MAX_ROWS`, `_BWD_TILE_BYTES`, `_CHUNK_GB`; the last two are less on a card that is full."""


def _power_below(number: int) -> int:
    return 1 << max(number, 1).bit_length() - 1


class LinearLoss(Struct, frozen=True):
    """Shape of an output projection fused with its cross entropy."""

    tokens: int  # T
    hidden: int  # H
    vocabulary: int  # V, on this rank
    itemsize: int = 2  # of hidden states and logits, and of the weight as the product reads it [bytes]
    gradient_itemsize: int | None = None  # of the weight's gradient, which is the weight's own; None: as above
    trainable: bool = True
    chunks: int = 1  # of [zoo] before 2026.10.9
    fake: Fake | None = None  # the projection rounds what it reads

    @property
    def hidden_bytes(self) -> int:
        """Bytes of the hidden states."""
        return self.tokens * self.hidden * self.itemsize

    @property
    def product_bytes(self) -> int:
        """Bytes of a product for the projection's weight."""
        return self.vocabulary * self.hidden * self.itemsize

    @property
    def gradient_bytes(self) -> int:
        """Bytes of the weight's gradient: under autocast in the type of the weight, not in that of products."""
        return self.vocabulary * self.hidden * (self.gradient_itemsize or self.itemsize)

    @property
    def liger_chunk_tokens(self) -> int:
        """C = next_power_of_2(ceil(T / ceil(V / H))) [liger `fused_linear_cross_entropy_forward`]."""
        rows = ceil_div(self.tokens, ceil_div(self.vocabulary, self.hidden))
        return 1 << (rows - 1).bit_length()

    @property
    def unsloth_chunk_tokens(self) -> int:
        """C = T H / V rounded down to a power of two, within bounds [zoo `fused_linear_rows`]."""
        least = min(max(_power_below(UNSLOTH_LEAST_LOGITS // self.vocabulary), 512), UNSLOTH_MOST_ROWS)
        rows = min(max(_power_below(self.tokens * self.hidden // self.vocabulary), least), UNSLOTH_MOST_ROWS)
        return min(rows, UNSLOTH_BUFFER // (self.vocabulary * FP32), self.tokens)

    def weight_gradients(self, graph: Graph) -> list[Tensor]:
        if not self.trainable:
            return []
        return [graph.tensor("grad.lm_head.weight", self.gradient_bytes, Category.GRADIENTS)]


LigerChunk = Callable[[Graph, LinearLoss, int, list[Value]], list[Value]]


def _liger_linear_loss(graph: Graph, x: Value, spec: LinearLoss, chunk: LigerChunk) -> Value:
    """[liger]: gradients of input and weight are made in forward, chunk by chunk.

    Both gradients before the loop, then at most three chunks: the later ones repeat the third.
    """
    grad_input = graph.value("loss.grad_hidden", spec.hidden_bytes, gradient_bytes=0)
    rows = graph.value("loss.rows", spec.tokens * FP32, gradient_bytes=0)
    graph.call("zeros", [], [grad_input], differentiable=False)
    saved = [grad_input]
    if spec.trainable:
        saved.append(graph.value("loss.grad_weight", spec.gradient_bytes, gradient_bytes=0))
        graph.call("zeros", [], saved[1:], differentiable=False)
    graph.call("zeros", [], [rows], differentiable=False)
    tokens = min(spec.liger_chunk_tokens, spec.tokens)
    held: list[Value] = []
    for _ in range(min(3, ceil_div(spec.tokens, tokens))):
        held = chunk(graph, spec, tokens, held)
    graph.hold(rows, *held, *saved)
    return graph.call(
        "linear_cross_entropy", [x], [scalar(graph)], saved=saved, gradient_storages=[(x, grad_input)],
        saved_weight_gradients=saved[1:],
    )


def _chunk_logits(graph: Graph, spec: LinearLoss, tokens: int, held: list[Value]) -> Value:
    """The next chunk's logits exist before the variables of the last chunk are overwritten."""
    logits = graph.value("loss.logits_chunk", tokens * spec.vocabulary * spec.itemsize, gradient_bytes=0)
    graph.call("linear", [], [logits], differentiable=False)
    graph.hold(*held)
    return logits


def _grad_hidden_chunk(graph: Graph, spec: LinearLoss, tokens: int, logits: Value) -> None:
    product = graph.tensor("loss.grad_hidden_chunk", tokens * spec.hidden * spec.itemsize)
    graph.call("linear", [logits], [], temporaries=[product], differentiable=False)


def _liger_chunk(graph: Graph, spec: LinearLoss, tokens: int, held: list[Value]) -> list[Value]:
    """The gradient of the logits overwrites them; the weight's product is upcast before it is added."""
    logits = _chunk_logits(graph, spec, tokens, held)
    _grad_hidden_chunk(graph, spec, tokens, logits)
    if spec.trainable:
        product = [graph.tensor("loss.grad_weight_chunk", spec.product_bytes)]
        if spec.itemsize != FP32:
            product.append(graph.tensor("loss.grad_weight_chunk.fp32", spec.vocabulary * spec.hidden * FP32))
        graph.call("linear", [logits], [], temporaries=product, differentiable=False)
    return [logits]


def _liger_chunk_upcast(graph: Graph, spec: LinearLoss, tokens: int, held: list[Value]) -> list[Value]:
    """[liger] until 0.4.2: logits, their fp32 copy, the copy back, and its product with the share of the chunk."""
    size = tokens * spec.vocabulary
    raw = _chunk_logits(graph, spec, tokens, held[:1])
    wide = graph.value("loss.logits_chunk.fp32", size * FP32, gradient_bytes=0)
    graph.call("cast", [raw], [wide], differentiable=False)
    narrow, scaled = (
        graph.value(f"loss.logits_chunk.{name}", size * spec.itemsize, gradient_bytes=0) for name in ("grad", "scaled")
    )
    graph.call("cast", [wide], [narrow], differentiable=False)
    graph.call("mul", [narrow], [scaled], differentiable=False)
    graph.hold(*held[1:])
    _grad_hidden_chunk(graph, spec, tokens, scaled)
    return [narrow, scaled]


POLICY_CHUNK_TOKENS: Final = 512
"""[verl] `FusedLinearForPPO`."""


def _linear_policy(graph: Graph, x: Value, spec: LinearLoss) -> Value:
    """[verl] utils/experimental/torch_functional.py `FusedLinearForPPOFunction`: logits, probabilities and
    log-probabilities of a chunk in fp32; backward makes the logits again, and one gradient of the weight for all."""
    chunk = min(spec.tokens, POLICY_CHUNK_TOKENS) * spec.vocabulary
    working = [graph.tensor(f"loss.chunk.{name}", chunk * FP32) for name in ("logits", "probabilities", "log")]
    rows = graph.value("loss.rows", 2 * spec.tokens * FP32, gradient_bytes=0)
    return graph.call(
        "linear_cross_entropy", [x], [scalar(graph)], saved=[x], extra=[rows], temporaries=working,
        weight_gradients=spec.weight_gradients(graph),
        backward_temporaries=[graph.tensor("grad.loss.chunk", 3 * chunk * FP32)],
    )


def _linear_eager(graph: Graph, x: Value, spec: LinearLoss) -> Value:
    """The projection, then [hf] cross entropy on all logits."""
    logits = graph.value("logits", spec.tokens * spec.vocabulary * spec.itemsize)
    graph.call("linear", [x], [logits], saved=[x] if spec.trainable else [],
               weight_gradients=spec.weight_gradients(graph))
    loss = cross_entropy(graph, logits, Vocabulary(spec.tokens, spec.vocabulary, spec.itemsize))
    graph.hold(logits)
    return loss


def _linear_cut(graph: Graph, x: Value, spec: LinearLoss) -> Value:
    """[cce]: logits never leave the chip; backward recomputes them from x and one number a token."""
    log_sum = graph.value("loss.log_sum_exp", spec.tokens * FP32, gradient_bytes=0)
    return graph.call(
        "linear_cross_entropy", [x], [scalar(graph)], saved=[x], extra=[log_sum],
        weight_gradients=spec.weight_gradients(graph),
        temporaries=[graph.tensor("loss.negative_dot", spec.tokens * FP32)],
    )


UNSLOTH_LOGITS: Final[dict[str, Callable[[LinearLoss], int]]] = {
    "unsloth": lambda spec: spec.unsloth_chunk_tokens * spec.vocabulary * FP32,
    "unsloth_tiled": lambda spec: min(UNSLOTH_TILE, spec.tokens * spec.vocabulary * FP32),
    "unsloth_chunks": lambda spec: _chunk_bytes(spec),
    "unsloth_grpo": lambda spec: 2 * _chunk_bytes(spec),
}
"""Variant of [zoo] -> bytes of logits that are there at once: an fp32 buffer for all chunks, which the gradient
overwrites in 16 bits; tiles of the vocabulary for a head that does not learn (`_tiled_forward`); a chunk's, over which
torch.compile's kernel writes the gradient (`accumulate_chunk`); of one answer, and beside them first those of the
reference, which die with their log-probabilities, then the gradient (2025, `UnslothEfficientGRPO`)."""


def _linear_unsloth_rows(graph: Graph, x: Value, spec: LinearLoss) -> Value:
    """[zoo 2026] rl_replacements.py `chunked_hidden_states_selective_log_softmax`: what torch.compile saves of all
    chunks for backward are the products; the gradient of one is there beside them."""
    kept = graph.value("loss.logits", spec.tokens * spec.vocabulary * spec.itemsize, gradient_bytes=0)
    return graph.call(
        "linear_cross_entropy", [x], [scalar(graph)], saved=[x], extra=[kept],
        backward_temporaries=[graph.tensor("loss.logits_gradient_chunk", _chunk_bytes(spec))],
        weight_gradients=spec.weight_gradients(graph),
    )


def _chunk_bytes(spec: LinearLoss) -> int:
    return ceil_div(spec.tokens, spec.chunks) * spec.vocabulary * spec.itemsize


def _unsloth_linear_loss(graph: Graph, x: Value, spec: LinearLoss, kind: str) -> Value:
    """Gradients are made in forward beside one buffer of logits; backward scales them into others."""
    saved = [graph.value("loss.grad_hidden", spec.hidden_bytes, gradient_bytes=0)]
    if spec.trainable:
        saved.append(graph.value("loss.grad_weight", spec.gradient_bytes, gradient_bytes=0))
    buffers = [graph.tensor("loss.logits_chunk", UNSLOTH_LOGITS[kind](spec))]
    if kind == "unsloth_chunks" and spec.trainable:
        buffers.append(graph.tensor("loss.grad_weight_chunk", spec.product_bytes))
    return graph.call(
        "linear_cross_entropy", [x], [scalar(graph)], extra=saved, temporaries=buffers,
        weight_gradients=spec.weight_gradients(graph),
    )


TRL_CHUNK_TOKENS: Final = 256
"""[trl] `_CHUNKED_LM_HEAD_CHUNK_SIZE`."""


def _linear_trl(graph: Graph, x: Value, spec: LinearLoss, *, narrow: int = FP32) -> Value:
    """[trl] `_chunked_cross_entropy_loss`: `h.float() @ w.float().t()` of a chunk, made again for its own backward.

    Every chunk copies a weight that is not fp32 (and what autocast narrows, which is no leaf and never cached); all
    chunks' gradients of the weight are summed in one buffer, and those of the hidden states in another.

    Args:
        graph, x, spec: as of the other variants
        narrow: bytes of a number in the product: autocast's, else fp32
    """
    stored, weight = spec.gradient_itemsize or spec.itemsize, spec.vocabulary * spec.hidden
    logits = min(TRL_CHUNK_TOKENS, spec.tokens) * spec.vocabulary
    wide = {"loss.weight.fp32": weight * FP32 * (stored != FP32)}
    cast_weight = {"loss.weight.cast": weight * narrow * (narrow != FP32)}
    kept = cast_weight if narrow != FP32 else wide
    product, log_probs = {"loss.logits_chunk": logits * narrow}, {"loss.log_softmax": logits * FP32}
    entropy = {f"loss.entropy.{name}": logits * FP32 for name in ("exp", "product")}
    gradients = {f"grad.loss.{name}": logits * FP32 for name in ("log_softmax", "logits_chunk")}
    again = [wide | cast_weight | product, kept | product | log_probs | entropy, kept | log_probs | gradients]
    if spec.trainable:
        made, widened = {"grad.loss.weight.product": weight * narrow}, {"grad.loss.weight.fp32": weight * FP32}
        summed = {"grad.loss.weight": weight * stored} if stored != FP32 else {}
        again += [kept | {"grad.loss.product": logits * narrow} | made, (made if narrow != FP32 else {}) | widened,
                  widened | summed]
    again.append({"grad.loss.valid_tokens.chunk": x.num_bytes})

    def moment(sizes: dict[str, int]) -> list[Tensor]:
        return [graph.tensor(name, size) for name, size in sizes.items() if size]

    first = max(wide | cast_weight | product, product | log_probs | entropy, key=lambda sizes: sum(sizes.values()))
    chunk = packed = aten.unary(graph, x, num_bytes=x.num_bytes, name="loss.valid_tokens")
    for sizes in again[:0:-1]:  # backward comes to them in the order in which they are written
        before, chunk = chunk, graph.view(packed, "loss.valid_tokens.chunk")
        graph.call("chunk", [before], [chunk], passes_gradient=True, backward_temporaries=moment(sizes))
    return graph.call(
        "linear_cross_entropy", [chunk], [scalar(graph)], saved=[packed], temporaries=moment(first),
        backward_temporaries=moment(again[0]), weight_gradients=spec.weight_gradients(graph),
    )


def _linear_torchtune(graph: Graph, x: Value, spec: LinearLoss) -> Value:
    """[torchtune] `LinearCrossEntropyLoss`: head and cross entropy chunk by chunk over the tokens.

    Forward keeps every chunk's fp32 log-probabilities: chunks save what is live beside them, not what is kept.
    Backward frees them chunk by chunk. What is live beside all of them and the weight's gradient is the largest of
    two fp32 gradients of the first chunk, of the second, when the first is gone, and the second chunk's weight gradient
    before it is added. A head that does not learn reads no hidden states again. One that rounds what it reads does so
    in every chunk anew, and keeps that, too.
    """
    whole, chunk = (
        Vocabulary(count, spec.vocabulary, spec.itemsize)
        for count in (spec.tokens, ceil_div(spec.tokens, TORCHTUNE_CHUNKS))
    )
    weight, wide = spec.gradient_bytes if spec.trainable else 0, chunk.fp32_bytes
    beside = max(2 * wide - weight, wide, weight - 2 * wide + chunk.num_bytes)
    rounded, rounding, unrounding = rounding_bytes(spec.fake, tokens=chunk.tokens, columns=spec.hidden,
                                                   elements=spec.vocabulary * spec.hidden)
    kept = [graph.value("loss.rounded_weights", TORCHTUNE_CHUNKS * rounded, gradient_bytes=0)] if rounded else []
    hidden = aten.unary(graph, x, num_bytes=x.num_bytes, name="loss.valid_tokens")
    log_probs = graph.value("loss.log_probabilities", whole.fp32_bytes, gradient_bytes=0)
    gradients = [graph.tensor("head.output.weight_gradient", weight, Category.GRADIENTS)] if spec.trainable else []
    return graph.call(
        "linear_cross_entropy", [hidden], [scalar(graph)], saved=[hidden] if spec.trainable else [],
        extra=[log_probs, *kept],
        temporaries=[graph.tensor("logits_chunk", chunk.num_bytes),
                     graph.tensor("logits_chunk.fp32", max(wide, rounding - chunk.num_bytes))],
        backward_temporaries=[
            graph.tensor("logits_chunk.gradients", max(beside, unrounding - weight)),
            graph.tensor("loss.hidden_gradient_chunk", x.num_bytes),
        ],
        weight_gradients=gradients,
    )


LINEAR_CROSS_ENTROPY_VARIANTS: Final[dict[str, Callable[[Graph, Value, LinearLoss], Value]]] = {
    "eager": _linear_eager,
    "policy": _linear_policy,
    "liger": partial(_liger_linear_loss, chunk=_liger_chunk),
    "liger_0.4.2": partial(_liger_linear_loss, chunk=_liger_chunk_upcast),
    "cut_cross_entropy": _linear_cut,
    **{kind: partial(_unsloth_linear_loss, kind=kind) for kind in UNSLOTH_LOGITS},
    "unsloth_rows": _linear_unsloth_rows,
    "trl": _linear_trl,
    "trl_autocast": partial(_linear_trl, narrow=2),
    "torchtune": _linear_torchtune,
}


def linear_cross_entropy(graph: Graph, x: Value, spec: LinearLoss, variant: str = "eager") -> Value:
    """Append output projection and loss; `variant` is a key of LINEAR_CROSS_ENTROPY_VARIANTS."""
    return LINEAR_CROSS_ENTROPY_VARIANTS[variant](graph, x, spec)
