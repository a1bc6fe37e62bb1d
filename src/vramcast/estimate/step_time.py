"""Seconds of one optimizer step of a training plan.

Atoms (`timing.training`: a layer, the embedding, the head on one micro-batch) are put together by
`timing.composition`, whose arithmetic the search uses too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache, partial
from operator import attrgetter
from typing import Final

from msgspec import Struct

from vramcast.domain.answer import StepTime
from vramcast.domain.job import Job, Peft, Precision, Recompute, Shards
from vramcast.domain.model import Attention, Layer, Model
from vramcast.engines import eager
from vramcast.engines.eager.trl import chunks_loss
from vramcast.engines.training import engine_of
from vramcast.errors import Note, Unsupported, VramcastError
from vramcast.estimate.host_memory import offload_of
from vramcast.estimate.techniques import of_plain_layers
from vramcast.estimate.training_styles import HIDDEN, Recipe, recipe_of
from vramcast.parallel.layout import Layout
from vramcast.timing.composition import EXCHANGES, Number, Pipeline, Step, Transfers, of_largest, overlapped, step
from vramcast.timing.training.fabric import (
    NOTHING,
    Fabric,
    Route,
    fabric_of,
    host_of,
    spread_of,
    update_on_host_s,
    update_s,
)
from vramcast.timing.training.layer import (
    Elements,
    embedding_elements,
    embedding_passes,
    head_elements,
    head_passes,
    layer_elements,
    layer_passes,
)
from vramcast.timing.training.operators import forward_flops
from vramcast.timing.training.parts import (
    NETWORK_LOSS,
    OVERLAP_LOSS,
    Machine,
    Parts,
    Passes,
    Rates,
    Shape,
    Style,
    bound_of,
    rates_of,
)

EMPTY: Final = Passes(Parts(), Parts())

WAITS: Final[dict[bool, Callable[[Number, Number], Number]]] = {
    False: lambda sent, work: sent,
    True: lambda sent, work: overlapped(sent, work, hidden=HIDDEN, loss=OVERLAP_LOSS),
}
"""Whether a rank has several chunks -> what sticks out of sending a micro-batch on: a chunk's output travels under the
next chunk's pass [Megatron-LM training/arguments.py: overlap_p2p_comm, on where stages are interleaved]."""

MOST_KNOWN: Final = 4096
"""Timed layers that are kept [count]."""

NOISE_S: Final = 1e-9
"""A part smaller than that is the rounding of a difference."""


class Timed(Struct, frozen=True):
    """A step's time, or why there is none."""

    time: StepTime | None
    assumptions: tuple[str, ...]


class Timing(Struct, frozen=True):
    """Everything a step is put together from."""

    job: Job
    recipe: Recipe
    machine: Machine
    shape: Shape
    layout: Layout


class Stage(Struct, frozen=True):
    """One pipeline rank: its passes over one micro-batch and its weights. Numbers or arrays of them."""

    forward: Number
    backward: Number
    elements: Elements
    alike: int = 1  # equal stages


class Exchange(Struct, frozen=True):
    """What travels between ranks. Routes of dense weights, then of experts; numbers or arrays of them."""

    sent_s: Number  # one micro-batch to the next stage
    reduce: tuple[Route, Route]
    gather: tuple[Route, Route]
    owners: tuple[Number, Number]  # ranks that share the update of a weight
    copies: tuple[Route, Route] = (NOTHING, NOTHING)  # between ranks with the same shard, where there are several
    saved_bytes: Number = 0.0  # activations of a micro-batch that go to the host
    loss: Number = OVERLAP_LOSS  # of the work that these transfers run under


def timed(job: Job) -> Timed:
    """The time of a step, or the sentence that says why it is not known."""
    try:
        found = step_time(job)
    except VramcastError as reason:
        return Timed(None, (Note("no step time: {}", reason),))
    return Timed(found, found.assumptions)


def step_time(job: Job) -> StepTime:
    """How long a step takes and what the time goes to.

    Raises: Unsupported with one sentence for what is not timed.
    """
    timing = timing_of(job)
    return _answer(timing, causes_of(timing, _known_layer_passes, partial(max, key=attrgetter("total"))))


def causes_of(
    timing: Timing, of_layer: Callable[..., Passes], slowest: Callable[[list[Passes]], Passes]
) -> dict[str, Number]:
    """What a step's seconds go to; the micro-batches and what comes of them may be arrays.

    Args:
        timing: the plan
        of_layer: `layer_passes`
        slowest: of the stages
    """
    job, last = timing.job, timing.job.plan.pp - 1
    pieces = [tuple(_pieces(timing, index).items()) for index in range(last + 1)]
    kinds = [(held, index == 0, index == last) for index, held in enumerate(pieces)]
    known = {kind: _passes(timing, *kind, of_layer) for kind in dict.fromkeys(kinds)}
    passes = [known[kind] for kind in kinds]
    stages = [Stage(found.forward.total, found.backward.total, elements) for found, elements in passes]
    spread = spread_of(job.cluster.num_nodes)
    step = compose(job, timing.recipe, stages, exchange_of(timing), timing.machine.rates, spread)
    micro, _ = _rounds(job, timing.recipe)
    found = slowest([found for found, _ in known.values()])
    parts = found.forward.plus(found.backward)
    causes = {name: micro * value for name, value in parts._asdict().items()}
    known_s = micro * parts.total
    return causes | {
        "pipeline": step.busy - known_s + step.bubble, "gradients": step.gradients, "gathered": step.weights,
        "optimizer": step.optimizer, "offload": step.offload, "host": step.host, "stragglers": step.stragglers,
    }


def timing_of(job: Job) -> Timing:
    """The job as steps are timed.

    Raises: Unsupported for what is not timed
    """
    plan, cluster = job.plan, job.cluster
    if job.workload.objective not in ("pretrain", "sft"):
        raise Unsupported("objective={} is not timed; pretrain and sft are", job.workload.objective)
    if len(job.model.stacks) > 1:
        raise Unsupported(
            "models of several stacks are not timed, and {} has {}", job.model.name, len(job.model.stacks)
        )
    recipe = recipe_of(job)
    _refuse_untaped(job.model, recipe.style)
    computed = Precision.FP8 if recipe.style.float8 else plan.precision
    rates = rates_of(cluster.gpu, computed, attention=recipe.style.attention)
    if rates is None:
        raise Unsupported("the catalogue has no bandwidth or no {} rate of {}", plan.precision, cluster.gpu.name)
    etp = plan.etp if plan.etp is not None else plan.tp
    shape = Shape(
        job.workload.micro_batch // (recipe.pieces or 1), job.workload.seq_len, plan.tp, plan.cp, plan.ep, etp,
        recipe.sequence_parallel, plan.cp_kind, job.model.main.causal,
    )
    layout = Layout(tp=plan.tp, pp=plan.pp, cp=plan.cp, ep=plan.ep, etp=etp, dp=job.data_parallel)
    return Timing(job, recipe, Machine(rates, fabric_of(cluster), recipe.style), shape, layout)


def _refuse_untaped(model: Model, style: Style) -> None:
    """Raises: Unsupported for layers whose products are others than those on the tape of eager engines"""
    if any(run.layer.beside for run in model.main.runs):
        raise Unsupported("layers with two mixers are not timed, and {} has some", model.name)
    for run in model.main.runs if style.sizes is not None else ():
        mixer = run.layer.mixer
        if isinstance(mixer, Attention) and (mixer.q_lora_rank is not None or mixer.out_lora_rank):
            raise Unsupported(
                "{} projects queries and outputs in two steps, which is not timed where operators run one by one; use "
                "--engine megatron", model.name
            )


def _passes(
    timing: Timing, pieces: Sequence[tuple[tuple[Layer, Recompute], int]], first: bool, last: bool,
    of_layer: Callable[..., Passes],
) -> tuple[Passes, Elements]:
    """One micro-batch on one pipeline rank, and the rank's weights."""
    model = timing.job.model
    passes, elements = EMPTY, Elements()
    for (layer, recompute), count in pieces:
        found = of_layer(
            layer, hidden=model.hidden, shape=timing.shape, machine=timing.machine, recompute=recompute,
            modules=timing.recipe.modules,
        )
        passes = passes.plus(found, count)
        elements = elements.plus(layer_elements(layer, hidden=model.hidden, layout=timing.layout), count)
    if first:
        passes = passes.plus(embedding_passes(model, shape=timing.shape, machine=timing.machine))
        elements = elements.plus(embedding_elements(model, layout=timing.layout))
    if last:
        loss, again = timing.recipe.loss, chunks_loss(timing.job)
        passes = passes.plus(head_passes(model, shape=timing.shape, machine=timing.machine, loss=loss, again=again))
        elements = elements.plus(head_elements(model, layout=timing.layout))
    return passes, elements


_known_layer_passes = lru_cache(maxsize=MOST_KNOWN)(layer_passes)
"""The same for every pipeline and number of micro-batches that a search looks at."""


def _pieces(timing: Timing, index: int) -> dict[tuple[Layer, Recompute], int]:
    """Layers of one pipeline rank, how many of each; `recompute_layers` counts within each of its chunks."""
    model, plan = timing.job.model, timing.job.plan
    every = int(timing.job.engine_options.get("recompute_every") or 1)
    stages = list(timing.recipe.stage_layers) or _counts(
        model.num_layers, plan.pp, plan.first_stage_layers, plan.last_stage_layers
    )
    found: dict[tuple[Layer, Recompute], int] = {}
    for start, stop in _chunks(stages, index, plan.virtual_stages):
        left = stop - start if plan.recompute_layers is None else plan.recompute_layers
        for place, layer in enumerate(model.main.layers[start:stop]):
            again = place < left and (place + 1) % every == 0
            key = (layer, plan.recompute if again else Recompute.NONE)
            found[key] = found.get(key, 0) + 1
    return found


def _chunks(stages: list[int], index: int, chunks: int) -> Iterator[tuple[int, int]]:
    """First layer and end of every chunk of a rank: the data goes round the ranks chunk by chunk."""
    if any(count % chunks for count in stages):  # not every engine divides stages evenly
        start = sum(stages[:index])
        yield start, start + stages[index]
        return
    round_layers = sum(stages) // chunks
    for chunk in range(chunks):
        start = chunk * round_layers + sum(stages[:index]) // chunks
        yield start, start + stages[index] // chunks


def _counts(layers: int, stages: int, first: int | None, last: int | None) -> list[int]:
    """Layers of every stage; where they do not divide, the first stages get one more."""
    given = (first or 0) + (last or 0)
    free = stages - (first is not None) - (last is not None)
    each, more = divmod(layers - given, free) if free else (0, 0)
    middle = [each + (index < more) for index in range(free)]
    return [*([first] if first is not None else []), *middle, *([last] if last is not None else [])]


def exchange_of(timing: Timing) -> Exchange:
    """What travels in a step of one plan."""
    plan, layout, fabric = timing.job.plan, timing.layout, timing.machine.fabric
    stride = layout.tp * layout.cp * layout.dp
    size = timing.shape.residual_tokens * timing.job.model.hidden * timing.recipe.style.width
    sharded = plan.shards is not Shards.NOTHING or engine_of(timing.job).divides_states
    whole = layout.dp * layout.cp
    shard = min(plan.shard_group or whole, whole) if sharded else whole
    pattern = "reduce-scatter" if sharded else "all-reduce"
    dense, expert = (shard, layout.tp), (layout.expert_dp, layout.ep * layout.etp)
    return Exchange(
        sent_s=fabric.send(stride=stride).seconds(size) if plan.pp > 1 else 0.0,
        reduce=(_route(fabric, pattern, dense), _route(fabric, pattern, expert)),
        gather=(
            _route(fabric, "all-gather", dense) if sharded else NOTHING,
            _route(fabric, "all-gather", expert) if sharded else NOTHING,
        ),
        owners=(dense[0], expert[0]) if sharded else (1, 1),
        copies=(_route(fabric, "all-reduce", (whole // shard, layout.tp * shard)), NOTHING),
        saved_bytes=_saved_bytes(timing) if plan.offload_activations else 0.0,
        loss=_loss(fabric, dense),
    )


def _loss(fabric: Fabric, group: tuple[int, int]) -> float:
    """Share of a transfer by which the work it hides under becomes longer: what goes to other machines as well takes
    no less of a card than the part that stays in one."""
    ranks, stride = group
    if ranks == 1 or ranks * stride <= fabric.node_cards:
        return OVERLAP_LOSS
    within = _route(fabric, "all-gather", (max(1, fabric.node_cards // stride), stride)).s_per_byte
    return max(NETWORK_LOSS, OVERLAP_LOSS * within / _route(fabric, "all-gather", group).s_per_byte)


def _route(fabric: Fabric, pattern: str, group: tuple[int, int]) -> Route:
    ranks, stride = group
    return fabric.collective(pattern, ranks=ranks, stride=stride)


def _saved_bytes(timing: Timing) -> Number:
    """What the layers of a rank keep for backward: their inputs, or 34 bytes a token and width without recomputation
    [Korthikanti et al., arXiv:2205.05198, equation 1, scores left out]."""
    job = timing.job
    widths = 2.0 if job.plan.recompute is Recompute.FULL else 34.0 / job.plan.tp
    return job.model.num_layers / job.plan.pp * timing.shape.residual_tokens * job.model.hidden * widths


def compose(
    job: Job, recipe: Recipe, stages: Sequence[Stage], exchange: Exchange, rates: Rates, spread: Number
) -> Step:
    """One optimizer step from its stages; every figure may be an array over plans.

    Args:
        job: what all plans share: schedule, sharding, stages, micro-batches (these may be an array, too)
        recipe: how the engine runs them
        stages: pipeline ranks, equal ones once
        exchange: routes between ranks
        rates: of the card
        spread: how much slower the slowest machine is than the mean
    """
    plan, sent = job.plan, exchange.sent_s * job.plan.virtual_stages
    passes = [stage.forward + stage.backward for stage in stages]
    weights = [stage.elements.dense + stage.elements.expert for stage in stages]
    slowest_forward = of_largest(passes, [stage.forward for stage in stages])
    slowest_backward = of_largest(passes, [stage.backward for stage in stages])
    waits = WAITS[plan.virtual_stages > 1]
    micro_batches, rounds = _rounds(job, recipe)
    pipeline = Pipeline(
        forward=sum(stage.alike * (stage.forward + sent) for stage in stages),
        backward=sum(stage.alike * (stage.backward + sent) for stage in stages),
        slowest_forward=slowest_forward + waits(sent, slowest_forward),
        slowest_backward=slowest_backward + waits(sent, slowest_backward),
        micro_batches=micro_batches, stages=plan.pp, virtual_stages=plan.virtual_stages, rounds=rounds,
    )
    held = Elements(
        of_largest(weights, [stage.elements.dense for stage in stages]),
        of_largest(weights, [stage.elements.expert for stage in stages]),
    )
    learning = held if recipe.learning is None else Elements(recipe.learning)
    owned = sum(count / ranks for count, ranks in zip(learning, exchange.owners, strict=True))
    gradients, gathered = _exchanged(job, recipe, held, learning, pipeline, exchange)
    schedule = "interleaved" if plan.virtual_stages > 1 and plan.schedule == "1f1b" else plan.schedule
    return step(
        pipeline, schedule=schedule, gradients=gradients, weights=gathered,
        optimizer=_updated(job, recipe, owned, rates),
        offload=_offloaded(job, recipe, held, owned, pipeline, exchange), host=recipe.host_s,
        spread=spread,
    )


def _rounds(job: Job, recipe: Recipe) -> tuple[Number, Number]:
    """Micro-batches of a step, and how often the pipeline fills for them."""
    accumulated = job.workload.grad_accum
    return (accumulated, 1) if recipe.pieces is None else (recipe.pieces * accumulated, accumulated)


def _exchanged(
    job: Job, recipe: Recipe, held: Elements, learning: Elements, pipeline: Pipeline, exchange: Exchange
) -> tuple[Number, Number]:
    """Seconds of reducing gradients and of gathering weights that stick out of a step."""
    reduce_s = gather_s = 0.0
    for count, reduced, copied in zip(learning, exchange.reduce, exchange.copies, strict=True):
        some = count > 0
        reduce_s = reduce_s + some * reduced.seconds(count * recipe.gradient_bytes)
        # the shares of one copy are summed with those of the other copies
        reduce_s = reduce_s + some * copied.seconds(count * recipe.gradient_bytes / exchange.owners[0])
    for count, gathered in zip(held if recipe.exchanged == "everything" else learning, exchange.gather, strict=True):
        gather_s = gather_s + (count > 0) * gathered.seconds(count * recipe.weight_bytes)
    gradients, weights = EXCHANGES[recipe.exchanged](
        Transfers(
            reduce_s, gather_s, pipeline.slowest_forward, pipeline.slowest_backward, pipeline.micro_batches,
            recipe.gradients_hidden, recipe.weights_hidden, exchange.loss,
            int(job.plan.reshard_after_forward and job.plan.shards is not Shards.OPTIMIZER_AND_GRADIENTS),
        )
    )
    return pipeline.rounds * gradients, pipeline.rounds * weights


def _updated(job: Job, recipe: Recipe, owned: Number, rates: Rates) -> Number:
    """Seconds of the update of a rank's weights, on the card or on the host."""
    where, _ = offload_of(job)
    if where != "none":
        return update_on_host_s(owned, host_of(job.cluster), disk=where == "nvme")
    return update_s(owned, update=recipe.update, bytes_per_s=rates.bytes_per_s, flops_per_s=rates.whole)


def _offloaded(
    job: Job, recipe: Recipe, held: Elements, owned: Number, pipeline: Pipeline, exchange: Exchange
) -> Number:
    """Seconds of transfers over PCIe that stick out: gradients and weights, sharded weights, saved activations."""
    micro, host, (states, weights) = pipeline.micro_batches, host_of(job.cluster), offload_of(job)
    moved: Number = exchange.saved_bytes / host.pcie
    if weights != "none":
        rate = host.disks if weights == "nvme" else host.pcie
        moved = moved + sum(
            count / ranks for count, ranks in zip(held, exchange.owners, strict=True)
        ) * recipe.weight_bytes / rate
    passes = (pipeline.slowest_forward, pipeline.slowest_backward)
    under = sum(overlapped(moved, work, hidden=HIDDEN, loss=OVERLAP_LOSS) for work in passes)
    if states == "none":
        return micro * under
    return micro * under + owned * (recipe.gradient_bytes + recipe.weight_bytes) / host.pcie


def _answer(timing: Timing, causes: dict[str, Number]) -> StepTime:
    job = timing.job
    seconds = {name: float(value) for name, value in causes.items() if value > NOISE_S}
    total = sum(seconds.values())
    tokens = job.workload.tokens * job.workload.grad_accum * job.data_parallel
    cards = job.cluster.count
    flops = model_flops(job) * tokens / total / cards
    return StepTime(
        step_s=total,
        tokens_per_s=tokens / total,
        tokens_per_s_per_gpu=tokens / total / cards,
        model_flops_per_s_per_gpu=flops,
        mfu=flops / timing.machine.rates.peak,
        seconds=seconds,
        bound=bound_of(seconds),
        sources=(*timing.machine.rates.sources, *timing.machine.fabric.sources),
        assumptions=timing.machine.fabric.assumptions,
    )


def model_flops(job: Job) -> float:
    """Operations of one token that the model needs: a property of its weights, its length and of what learns.

    Recomputation, the masked half of attention and what a kernel computes beside are not counted. Forward once,
    backward once more for the gradients of inputs and once for those of weights that learn [autograd]. Attention has
    no weights: its backward is twice its forward. Adapters count six operations a weight.
    """
    found, peft = forward_flops(job.model, job.workload.seq_len), job.plan.peft
    if peft is None:
        return 3 * sum(found)
    head = 3 if "head" in peft.modules_to_save else 2
    return 2 * found.products + head * found.output + 3 * found.attention + 6 * _adapter_elements(job, peft)


def _adapter_elements(job: Job, peft: Peft) -> int:
    """Weights that learn beside frozen ones, as the memory program has them."""
    weights = eager.recipe.weights(eager.question.recipe_of(of_plain_layers(job)))
    corrections = tuple(weight for weight in weights if f".{peft.method}." in weight.path)
    return eager.recipe.elements(corrections, learning_only=True)
