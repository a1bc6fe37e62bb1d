"""Feed-forwards tiled over the sequence: Liger-Kernel benchmark/scripts/benchmark_tiled_mlp.py

[tiled] Liger-Kernel src/liger_kernel/ops/tiled_mlp.py, after DeepSpeed `TiledMLP`: forward runs the shards without
autograd, backward runs each again and backpropagates it at once.
"""

from __future__ import annotations

from truth.rows.kernels.harness import Bench, Case, Iteration, peak_of
from truth.rows.kernels.layers import gated_mlp_peak
from vramcast.domain.program import Alloc, Free, Loop, Program
from vramcast.operators import aten
from vramcast.operators.activation import gated_activation
from vramcast.operators.graph import Graph, Value
from vramcast.operators.linear import Dense, Numerics, linear
from vramcast.operators.lowering import Caller, Lowered, lower, lower_inference


class _Shard:
    """One shard's forward as a graph of its own."""

    def __init__(self, case: Case, shards: int) -> None:
        self.size = case.itemsize
        self.hidden, self.inner = case.size("hidden_size"), case.size("intermediate_size")
        self.tokens = case.size("bsz") * case.size("T") // shards
        self.numerics = Numerics(self.size, self.size, self.size, self.size)
        self.graph = Graph("shard")
        self.x = self.graph.input("x.shard", self.tokens * self.hidden * self.size)
        case.provided(deepspeed_tiled=self._eager, liger_tiled=self._liger)()

    def _linear(self, name: str, x: Value, outputs: int, inputs: int) -> Value:
        dense = Dense(outputs, inputs)
        return linear(self.graph, name, x, tokens=self.tokens, dense=dense, numerics=self.numerics)

    def _eager(self) -> None:
        gate = self._linear("gate", self.x, self.inner, self.hidden)
        act = aten.unary(self.graph, gate, num_bytes=gate.num_bytes, name="act", saves="input")
        up = self._linear("up", self.x, self.inner, self.hidden)
        gated = aten.multiply(self.graph, act, up, num_bytes=gate.num_bytes, name="gated")
        self.out = self._linear("down", gated, self.hidden, self.inner)
        self.graph.returns(self.out)

    def _liger(self) -> None:
        gate = self._linear("gate", self.x, self.inner, self.hidden)
        up = self._linear("up", self.x, self.inner, self.hidden)
        gated = gated_activation(self.graph, [gate, up], "liger", "mlp")
        self.out = self._linear("down", gated, self.hidden, self.inner)
        self.graph.hold(gate, up)
        self.graph.returns(self.out)

    def forward(self) -> Program:
        """Without autograd; the output stays, and the input is a view of the whole."""
        program = lower_inference(self.graph)
        return tuple(node for node in program if not (isinstance(node, Free) and node.tensor is self.x.tensor))

    def training(self) -> Lowered:
        """Forward and backward; the output stays, held by a variable."""
        return lower(self.graph, hold_inputs=False, caller=Caller((self.x,), holds_gradients=True))


def tiled_mlp_peak(case: Case) -> int:
    """Tiled providers; the others are the plain feed-forwards."""
    if case.provider in ("huggingface", "liger"):
        return gated_mlp_peak(case)
    shards = case.size("num_shards")
    shard, bench = _Shard(case, shards), Bench(case)
    states = shard.tokens * shards * shard.hidden * shard.size
    bench.workspaces()
    bench.leaf("x", states)
    for name in ("gate", "up", "down"):
        bench.weight(name, shard.hidden * shard.inner * shard.size)
        bench.weight(f"{name}.grad", shard.hidden * shard.inner * shard.size if case.mode != "forward" else 0)
    y = bench.graph.tensor("y", states)
    out = shard.out.tensor
    forward: Program = (Loop(shards, shard.forward()), Alloc(y), *(Free(out) for _ in range(shards)))
    gradient = bench.graph.tensor("x.grad.new", states)
    run = shard.training()
    rest = Loop(shards - 1, (*run.forward, Free(out), *run.backward))  # the variable now holds the new output
    backward: Program = (Alloc(gradient), *run.forward, *run.backward, rest, Free(out), Free(gradient))
    upstream: Program = (Alloc(bench.graph.tensor("upstream", states)),)
    return peak_of(bench, forward, upstream, backward, Iteration())
