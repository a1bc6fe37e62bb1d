"""Norms, gated feed-forwards and rotary embeddings as the benchmark scripts set them up.

Scripts: Liger-Kernel benchmark/scripts/benchmark_{rms_norm,layer_norm,swiglu,geglu,rope}.py

[liger] Liger-Kernel src/liger_kernel/ops/rms_norm.py, rope.py
[llama4] transformers models/llama4/modeling_llama4.py `apply_rotary_emb`: complex numbers in fp32
"""

from __future__ import annotations

from truth.rows.kernels.harness import FP32, INT64, Bench, Case, Iteration, peak
from vramcast.operators import aten
from vramcast.operators.activation import gated_activation
from vramcast.operators.attention import rope
from vramcast.operators.graph import Graph, Value
from vramcast.operators.linear import Dense, Numerics, linear
from vramcast.operators.norm import Norm, layer_norm, partial_sums, rms_norm


def _norm(case: Case, width: str, weights: int, partial_sums: int) -> tuple[Bench, Value, Norm]:
    """Every provider's module is set up, fp32 weights; the gradient of the output is made in setup."""
    bench = Bench(case)
    norm = Norm(case.size("M"), case.size(width), case.itemsize, FP32, partial_sums=partial_sums, chip=case.gpu.chip)
    x = bench.leaf("x", norm.num_bytes)
    for index in range(weights):
        bench.weight(f"weight.{index}", norm.weight_bytes)
    return bench, x, norm


def _peak_with_given_gradient(bench: Bench, out: Value, num_bytes: int) -> int:
    """`y.backward(dy)`: a dy narrower than y is cast, and the copy lives as long as backward runs."""
    if out.gradient_bytes == num_bytes:
        return peak(bench, (out,), Iteration(gradient_in_setup=True))
    bench.resident("dy", num_bytes)
    return peak(bench, (out,))


def liger_out_of_place(graph: Graph, x: Value, norm: Norm) -> Value:
    """[liger] with in_place=False, as Gemma and the Megatron wrapper need it: a new dX."""
    out = rms_norm(graph, x, norm, "liger")
    graph.operators[-1].reuses_gradient = False
    return out


def _liger_full_sum(graph: Graph, x: Value, norm: Norm) -> Value:
    """[liger] until 0.3.0: the weight gradient is made for every row, then summed by PyTorch."""
    out = graph.value(f"{norm.name}.out", norm.num_bytes)
    return graph.call(
        "norm", [x], [out], saved=[x], extra=norm.statistics(graph, "rstd"), reuses_gradient=True,
        weight_gradients=norm.weight_gradients(graph),
        backward_temporaries=[
            graph.tensor(f"{norm.name}.dw.rows", norm.num_bytes),
            graph.tensor(f"{norm.name}.dw.buffer", norm.sum_bytes),
        ],
    )


def rms_norm_peak(case: Case) -> int:
    """benchmark_rms_norm.py"""
    bench, x, norm = _norm(case, "H", 2, case.gpu.multiprocessors)
    if case.provided(huggingface="eager", liger="liger") == "liger" and case.version < (0, 3, 1):
        return _peak_with_given_gradient(bench, _liger_full_sum(bench.graph, x, norm), norm.num_bytes)
    out = rms_norm(bench.graph, x, norm, case.provided(huggingface="huggingface", liger="liger"))
    return _peak_with_given_gradient(bench, out, norm.num_bytes)


def layer_norm_peak(case: Case) -> int:
    """benchmark_layer_norm.py; Liger 0.6.0 to 0.6.3 added weight gradients atomically, without partial sums."""
    atomic = (0, 6, 0) <= case.version < (0, 6, 4)
    bench, x, norm = _norm(case, "N", 4, 0 if atomic else case.gpu.multiprocessors)
    out = layer_norm(bench.graph, x, norm, case.provided(huggingface="torch", liger="liger"))
    return _peak_with_given_gradient(bench, out, norm.num_bytes)


def fused_add_rms_norm_peak(case: Case) -> int:
    """benchmark_fused_add_rms_norm.py: (norm(x + r), x + r), both with a given gradient; one module has two weights."""
    bench, x, norm = _norm(case, "H", 4, case.gpu.multiprocessors)
    graph = bench.graph
    residual = bench.leaf("residual", norm.num_bytes)
    build = case.provided(
        huggingface=lambda total: rms_norm(graph, total, norm, "huggingface"),
        liger_rms_norm=lambda total: _liger_rms_norm_scaled(bench, total, norm),
        liger_fused_add_rms_norm=None,
    )
    iteration = Iteration(retains_graph=False, gradient_in_setup=True)
    if build is None:
        return peak(bench, _fused_add_rms_norm(graph, x, residual, norm), iteration)
    total = aten.add(graph, x, residual, num_bytes=norm.num_bytes, name="x+r")
    return peak(bench, (build(total), total), iteration)


def _fused_add_rms_norm(graph: Graph, x: Value, residual: Value, norm: Norm) -> tuple[Value, Value]:
    """[liger] `LigerFusedAddRMSNormFunction`: norm(x + residual) and the sum, which it keeps; one dX serves both."""
    out, total = (graph.value(f"{norm.name}.{name}", norm.num_bytes) for name in ("out", "sum"))
    shared = graph.view(x, f"{norm.name}.inputs")
    graph.call("add", [x, residual], [shared], passes_gradient=True)
    graph.call(
        "add_norm", [shared], [out, total], saved=[total], extra=norm.statistics(graph, "rstd"),
        weight_gradients=norm.weight_gradients(graph), backward_temporaries=partial_sums(graph, norm, "dw"),
    )
    return out, total


def _liger_rms_norm_scaled(bench: Bench, total: Value, norm: Norm) -> Value:
    """The script's `AddLigerRMSNorm` multiplies the kernel's output by a second weight."""
    normed = liger_out_of_place(bench.graph, total, norm)
    return aten.scale_by_weight(
        bench.graph, normed, num_bytes=norm.num_bytes, weight_bytes=norm.weight_bytes, name="out",
        sum_bytes=norm.sum_bytes,
    )


def gated_mlp_peak(case: Case) -> int:
    """benchmark_swiglu.py, benchmark_geglu.py: three linear layers and the activation between them."""
    batch = case.size("B") if "B" in case.config else case.size("bsz")
    tokens, hidden, inner = batch * case.size("T"), case.size("hidden_size"), case.size("intermediate_size")
    size = case.itemsize
    bench = Bench(case)
    bench.workspaces()
    x = bench.leaf("x", tokens * hidden * size)
    for name in ("gate", "up", "down"):
        bench.weight(name, hidden * inner * size)
    graph, numerics = bench.graph, Numerics(size, size, size, size)
    gate = linear(graph, "gate", x, tokens=tokens, dense=Dense(inner, hidden), numerics=numerics)
    if case.provider == "liger":
        up = linear(graph, "up", x, tokens=tokens, dense=Dense(inner, hidden), numerics=numerics)
        gated = gated_activation(graph, [gate, up], "liger", "mlp")
    else:
        case.provided(huggingface="eager")
        gated = _eager_gate(bench, x, gate, tokens, numerics)
    out = linear(graph, "down", gated, tokens=tokens, dense=Dense(hidden, inner), numerics=numerics)
    return peak(bench, (out,))


def _eager_gate(bench: Bench, x: Value, gate: Value, tokens: int, numerics: Numerics) -> Value:
    """`act(gate(x)) * up(x)` runs the activation before the second projection."""
    graph, hidden = bench.graph, bench.case.size("hidden_size")
    inner = bench.case.size("intermediate_size")
    act = aten.unary(graph, gate, num_bytes=gate.num_bytes, name="act", saves="input")
    up = linear(graph, "up", x, tokens=tokens, dense=Dense(inner, hidden), numerics=numerics)
    return aten.multiply(graph, act, up, num_bytes=gate.num_bytes, name="gated")


def _eager_complex(
    graph: Graph, sizes: list[tuple[Value, int]], itemsize: int, frequency_bytes: int
) -> tuple[Value, Value]:
    """[llama4]: upcast both, multiply both as complex numbers, downcast both; variables hold every step."""
    wide, rotated, narrow = [], [], []
    for x, size in sizes:
        wide.append(graph.call("cast", [x], [graph.value(f"{x.name}.fp32", size // itemsize * FP32)]))
    for value in wide:
        conjugate = graph.tensor(f"{value.name}.freqs.conj", frequency_bytes)
        turned = graph.value(f"{value.name}.rotated", value.num_bytes)
        rotated.append(graph.call("mul", [value], [turned], backward_temporaries=[conjugate]))
    for (x, size), value in zip(sizes, rotated, strict=True):
        narrow.append(graph.call("cast", [value], [graph.value(f"{x.name}.rope", size)]))
    graph.hold(*wide, *rotated)
    return narrow[0], narrow[1]


def _complex_rope(
    graph: Graph, q: Value, k: Value, *, q_bytes: int, k_bytes: int, itemsize: int, frequency_bytes: int, variant: str
) -> tuple[Value, Value]:
    """Append the complex rotation of Llama 4; `variant` is "complex" [llama4] or "liger_complex" (in place)."""
    if variant == "liger_complex":
        parts = [graph.tensor(f"freqs.{name}", frequency_bytes // 2 // FP32 * itemsize) for name in ("real", "imag")]
        outputs = graph.view(q, "q.rope"), graph.view(k, "k.rope")
        for x, out in zip((q, k), outputs, strict=True):
            graph.call("rope", [x], [out], passes_gradient=True, temporaries=parts, backward_temporaries=parts)
        return outputs
    return _eager_complex(graph, [(q, q_bytes), (k, k_bytes)], itemsize, frequency_bytes)


def llama4_rope_peak(case: Case) -> int:
    """benchmark_llama4_rope.py: complex frequencies; gradients by torch.autograd.grad."""
    tokens = case.size("seq_len") if case.x_name == "H" else case.size("T")
    hidden = case.size("H") if case.x_name == "H" else case.size("hidden_size")
    size, head = case.itemsize, hidden // case.size("num_q_heads")
    q_bytes, k_bytes = tokens * hidden * size, tokens * case.size("num_kv_heads") * head * size
    bench = Bench(case)
    bench.workspaces(1)
    bench.resident("inv_freq", head // 2 * FP32)
    bench.resident("pos_ids", tokens * INT64)
    frequencies = tokens * head * FP32
    bench.resident("freqs_cis", frequencies)
    q, k = bench.leaf("q", q_bytes), bench.leaf("k", k_bytes)
    variant = case.provided(huggingface="complex", liger="liger_complex")
    outputs = _complex_rope(
        bench.graph, q, k, q_bytes=q_bytes, k_bytes=k_bytes, itemsize=size, frequency_bytes=frequencies, variant=variant
    )
    return peak(bench, outputs, Iteration(gradient_in_setup=True, accumulates=False))


def rope_peak(case: Case) -> int:
    """benchmark_rope.py: gradients by torch.autograd.grad; the rotary module multiplies once, in one thread."""
    tokens = case.size("seq_len") if case.x_name == "H" else case.size("T")
    hidden = case.size("H") if case.x_name == "H" else case.size("hidden_size")
    size, heads = case.itemsize, case.size("num_q_heads")
    head = hidden // heads
    q_bytes, k_bytes = tokens * hidden * size, tokens * case.size("num_kv_heads") * head * size
    bench = Bench(case)
    bench.workspaces(1)
    bench.resident("inv_freq", head // 2 * FP32)
    bench.resident("pos_ids", tokens * INT64)
    bench.resident("cos", tokens * head * size)
    bench.resident("sin", tokens * head * size)
    q, k = bench.leaf("q", q_bytes), bench.leaf("k", k_bytes)
    variant = case.provided(huggingface="huggingface", liger="liger")
    outputs = rope(bench.graph, q, k, q_bytes=q_bytes, k_bytes=k_bytes, variant=variant)
    return peak(bench, outputs, Iteration(gradient_in_setup=True, accumulates=False))
