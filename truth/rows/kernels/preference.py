"""Preference losses fused with the output projection: benchmark_{orpo,cpo,simpo}_loss.py of Liger-Kernel

Symbols:  B sequences, half of them chosen   T tokens of a sequence   H hidden size   V vocabulary
[liger] Liger-Kernel src/liger_kernel/chunked_loss/fused_linear_preference.py: one compiled call a pair of sequences
[hf] Liger-Kernel test/utils.py `HFAlignmentLoss`, test/chunked_loss/test_orpo_loss.py, after TRL
"""

from __future__ import annotations

from typing import Final, NamedTuple

from truth.rows.kernels.harness import FP32, INT64, Bench, Case, Iteration, peak
from vramcast.operators import aten
from vramcast.operators.graph import Value
from vramcast.operators.linear import Dense, Numerics, cast, linear

UPCAST_SINCE: Final = "2024-11-13 22:00"
"""From here on the reference loss works on fp32 logits; the script of that evening changed between two runs."""

LEFT_BY_COMPILED = (2, 5)
"""Weight-sized and chunk-sized tensors in uncollected closures of earlier compiled calls: seen in every row of these
scripts, of both providers and at two sequence lengths; no code was found that frees them."""


class Pairs(NamedTuple):
    """Sizes of one benchmark [bytes]."""

    sequences: int
    tokens: int
    hidden: int
    vocabulary: int
    itemsize: int

    @property
    def weight(self) -> int:
        """The projection."""
        return self.vocabulary * self.hidden * self.itemsize

    @property
    def chunk(self) -> int:
        """Hidden states of one pair."""
        return 2 * self.tokens * self.hidden * self.itemsize

    @property
    def chunk_logits(self) -> int:
        """Logits of one pair."""
        return 2 * self.tokens * self.vocabulary * self.itemsize

    @property
    def rows(self) -> int:
        """B * T."""
        return self.sequences * self.tokens


def preference_peak(case: Case) -> int:
    """ORPO, CPO and, in the reference, SimPO add the likelihood of the chosen half."""
    pairs = Pairs(case.size("B"), case.size("T"), case.size("H"), case.size("V"), case.itemsize)
    bench = Bench(case)
    bench.workspaces()
    for name in ("torch", "liger"):
        bench.weight(f"{name}.weight", pairs.weight)
    x = bench.leaf("x", pairs.rows * pairs.hidden * pairs.itemsize)
    bench.resident("target", pairs.rows * INT64)
    weights, chunks = LEFT_BY_COMPILED
    bench.resident("compiled.left", weights * pairs.weight + chunks * pairs.chunk)
    loss = case.provided(huggingface=_huggingface, liger=_liger)(bench, x, pairs)
    return peak(bench, (loss,), Iteration(retains_graph=False))


def _huggingface(bench: Bench, x: Value, pairs: Pairs) -> Value:
    """[hf]: all logits, cross entropy of the chosen half, log-probabilities of the labels of both."""
    graph, size = bench.graph, pairs.itemsize
    dense, numerics = Dense(pairs.vocabulary, pairs.hidden), Numerics(size, size, size, size)
    raw = linear(graph, "logits", x, tokens=pairs.rows, dense=dense, numerics=numerics)
    elements = pairs.rows * pairs.vocabulary
    upcast = bench.case.timestamp >= UPCAST_SINCE
    logits = cast(graph, raw, elements=elements, to_bytes=FP32, name="logits.fp32") if upcast else raw
    whole = logits.num_bytes
    chosen = graph.view(logits, "logits.chosen", gradient_bytes=whole // 2)
    graph.call("slice", [logits], [chosen])
    log_probs = aten.unary(graph, chosen, num_bytes=whole // 2, name="log_softmax.chosen", saves="output")
    likelihood = graph.call("nll_loss", [log_probs], [graph.value("nll", FP32)], saved=[log_probs])
    log_probs = aten.unary(graph, logits, num_bytes=whole, name="log_softmax", saves="output")
    picked = graph.value("per_token_logps", pairs.rows * FP32)
    graph.call("gather", [log_probs], [picked], saved=[log_probs])
    loss = graph.call("preference_loss", [likelihood, picked], [graph.value("loss", FP32)])
    graph.hold(raw, logits)
    return loss


def _liger(bench: Bench, x: Value, pairs: Pairs) -> Value:
    """[liger]: gradients in forward; a compiled call holds logits and fp32 gradients, then the weight's gradient."""
    graph, logits = bench.graph, pairs.chunk_logits
    wide = logits // pairs.itemsize * FP32
    weight = graph.value("grad.weight", pairs.weight, gradient_bytes=0)
    graph.call("zeros", [], [weight], differentiable=False)
    likelihood = 0 if bench.case.kernel == "fused_linear_simpo_loss" else wide // 2
    gradients: list[Value] = []
    for index in range(pairs.sequences // 2):
        chunk = graph.value(f"x.{index}", pairs.chunk, gradient_bytes=0)
        gradient = graph.value(f"grad.x.{index}", pairs.chunk, gradient_bytes=0)
        graph.call("cat", [], [chunk], differentiable=False)
        graph.call("log_softmax", [chunk], [], differentiable=False, temporaries=[
            graph.tensor("logits", logits), graph.tensor("grad.log_probs", wide), graph.tensor("grad.nll", likelihood),
        ])
        graph.call("linear", [chunk], [gradient], differentiable=False, temporaries=[
            graph.tensor("grad.logits", logits), graph.tensor("grad.weight.chunk", pairs.weight),
        ])
        graph.hold(chunk)
        gradients.append(gradient)
    whole = graph.value("grad.x.all", pairs.rows * pairs.hidden * pairs.itemsize, gradient_bytes=0)
    graph.call("cat", gradients, [whole], differentiable=False)
    return graph.call(
        "preference_loss", [x], [graph.value("loss", FP32)], saved=[whole, weight], gradient_storages=[(x, whole)],
        saved_weight_gradients=[weight],
    )
