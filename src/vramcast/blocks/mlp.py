"""Feed-forward blocks, gated or not, and mixtures of experts as transformers and torchtitan run them.

Symbols:  T tokens   k experts per token   R rows that this rank sends: T k, divided over ranks that split them   E
experts   F expert width

[HF] transformers models/llama/modeling_llama.py `LlamaMLP.forward`, models/gpt2/modeling_gpt2.py `GPT2MLP.forward`;
transformers models/mixtral/modeling_mixtral.py `MixtralSparseMoeBlock`, integrations/moe.py grouped experts Balanced
load: every expert sees T k / E rows, so all together see T k
[moe] pytorch/torchtitan torchtitan/models/common/moe/moe.py `MoE.forward`, `TokenChoiceTopKRouter.forward`
[permute] models/common/moe/utils.py `_permute`, `_unpermute`: a row of zeros behind the others, then rows by expert
[exchange] distributed/expert_parallel.py `ExpertParallel`, `ReordererSequenceParallel` Balanced load: as many rows
come in as go out.
[scattermoe] Tan et al., arXiv:2403.08245; axolotl-ai-cloud/axolotl 0.18.0 src/axolotl/integrations/kernels/libs/
scattermoe_lora: parallel_experts.py `ParallelLinear`, parallel_linear_lora.py `ScatterMoELoRA`, experts.py
`scattermoe_experts_forward`
[fms] foundation-model-stack/fms-acceleration 876e2ed plugins/accelerated-moe: utils/scattermoe.py `ScatterMoE.forward`,
utils/scattermoe_utils/{expert_parallel.py, khd/kernels/ops/__init__.py `_ScatteredExperts`}
"""

from __future__ import annotations

from functools import partial

from msgspec.structs import replace

from vramcast.blocks import parts
from vramcast.blocks.parts import EXPERTS, Dispatch, Sizes, adapter_of, project
from vramcast.domain.job import share
from vramcast.domain.model import MLP, MoE
from vramcast.domain.program import Category, Tensor
from vramcast.operators import aten
from vramcast.operators.graph import Graph, Operator, Value
from vramcast.operators.linear import cast
from vramcast.units import FP32, INT64, ceil_div


def mlp_block(
    graph: Graph, x: Value, *, spec: MLP, sizes: Sizes, tokens: int, owner: str = "mlp", width: int | None = None,
    copies: int = 1,
) -> Value:
    """down(act(gate(x)) * up(x)) or down(act(up(x))).

    Args:
        x: (tokens, width) states
        spec: feed-forward width and form
        sizes: local sizes and implementations
        tokens: rows of x [tokens]
        owner: prefix of value names, "mlp", "moe.expert"
        width: width of x, when not H
        copies: experts whose rows lie together in x
    """
    hidden = width or sizes.hidden
    inner = share("tp", spec.width, sizes.tp, what="feed-forward width")
    elements = tokens * inner

    def projected(name: str, states: Value, *shape: int) -> Value:
        return project(
            graph, f"{owner}.{name}", states, tokens=tokens, shape=(shape[0], shape[1]), sizes=sizes, bias=spec.bias,
            copies=copies,
        )

    def up() -> Value:
        return projected("up", x, inner, hidden)

    if spec.gated and (sizes.fused_gate or adapter_of(sizes, f"{owner}.gate_up") is not None):
        gate, half = halves(graph, projected("gate_up", x, 2 * inner, hidden))
        if sizes.fused_gate:
            product = _gated_halves(graph, owner, gate, half, kind=spec.activation, elements=elements, sizes=sizes)
        else:
            product = parts.gated_activation(
                graph, owner, gate, kind=spec.activation, elements=elements, sizes=sizes, up=lambda: half
            )
    elif spec.gated:
        gate = projected("gate", x, inner, hidden)
        product = parts.gated_activation(
            graph, owner, gate, kind=spec.activation, elements=elements, sizes=sizes, up=up
        )
    else:
        product = parts.activation(graph, owner, up(), kind=spec.activation, elements=elements, sizes=sizes)
    return projected("down", product, hidden, inner)


def halves(graph: Graph, both: Value) -> tuple[Value, Value]:
    """Gate and up in the storage of one product."""
    gate, up = (graph.view(both, f"{both.name}.{half}", gradient_bytes=both.gradient_bytes // 2) for half in "01")
    gate.num_bytes = up.num_bytes = both.num_bytes // 2
    graph.call("chunk", [both], [gate, up])
    return gate, up


def _gated_halves(graph: Graph, owner: str, gate: Value, up: Value, *, kind: str, elements: int, sizes: Sizes) -> Value:
    """act(gate) * up of two halves that variables hold until the product exists [HF] models/phi3, models/glm4."""
    activated = parts.activation(graph, owner, gate, kind=kind, elements=elements, sizes=sizes)
    product = parts.product(graph, f"{owner}.product", activated, up)
    graph.hold(gate, up)
    return product


def is_router(operator: Operator) -> bool:
    """Whether it computes what a router chooses by."""
    return any("moe.router" in value.name for value in operator.outputs)


def routed_experts(
    graph: Graph, x: Value, routing: Value, *, spec: MoE, sizes: Sizes, dispatch: Dispatch
) -> Value:
    """What the chosen experts make of all tokens (T, H), scored and summed.

    Args:
        x: normed states of all tokens
        routing: (T, k) scores
        sizes: local sizes and implementations
        dispatch: ranks and form
    """
    width = x.num_bytes // sizes.tokens
    rows = ceil_div(sizes.tokens * spec.top_k, dispatch.row_ranks)
    order = graph.value("moe.order", rows * INT64, gradient_bytes=0)
    states = graph.call("index", [x], [graph.value("moe.gathered", rows * width)], extra=[order])
    if dispatch.ranks > 1:
        states = graph.call("all_to_all", [states], [graph.value("moe.received", rows * width)])
    states = graph.call("cat", [states], [graph.value("moe.received_and_zeros", rows * width)])
    sorted_rows = graph.value("moe.sorted", rows * width)
    permutation = graph.value("moe.permutation", rows * INT64, gradient_bytes=0)
    states = graph.call("index", [states], [sorted_rows], extra=[permutation])
    local = replace(sizes, tp=1) if dispatch.row_ranks > 1 or dispatch.ranks > 1 else sizes
    out = mlp_block(
        graph, states, spec=spec.expert, sizes=local, tokens=rows, owner="moe.experts",
        copies=spec.num_experts // dispatch.ranks,
    )
    out = graph.call("index_put", [out], [graph.value("moe.unsorted", rows * width)])
    if dispatch.ranks > 1:
        out = graph.call("all_to_all", [out], [graph.value("moe.returned", rows * width)])
    return (_in_order if dispatch.in_order else _scattered)(graph, out, routing, spec=spec, sizes=sizes)


def _in_order(graph: Graph, out: Value, routing: Value, *, spec: MoE, sizes: Sizes) -> Value:
    """All tokens' rows in their order, in fp32, times their scores as a batch of products."""
    elements, hidden = sizes.tokens * spec.top_k * sizes.hidden, sizes.tokens * sizes.hidden
    width = sizes.numerics.compute
    ordered = graph.call("index_put", [out], [graph.value("moe.in_order", elements * width)])
    wide = cast(graph, ordered, elements=elements, to_bytes=FP32, name="moe.in_order_fp32")
    total = graph.value("moe.combined_fp32", hidden * FP32)
    graph.call("bmm", [routing, wide], [total], saved=[routing, wide])
    graph.hold(ordered)
    return cast(graph, total, elements=hidden, to_bytes=width, name="moe.combined")


def _scattered(graph: Graph, out: Value, routing: Value, *, spec: MoE, sizes: Sizes) -> Value:
    """Rows in fp32 times their scores, added to where their tokens are."""
    width = sizes.numerics.compute
    elements = out.num_bytes // width
    wide = cast(graph, out, elements=elements, to_bytes=FP32, name="moe.returned_fp32")
    scored = aten.multiply(graph, wide, routing, num_bytes=elements * FP32, name="moe.scored_fp32")
    narrow = cast(graph, scored, elements=elements, to_bytes=width, name="moe.scored")
    graph.hold(out)
    total = graph.value("moe.combined", sizes.tokens * sizes.hidden * width)
    return graph.call("scatter_add", [narrow], [total])


def moe_block(graph: Graph, x: Value, *, spec: MoE, sizes: Sizes) -> Value:
    """Router, gathered rows, experts, weighted sum, shared experts.

    Args:
        x: normed states (T, H)
        sizes: local sizes and implementations
    """
    tokens, width = sizes.tokens, spec.latent_width or sizes.hidden
    routing = _router(graph, x, spec=spec, sizes=sizes)
    states = x
    if spec.latent_width:
        states = project(graph, "moe.latent_in", x, tokens=tokens, shape=(width, sizes.hidden), sizes=sizes)
    if sizes.dispatch is not None:
        total = routed_experts(graph, states, routing, spec=spec, sizes=sizes, dispatch=sizes.dispatch)
    elif sizes.every_expert:
        total = _all_by_all(graph, states, routing, spec=spec, sizes=sizes, width=width)
    elif sizes.experts_in_place:
        total = _in_place(graph, states, routing, spec=spec, sizes=sizes, width=width)
    elif sizes.expert_loop:
        total = _one_by_one(graph, states, routing, spec=spec, sizes=sizes, width=width)
    else:
        total = _grouped(graph, states, routing, spec=spec, sizes=sizes, width=width)
    if spec.latent_width:
        total = project(graph, "moe.latent_out", total, tokens=tokens, shape=(sizes.hidden, width), sizes=sizes)
    if spec.shared_width:
        total = _shared(graph, x, total, spec=spec, sizes=sizes)
    graph.hold(x)
    return total


def _grouped(graph: Graph, states: Value, routing: Value, *, spec: MoE, sizes: Sizes, width: int) -> Value:
    """All experts' rows in one grouped product."""
    tokens = sizes.tokens
    rows = tokens * spec.top_k
    size = rows * width * (states.num_bytes // (tokens * width))
    gathered = graph.value("moe.gathered", size)
    index = graph.value("moe.order", rows * 8, gradient_bytes=0)
    graph.call("index", [states], [gathered], extra=[index])
    out = mlp_block(
        graph, gathered, spec=spec.expert, sizes=sizes, tokens=rows, owner="moe.experts", width=width,
        copies=spec.num_experts,
    )
    weighted = aten.multiply(graph, out, routing, num_bytes=out.num_bytes, name="moe.weighted")
    total = graph.value("moe.combined", out.num_bytes // spec.top_k)
    graph.call("index_add", [weighted], [total])
    return total


def _all_by_all(graph: Graph, states: Value, routing: Value, *, spec: MoE, sizes: Sizes, width: int) -> Value:
    """All tokens once for every expert, weighed before it: those it was not chosen for by zero [HF] models/llama4
    `Llama4TextMoe.forward`."""
    rows, size = sizes.tokens * spec.num_experts, states.num_bytes * spec.num_experts
    repeated = graph.call("repeat", [states], [graph.value("moe.repeated", size)])
    scored = aten.multiply(graph, repeated, routing, num_bytes=size, name="moe.scored")
    out = mlp_block(
        graph, scored, spec=spec.expert, sizes=sizes, tokens=rows, owner="moe.experts", width=width,
        copies=spec.num_experts,
    )
    graph.hold(scored)
    return graph.call("sum", [out], [graph.value("moe.combined", states.num_bytes)])


def _in_place(graph: Graph, states: Value, routing: Value, *, spec: MoE, sizes: Sizes, width: int) -> Value:
    """Products that find the rows of each expert by their numbers, and weigh and sum them [scattermoe].

    Where ranks divide the experts, rows are sent to them in order and come back before they are weighed [fms].
    """
    rows, inner, kind = sizes.tokens * spec.top_k, spec.expert.width, spec.expert.activation
    numbers = [graph.value(f"moe.{name}", rows * INT64, gradient_bytes=0) for name in ("experts_sorted", "places")]
    graph.call("sort", [routing], numbers, differentiable=False)
    sent, element = sizes.expert_ranks > 1, states.num_bytes // (sizes.tokens * width)
    if sent:
        gathered, received = (graph.value(f"moe.{name}", rows * width * element) for name in ("gathered", "received"))
        states = graph.call("all_to_all", [graph.call("gather", [states], [gathered])], [received])
    product = partial(_product_in_place, graph, rows=rows, spec=spec, sizes=sizes)
    if spec.expert.gated:
        gate, up = halves(graph, product("moe.experts.gate_up", states, shape=(2 * inner, width)))
        states = _gated_halves(graph, "moe.experts", gate, up, kind=kind, elements=rows * inner, sizes=sizes)
    else:
        up = product("moe.experts.up", states, shape=(inner, width))
        states = parts.activation(graph, "moe.experts", up, kind=kind, elements=rows * inner, sizes=sizes)
    total = product("moe.experts.down", states, shape=(width, inner), routing=None if sent else routing)
    if sent:
        back = graph.call("all_to_all", [total], [graph.value("moe.returned", total.num_bytes)])
        combined = graph.value("moe.combined", total.num_bytes // spec.top_k)
        total = graph.call("scatter", [back, routing], [combined], saved=[back, routing])
    graph.hold(*numbers)
    return total


def _product_in_place(
    graph: Graph, path: str, x: Value, *, rows: int, shape: tuple[int, int], spec: MoE, sizes: Sizes,
    routing: Value | None = None,
) -> Value:
    """One product of all experts with the rows of x; `routing` weighs and sums those of a token.

    The gradient of the weights is made whether they learn or not, unless adapters do, beside which an unpacked weight
    is made again. Rows of a product that is weighed are kept; the others' input is brought into order for backward.
    """
    sent, given = sizes.expert_ranks > 1, rows if routing is not None or sizes.expert_ranks > 1 else sizes.tokens
    width, elements = sizes.numerics.compute, spec.num_experts // sizes.expert_ranks * shape[0] * shape[1]
    learns, adapter = not sizes.frozen or sizes.trains(EXPERTS), adapter_of(sizes, path)
    packed = sizes.packs(path) and not learns
    x = cast(graph, x, elements=given * shape[1], to_bytes=width,
             name=f"{path}.input")
    made = graph.value(f"{path}.rows", rows * shape[0] * width)
    unpacked = graph.value(f"{path}.unpacked", elements * width, gradient_bytes=0)
    extra, forward, backward, gradients = list[Value](), list[Tensor](), list[Tensor](), list[Tensor]()
    if routing is None:
        y, read = made, [x]
        if not sent:
            backward.append(graph.tensor(f"{path}.grouped", rows * shape[1] * width))
        elif path.endswith("down"):  # the others' gradients are in order already
            backward.append(graph.tensor(f"{path}.grouped_gradient", rows * shape[0] * width))
    else:
        y, read = graph.value("moe.combined", rows // spec.top_k * shape[0] * width), [x, routing]
        made.gradient_bytes = 0
        extra.append(made)
    if adapter is not None:
        count = spec.num_experts * adapter.rank * sum(shape)
        extra.append(graph.value(f"{path}.lora_factors", count * adapter.width, gradient_bytes=0))
        gradients.append(graph.tensor(f"{path}.lora.weight_gradient", count * adapter.width, Category.GRADIENTS))
        backward.append(graph.tensor(f"{path}.lora_rows", 2 * rows * adapter.rank * width))
        if packed:
            forward, backward = [*forward, unpacked.tensor], [*backward, unpacked.tensor]
    elif learns:
        size = elements * sizes.numerics.gradient
        gradients.append(graph.tensor(f"{path}.weight_gradient", size, Category.GRADIENTS))
    else:
        extra += [unpacked] if packed else []
        backward.append(graph.tensor(f"{path}.gradient_of_frozen_weights", elements * width))
    return graph.call(
        "scatter2scatter", read, [y], saved=read, extra=extra, temporaries=forward, backward_temporaries=backward,
        weight_gradients=gradients, flops=2 * rows * shape[0] * shape[1],
    )


def _one_by_one(graph: Graph, states: Value, routing: Value, *, spec: MoE, sizes: Sizes, width: int) -> Value:
    """A loop over experts, each with its share of the rows: one expert's activations are alive at a time, and what
    backward reads of those before.

    The mask of chosen experts has eight bytes for every token, choice and expert (`one_hot`).
    """
    tokens, element = sizes.tokens, states.num_bytes // (sizes.tokens * width)
    mask = graph.value("moe.expert_mask", tokens * spec.top_k * spec.num_experts * 8, gradient_bytes=0)
    graph.call("one_hot", [routing], [mask], differentiable=False)
    total = graph.value("moe.combined", tokens * width * element)
    graph.call("zeros", [], [total])
    copies = 1 if sizes.expert_turns == 1 else ceil_div(spec.num_experts, sizes.expert_turns)
    rows = max(1, ceil_div(tokens * spec.top_k * copies, spec.num_experts))
    for _ in range(sizes.expert_turns):
        gathered = graph.value("moe.gathered", rows * width * element)
        graph.call("index", [states], [gathered])
        out = mlp_block(
            graph, gathered, spec=spec.expert, sizes=sizes, tokens=rows, owner="moe.experts", width=width, copies=copies
        )
        weighted = aten.multiply(graph, out, routing, num_bytes=out.num_bytes, name="moe.weighted")
        added = graph.view(total, "moe.combined.added")
        total = graph.call("index_add", [weighted, total], [added])
    graph.hold(mask)
    return total


def _router(graph: Graph, x: Value, *, spec: MoE, sizes: Sizes) -> Value:
    """Logits, fp32 softmax, the k largest."""
    tokens, shape = sizes.tokens, (spec.num_experts, sizes.hidden)
    if sizes.dispatch is not None and sizes.dispatch.fp32_gate:
        x = cast(graph, x, elements=tokens * sizes.hidden, to_bytes=FP32, name="moe.router_input")
    logits = project(graph, "moe.router", x, tokens=tokens, shape=shape, sizes=sizes, bias=spec.router_bias)
    size = tokens * spec.num_experts * FP32
    scores = aten.unary(graph, logits, num_bytes=size, name="moe.scores", saves="output")
    top = graph.value("moe.top_scores", tokens * spec.top_k * sizes.numerics.compute)
    index = graph.value("moe.top_index", tokens * spec.top_k * 8, gradient_bytes=0)
    return graph.call("topk", [scores], [top], extra=[index])


def _shared(graph: Graph, x: Value, total: Value, *, spec: MoE, sizes: Sizes) -> Value:
    """Experts that every token meets, behind a gate where the family has one."""
    mlp = replace(spec.expert, width=spec.shared_width)
    out = mlp_block(graph, x, spec=mlp, sizes=sizes, tokens=sizes.tokens, owner="moe.shared")
    if spec.shared_gate:
        gate = project(graph, "moe.shared_gate", x, tokens=sizes.tokens, shape=(1, sizes.hidden), sizes=sizes)
        opened = aten.unary(graph, gate, num_bytes=gate.num_bytes, name="moe.shared_gate.sigmoid", saves="output")
        out = aten.multiply(graph, out, opened, num_bytes=out.num_bytes, name="moe.shared_gated")
    return parts.add(graph, "moe.total", total, out)
