"""Rank programs of litgpt runs: one GPU, or FSDP with every block recomputed.

[litgpt] litgpt/finetune/lora.py, full.py, adapter.py: batches start with the longest sample; utils.py
`chunked_cross_entropy`: chunks of 128 tokens; the logits stay a variable through backward
[fabric] lightning/fabric/plugins/precision/half.py `HalfPrecision.convert_output`: outputs become fp32;
strategies/fsdp.py with activation_checkpointing_policy={Block}; no_backward_sync while gradients accumulate
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from itertools import groupby
from typing import Final, NamedTuple

from vramcast.blocks.parameters.model import named_parameters
from vramcast.blocks.parameters.targets import matrices
from vramcast.domain.cublas import blas_workspaces
from vramcast.domain.job import Job, Phase, RankProgram, Shards
from vramcast.domain.model import MLP, Attention, Norm
from vramcast.domain.program import Alloc, Category, Free, Loop, Node, Program, Tensor, live_at_end
from vramcast.domain.version import date_text
from vramcast.engines.litgpt.layer import WIDTH, Tokens, Tuning, block, linear, norm
from vramcast.errors import Unsupported
from vramcast.operators.graph import Graph, Value
from vramcast.operators.linear import QUANTISED
from vramcast.operators.lowering import Lowered, WeightGradients, lower
from vramcast.parallel.fsdp import (
    FlatStage,
    FlatUnit,
    flat_backward,
    flat_forward,
    flat_gather,
    flat_reduce,
    flat_release,
    flat_scatter,
    flat_unit,
)
from vramcast.states.optimizers import optimizer
from vramcast.states.steps import Weight, kind_of, state_program, step_program, weight_program
from vramcast.units import ceil_div

CHUNK: Final = 128
"""Tokens of one chunk of logits [litgpt utils.py `chunked_cross_entropy`]."""
PROMPT_START: Final = 2
"""adapter_start_layer [litgpt adapter.py `Config`]."""
PATHS: Final = {
    "attention.q": "q", "attention.k": "k", "attention.v": "v", "attention.out": "out", "mlp.gate": "mlp",
    "mlp.up": "mlp", "mlp.down": "mlp", "head.output": "head",
}
STABLE_EMBEDDING_SINCE: Final = "2024-10"
"""Quantised runs replace the embedding once all is frozen, so that it learns [litgpt ae798aba, lora.py `main`]."""
METHODS: Final = ("lora", "adapter")


class Setting(NamedTuple):
    """A job as this engine reads it."""

    job: Job
    tokens: Tokens
    tuning: Tuning
    ranks: int  # FSDP ranks
    stable_embedding: bool = False  # quantised runs: a learning embedding with a norm of its own


def ranks(job: Job) -> tuple[RankProgram, ...]:
    """The one rank role of a litgpt run.

    Raises: Unsupported for what litgpt's fine-tuning scripts cannot do.
    """
    setting = _setting(job)
    assumed = ("every micro-batch is as long as the longest sample",)
    return (RankProgram(role="all", count=job.cluster.count, phases=_phases(setting), assumptions=assumed),)


def _setting(job: Job) -> Setting:
    plan = job.plan
    if plan.tp * plan.pp * plan.cp * plan.ep > 1:
        raise Unsupported("litgpt's fine-tuning scripts divide nothing but data; use --engine torchtitan")
    if len(job.model.stacks) > 1 or not job.model.main.causal:
        raise Unsupported("litgpt has decoders of text only, and {} is none; use --engine pytorch", job.model.name)
    for layer in (run.layer for run in job.model.main.runs):
        if not isinstance(layer.mixer, Attention) or not isinstance(layer.channel, MLP):
            raise Unsupported("litgpt is modelled for dense attention models; use --engine pytorch or megatron")
    if job.data_parallel > 1 and plan.shards is not Shards.EVERYTHING:
        raise Unsupported("litgpt shards everything over several GPUs; use --shards everything")
    tuning = _tuning(job)
    if job.data_parallel > 1 and tuning.stored in QUANTISED:
        raise Unsupported("litgpt cannot train quantised models on several GPUs; use one GPU")
    version = date_text(job.engine_version or ()) or str(job.engine_options.get("version", "")) or "9999"
    return Setting(
        job, Tokens(job.workload.micro_batch, job.workload.seq_len), tuning, job.data_parallel,
        stable_embedding=tuning.stored in QUANTISED and tuning.method == "lora" and version >= STABLE_EMBEDDING_SINCE,
    )


def _tuning(job: Job) -> Tuning:
    peft = job.plan.peft
    if peft is None:
        return Tuning()
    if peft.method not in METHODS:
        raise Unsupported("litgpt has no {}; use lora or adapter", peft.method)
    method = peft.method
    if method == "adapter" and int(job.engine_options.get("adapter_version", 1)) == 2:
        method = "adapter_v2"
    unknown = [path for path in peft.targets if path not in PATHS]
    if unknown:
        raise Unsupported("litgpt cannot adapt {!r}; use {}", unknown[0], ", ".join(PATHS))
    paths = {path for run in job.model.main.runs for path in matrices(run.layer, job.model.hidden)}
    missing = [path for path in sorted(paths) if path.startswith("mlp.") and path not in peft.targets]
    if missing and any(path.startswith("mlp.") for path in peft.targets):
        raise Unsupported("litgpt adapts the whole MLP or nothing of it; add {} to --lora-targets", ", ".join(missing))
    targets = tuple(dict.fromkeys(PATHS[path] for path in peft.targets))
    stored = peft.base if peft.base in ("nf4", "nf4-dq", "int8") else "full"
    return Tuning(method, peft.rank, targets, peft.dropout, stored)


def _blocks(setting: Setting) -> Iterator[tuple[int, Graph]]:
    """Equal blocks, and how many, by whether a gradient reaches their input and whether they hold a prompt."""
    model, tuning = setting.job.model, setting.tuning
    prompts = tuning.method in ("adapter", "adapter_v2")
    flows, index = tuning.full or setting.stable_embedding, 0
    for layer, alike in groupby(model.main.runs, lambda run: run.layer):
        left = sum(run.count for run in alike)
        while left:
            prompted = not prompts or index >= PROMPT_START
            alone = not flows or (prompts and index < PROMPT_START)
            times = 1 if alone else left
            yield times, block(layer, model.hidden, setting.tokens, tuning, flows=flows, prompted=prompted)
            flows = flows or tuning.method != "adapter" or prompted
            index, left = index + times, left - times


def _embedding(setting: Setting) -> Graph:
    graph, model = Graph(owner="embedding"), setting.job.model
    size, full = setting.tokens.rows * model.hidden * WIDTH, setting.tuning.full or setting.stable_embedding
    table = graph.tensor("wte.gradient", model.vocab * model.hidden * WIDTH, Category.GRADIENTS)
    out = graph.value("tokens", size, gradient_bytes=size if full else 0)
    graph.call("embedding", [], [out], weight_gradients=[table] if full else [])
    graph.returns(out)
    return graph


def _head(setting: Setting) -> Graph:
    """Final norm, logits, their fp32 copy, chunked loss."""
    model, tokens, tuning = setting.job.model, setting.tokens, setting.tuning
    graph = Graph(owner="head")
    x = graph.input("hidden", tokens.rows * model.hidden * WIDTH)
    read = graph.call("variable", [x], [graph.view(x, "hidden.read")], passes_gradient=True)
    holder = graph.operators[-1]
    y = norm(graph, "ln_f", read, model.main.final_norm or Norm.RMS, tokens.rows, model.hidden, tuning)
    shape = (model.vocab, model.hidden)
    logits = linear(graph, "lm_head", y, tokens.rows, shape, tuning, target="head")
    elements = tokens.rows * model.vocab
    wide = graph.value("logits.fp32", 4 * elements, gradient_bytes=0)
    graph.call("convert_output", [logits], [wide], differentiable=False)
    holder.saved = (wide,)
    graph.returns(_loss(graph, logits, wide, elements, tokens, full=tuning.full))
    return graph


def _loss(graph: Graph, logits: Value, wide: Value, elements: int, tokens: Tokens, *, full: bool) -> Value:
    """Chunk by chunk: each chunk's gradient takes the place of its log-probabilities."""
    chunk = ceil_div(4 * elements, max(1, ceil_div(tokens.length, CHUNK)))
    extra = [graph.value("loss.log_probabilities", 4 * elements, gradient_bytes=0)]
    temporaries = [graph.tensor("loss.chunk_gradient", chunk)]
    if full:  # whole logits are cut into chunks: copied forward, concatenated and padded backward
        shifted = graph.value("logits.shifted", 4 * elements, gradient_bytes=0)
        if tokens.batch > 1:
            graph.call("reshape", [wide], [shifted], differentiable=False)
        temporaries = [graph.tensor("loss.gradient_whole", 4 * elements)]
    loss = graph.call(
        "chunked_cross_entropy", [logits], [graph.value("loss", 4)], extra=extra,
        gradient_storages=[(logits, extra[0])], backward_temporaries=temporaries,
    )
    if full and tokens.batch > 1:
        graph.hold(shifted)
    return loss


class Built(NamedTuple):
    """Lowered pieces and their tensors."""

    embedding: Lowered
    blocks: tuple[tuple[int, Graph, Lowered], ...]  # repeats of each
    head: Lowered
    gradients: tuple[tuple[Tensor, int], ...]
    loss_gradient: Program
    outliving: tuple[tuple[Tensor, int], ...]  # kept by the last loss until the next one exists


def _build(setting: Setting, policy: WeightGradients) -> Built:
    hidden = setting.tokens.rows * setting.job.model.hidden * WIDTH
    stream = Tensor(name="hidden states", num_bytes=hidden, category=Category.ACTIVATIONS, owner="decoder")
    gradient = Tensor(
        name="gradient of hidden states", num_bytes=hidden, category=Category.TEMPORARIES, owner="decoder"
    )
    first, last, middle = _embedding(setting), _head(setting), list(_blocks(setting))
    for graph in (first, last, *(graph for _, graph in middle)):
        for value in (*graph.inputs[:1], *graph.outputs[:1]):
            if value.num_bytes == hidden:
                value.tensor = stream
        if setting.ranks > 1 and graph not in (first, last):
            graph.checkpoint(0)

    def lowered(graph: Graph) -> Lowered:
        return lower(graph, weight_gradients=policy, gradient=gradient)

    head = lowered(last)
    made = [(1, first), *middle, (1, last)]
    gradients = tuple((t, times) for times, graph in made for t in graph.weight_gradients)
    outliving = tuple((t, times) for times, graph in made for t in _outliving(graph))
    blocks = tuple((times, graph, lowered(graph)) for times, graph in middle)
    return Built(lowered(first), blocks, head, gradients, head.loss_gradient, outliving)


def _outliving(graph: Graph) -> tuple[Tensor, ...]:
    """Inputs of 4-bit products: attributes of the autograd node, not its saved tensors, so that they live as long as
    the graph, which the loss variable holds until the next micro-batch's loss [bnb `MatMul4Bit.forward`]."""
    products = [operator for operator in graph.operators if operator.name == "quantised_linear"]
    found = {value.storage: value.tensor for operator in products for value in operator.saved}
    return tuple(found.values())


def _weights(setting: Setting) -> tuple[Weight, ...]:
    """Weights as they are stored, then what the method adds."""
    model, tuning, found = setting.job.model, setting.tuning, list[Weight]()

    def packed(weight: Weight) -> Iterator[Weight]:
        for name, size in QUANTISED[tuning.stored].stored_bytes(weight.elements):
            yield Weight(weight.owner, f"{weight.path}.{name}", (size,), weight.repeats, 1, learns=False)

    for owned in named_parameters(model):
        parameter = owned.parameter
        learns = tuning.full or (tuning.norms_learn and parameter.kind == "norm")
        weight = Weight(owned.owner, parameter.path, parameter.shape, owned.repeats, WIDTH, learns,
                        kind=kind_of(parameter))
        found += packed(weight) if tuning.stored in QUANTISED and parameter.kind == "matrix" else (weight,)
    if model.tied and not setting.job.engine_options.get("tie_embeddings", False):
        # litgpt keeps the output projection apart from the embedding
        head = Weight("head", "lm_head", (model.vocab, model.hidden), 1, WIDTH, tuning.full, kind="head")
        found += packed(head) if tuning.stored in QUANTISED else (head,)
    return (*found, *_added(setting))


def _added(setting: Setting) -> Iterator[Weight]:
    """LoRA matrices, prompts and gates, scales and biases."""
    model, tuning, h = setting.job.model, setting.tuning, setting.job.model.hidden
    layers = model.main.num_layers
    for run in model.main.runs:
        mixer, channel = run.layer.mixer, run.layer.channel
        assert isinstance(mixer, Attention)
        assert isinstance(channel, MLP)
        for path, rows, columns in _linears(mixer, channel, h):
            if tuning.method == "lora" and path in tuning.targets:
                for name, shape in (("A", (tuning.rank, columns)), ("B", (rows, tuning.rank))):
                    yield Weight("decoder.layers", f"{path}.lora_{name}", shape, run.count, WIDTH)
            if tuning.method == "adapter_v2":
                yield Weight("decoder.layers", f"{path}.scale_and_bias", (2 * rows,), run.count, WIDTH)
    if tuning.method in ("adapter", "adapter_v2"):
        yield Weight("decoder.layers", "adapter_wte", (10, h), max(0, layers - PROMPT_START), WIDTH)
    if tuning.method == "lora" and "head" in tuning.targets:
        yield Weight("head", "lm_head.lora_A", (tuning.rank, h), 1, WIDTH)
        yield Weight("head", "lm_head.lora_B", (model.vocab, tuning.rank), 1, WIDTH)


def _linears(mixer: Attention, channel: MLP, hidden: int) -> Iterator[tuple[str, int, int]]:
    d = mixer.head_dim
    yield "q", mixer.num_heads * d, hidden
    yield "k", mixer.num_kv_heads * d, hidden
    yield "v", mixer.num_kv_heads * d, hidden
    yield "out", hidden, mixer.num_heads * d
    for _ in range(2 if channel.gated else 1):
        yield "mlp", channel.width, hidden
    yield "mlp", hidden, channel.width


def _phases(setting: Setting) -> Mapping[Phase, Program]:
    held = _weights(setting)
    name = setting.job.plan.optimizer
    rule = optimizer(f"paged-{name}" if setting.tuning.stored in QUANTISED and name == "adamw" else name)
    if setting.ranks > 1:
        return _sharded_phases(setting, held)
    built = _build(setting, WeightGradients.KEPT)
    later = _build(setting, WeightGradients.TRANSIENT)._replace(outliving=built.outliving)
    others: tuple[Node, ...] = ()
    if setting.job.workload.grad_accum > 1:
        others = (Loop(setting.job.workload.grad_accum - 1, _micro_batch(setting, later), label="micro-batches"),)
    step = step_program(held, rule, kernel=setting.job.plan.optimizer_kernel or "foreach")
    zeroed = tuple(Loop(times, (Free(tensor),)) for tensor, times in built.gradients)
    first = (*blas_workspaces(setting.job), *_micro_batch(setting, built, begins=True))
    return {
        Phase.LOAD: weight_program(held),
        Phase.FIRST_STEP: (*first, *others, *state_program(held, rule), *step, *zeroed),
        Phase.STEP: (*_micro_batch(setting, built), *others, *step, *zeroed),
    }


def _inputs(setting: Setting) -> tuple[Tensor, ...]:
    size = setting.tokens.rows * 8
    return tuple(
        Tensor(name=name, num_bytes=size, category=Category.INPUTS, owner="batch") for name in ("input_ids", "targets")
    )


def _micro_batch(setting: Setting, built: Built, *, begins: bool = False) -> Program:
    """Forward and backward; what the last loss kept alive dies once this one's exists."""
    inputs = _inputs(setting)
    dying = () if begins else tuple(Loop(times, (Free(tensor),)) for tensor, times in built.outliving)
    nodes: list[Node] = [*map(Alloc, inputs), *built.embedding.forward]
    nodes += [Loop(times, low.forward, label="layers") for times, _, low in built.blocks]
    nodes += [*built.head.forward]
    backward: list[Node] = [*built.loss_gradient, *built.head.backward]
    backward += [Loop(times, low.backward, label="layers") for times, _, low in reversed(built.blocks)]
    backward += built.embedding.backward
    born = tuple(Loop(times, (Alloc(tensor),)) for tensor, times in built.outliving)
    kept = {*inputs, *(tensor for tensor, _ in built.gradients)}
    # what nobody's backward frees: the loss, states that no gradient reaches
    left = _freed([*nodes, *backward], lambda tensor: tensor not in kept)
    return (*nodes, *dying, *backward, *left, *born, *map(Free, inputs))


def _freed(nodes: list[Node], which: Callable[[Tensor], bool]) -> Program:
    """What lives at the end, as far as it is chosen."""
    ends = live_at_end(tuple(nodes))
    return tuple(Loop(count, (Free(tensor),)) for tensor, count in ends.items() if count > 0 and which(tensor))


def _sharded_phases(setting: Setting, held: tuple[Weight, ...]) -> Mapping[Phase, Program]:
    """FSDP: a unit per block and one of the rest; flat gradients stay whole while they accumulate."""
    built = _build(setting, WeightGradients.KEPT)
    layers = setting.job.model.main.num_layers
    inner = sum(weight.elements * weight.repeats for weight in held if ".layers" in weight.owner)
    outer = sum(weight.elements * weight.repeats for weight in held) - inner
    unit = flat_unit("decoder.layers", elements=inner // layers, ranks=setting.ranks, width=WIDTH)
    root = flat_unit("root", elements=outer, ranks=setting.ranks, width=WIDTH)
    by_piece = [
        FlatStage(unit, low.forward, low.backward, graph.weight_gradients, times) for times, graph, low in built.blocks
    ]
    first, later = (_sharded_pass(setting, built, by_piece, root, first=flag) for flag in (True, False))
    passes: list[Node] = [*first]
    if setting.job.workload.grad_accum > 1:
        passes.append(Loop(setting.job.workload.grad_accum - 1, later, label="micro-batches"))
    passes += [*flat_reduce(by_piece), *flat_scatter(root)]
    learning = sum(weight.elements * weight.repeats for weight in held if weight.learns)
    state = Tensor(
        name="exp_avg and exp_avg_sq", num_bytes=2 * WIDTH * ceil_div(learning, setting.ranks),
        category=Category.OPTIMIZER, owner="fsdp",
    )
    zeroed = (Loop(layers, (Free(unit.shard_gradient),)), Free(root.shard_gradient))
    return {
        Phase.LOAD: (Loop(layers, (Alloc(unit.shard),)), Alloc(root.shard), *blas_workspaces(setting.job)),
        Phase.FIRST_STEP: (*passes, Alloc(state), *zeroed),
        Phase.STEP: (*passes, *zeroed),
    }


def _sharded_pass(
    setting: Setting, built: Built, stages: list[FlatStage], root: FlatUnit, *, first: bool
) -> Program:
    """One micro-batch under no_sync."""
    inputs = _inputs(setting)
    ends = tuple(t for t, _ in built.gradients if t.owner in ("embedding", "head"))
    nodes: list[Node] = [*map(Alloc, inputs), *flat_gather((root,)), *built.embedding.forward, *flat_forward(stages)]
    nodes += [*built.head.forward, *built.loss_gradient, *built.head.backward]
    nodes += [*flat_backward(stages, first=first), *built.embedding.backward]
    nodes += [Alloc(root.gradient), *map(Free, ends), *flat_release((root,))]
    nodes += [] if first else [Free(root.gradient)]
    forgotten = _freed(nodes, lambda tensor: tensor.category is Category.ACTIVATIONS)  # by every backward
    return (*nodes, *forgotten, *map(Free, inputs))
