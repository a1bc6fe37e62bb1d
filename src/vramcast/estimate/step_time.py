"""Seconds of one optimizer step of a training plan.

Atoms (`timing.training`: a layer, the embedding, the head on one micro-batch) are put together by
`timing.composition`, whose arithmetic the search uses too.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from vramcast.domain.answer import StepTime
from vramcast.domain.job import Job, Recompute
from vramcast.domain.model import Layer
from vramcast.errors import Unsupported, VramcastError
from vramcast.estimate.training_styles import Recipe, recipe_of
from vramcast.parallel.layout import Layout
from vramcast.timing.composition import Pipeline, Step, overlapped, step
from vramcast.timing.training.ends import (
    Elements,
    embedding_elements,
    embedding_passes,
    head_elements,
    head_passes,
    layer_elements,
)
from vramcast.timing.training.fabric import fabric_of
from vramcast.timing.training.layer import layer_passes
from vramcast.timing.training.parts import Machine, Parts, Passes, Shape
from vramcast.timing.training.rates import rates_of
from vramcast.timing.training.states import update_s

EMPTY: Final = Passes(Parts(), Parts())

BOUNDS: Final[dict[str, tuple[str, ...]]] = {
    "compute": ("products", "attention"),
    "memory": ("pointwise", "optimizer"),
    "communication": ("tensor", "context", "expert", "gradients", "gathered"),
    "pipeline": ("pipeline",),
    "launch": ("launch", "host"),
    "offload": ("offload",),
}
"""What a step can be bound by -> the parts that count towards it."""


class Timed(NamedTuple):
    """A step's time, or why there is none."""

    time: StepTime | None
    assumptions: tuple[str, ...]


class Timing(NamedTuple):
    """Everything a step is put together from."""

    job: Job
    recipe: Recipe
    machine: Machine
    shape: Shape
    layout: Layout


class Stage(NamedTuple):
    """One pipeline rank: its passes over one micro-batch and its weights."""

    passes: Passes
    elements: Elements


def timed(job: Job) -> Timed:
    """The time of a step, or the sentence that says why it is not known."""
    try:
        found = step_time(job)
    except VramcastError as reason:
        return Timed(None, (f"no step time: {reason}",))
    return Timed(found, found.assumptions)


def step_time(job: Job) -> StepTime:
    """How long a step takes and what the time goes to.

    Raises: Unsupported with one sentence for what is not timed.
    """
    timing = _timing(job)
    stages = [_stage(timing, index) for index in range(job.plan.pp)]
    return _answer(timing, stages, _compose(timing, stages))


def _timing(job: Job) -> Timing:
    plan, cluster = job.plan, job.cluster
    if len(job.model.stacks) > 1:
        raise Unsupported(f"models of several stacks are not timed, and {job.model.name} has {len(job.model.stacks)}")
    rates = rates_of(cluster.gpu, plan.precision)
    if rates is None:
        raise Unsupported(f"the catalogue has no bandwidth or no {plan.precision} rate of {cluster.gpu.name}")
    recipe = recipe_of(job)
    etp = plan.etp if plan.etp is not None else plan.tp
    shape = Shape(
        job.workload.micro_batch, job.workload.seq_len, plan.tp, plan.cp, plan.ep, etp, recipe.sequence_parallel,
        plan.cp_kind,
    )
    layout = Layout(tp=plan.tp, pp=plan.pp, cp=plan.cp, ep=plan.ep, etp=etp, dp=job.data_parallel)
    return Timing(job, recipe, Machine(rates, fabric_of(cluster), recipe.style), shape, layout)


def _stage(timing: Timing, index: int) -> Stage:
    job, model = timing.job, timing.job.model
    counts = _layers(timing, index)
    left = job.plan.recompute_layers
    passes, elements = EMPTY, Elements()
    for layer, count in counts.items():
        repeated = count if left is None else min(count, left)
        left = None if left is None else left - repeated
        for number, recompute in ((repeated, job.plan.recompute), (count - repeated, Recompute.NONE)):
            if number:
                passes = passes.plus(_layer(timing, layer, recompute), number)
        elements = elements.plus(layer_elements(layer, hidden=model.hidden, layout=timing.layout), count)
    if index == 0:
        passes = passes.plus(embedding_passes(model, shape=timing.shape, machine=timing.machine))
        elements = elements.plus(embedding_elements(model, layout=timing.layout))
    if index == job.plan.pp - 1:
        passes = passes.plus(
            head_passes(model, shape=timing.shape, machine=timing.machine, loss=timing.recipe.loss)
        )
        elements = elements.plus(head_elements(model, layout=timing.layout))
    return Stage(passes, elements)


def _layer(timing: Timing, layer: Layer, recompute: Recompute) -> Passes:
    return layer_passes(
        layer, hidden=timing.job.model.hidden, shape=timing.shape, machine=timing.machine, recompute=recompute,
        modules=timing.recipe.modules,
    )


def _layers(timing: Timing, index: int) -> dict[Layer, int]:
    """Layers of one pipeline rank and how many of each."""
    model, plan = timing.job.model, timing.job.plan
    counts = _counts(model.num_layers, plan.pp, plan.first_stage_layers, plan.last_stage_layers)
    start = sum(counts[:index])
    found: dict[Layer, int] = {}
    for layer in model.main.layers[start : start + counts[index]]:
        found[layer] = found.get(layer, 0) + 1
    return found


def _counts(layers: int, stages: int, first: int | None, last: int | None) -> list[int]:
    """Layers of every stage; where they do not divide, the first stages get one more."""
    given = (first or 0) + (last or 0)
    free = stages - (first is not None) - (last is not None)
    each, more = divmod(layers - given, free) if free else (0, 0)
    middle = [each + (index < more) for index in range(free)]
    return [*([first] if first is not None else []), *middle, *([last] if last is not None else [])]


def _compose(timing: Timing, stages: list[Stage]) -> Step:
    job, recipe, fabric = timing.job, timing.recipe, timing.machine.fabric
    plan, micro = job.plan, job.workload.grad_accum
    slowest = max(stages, key=lambda stage: stage.passes.total)
    sent = fabric.send(stride=timing.layout.tp * timing.layout.cp * timing.layout.dp).seconds(
        timing.shape.residual_tokens * job.model.hidden * recipe.style.width
    ) if plan.pp > 1 else 0.0
    pipeline = Pipeline(
        forward=sum(stage.passes.forward.total + sent for stage in stages),
        backward=sum(stage.passes.backward.total + sent for stage in stages),
        slowest_forward=slowest.passes.forward.total + sent,
        slowest_backward=slowest.passes.backward.total + sent,
        micro_batches=micro, stages=plan.pp, virtual_stages=plan.virtual_stages,
    )
    heaviest = max(stages, key=lambda stage: sum(stage.elements))
    gradients, weights = _exchanged(timing, heaviest.elements, slowest.passes)
    share = _owned(timing, heaviest.elements)
    schedule = "interleaved" if plan.virtual_stages > 1 and plan.schedule == "1f1b" else plan.schedule
    return step(
        pipeline, schedule=schedule, gradients=gradients, weights=weights,
        optimizer=update_s(share, update=recipe.update, bytes_per_s=timing.machine.rates.bytes_per_s),
        host=recipe.host_s,
    )


def _groups(timing: Timing) -> tuple[tuple[int, int], tuple[int, int]]:
    """Ranks and stride of the data-parallel group of dense weights, and of that of experts."""
    layout = timing.layout
    return (layout.dp * layout.cp, layout.tp), (layout.expert_dp, layout.ep * layout.etp)


def _owned(timing: Timing, elements: Elements) -> float:
    """Weights whose update is this rank's."""
    if timing.job.plan.shards == "nothing":
        return sum(elements)
    return sum(count / ranks for count, (ranks, _) in zip(elements, _groups(timing), strict=True))


def _exchanged(timing: Timing, elements: Elements, passes: Passes) -> tuple[float, float]:
    """Seconds of reducing gradients and of gathering weights that stick out of a step."""
    job, recipe, fabric = timing.job, timing.recipe, timing.machine.fabric
    micro = job.workload.grad_accum
    sharded = job.plan.shards != "nothing"
    pattern = "reduce-scatter" if sharded else "all-reduce"
    reduce_s = gather_s = 0.0
    for count, (ranks, stride) in zip(elements, _groups(timing), strict=True):
        if count:
            reduced = fabric.collective(pattern, ranks=ranks, stride=stride)
            reduce_s += reduced.seconds(count * recipe.gradient_bytes)
            gathered = fabric.collective("all-gather", ranks=ranks, stride=stride)
            gather_s += gathered.seconds(count * recipe.weight_bytes) if sharded else 0.0
    forward, backward = passes.forward.total, passes.backward.total
    if not recipe.each_micro_batch:
        return (overlapped(reduce_s, backward, hidden=recipe.gradients_hidden),
                overlapped(gather_s, forward, hidden=recipe.weights_hidden))
    again = 1 if job.plan.shards == "everything" and job.plan.reshard_after_forward else 0
    first = overlapped(gather_s, forward, hidden=recipe.weights_hidden)
    second = overlapped(reduce_s + again * gather_s, backward, hidden=recipe.gradients_hidden)
    return micro * second, micro * first


def _answer(timing: Timing, stages: list[Stage], found: Step) -> StepTime:
    job = timing.job
    slowest = max(stages, key=lambda stage: stage.passes.total).passes
    micro = job.workload.grad_accum
    parts = slowest.forward.plus(slowest.backward)
    causes = {name: micro * value for name, value in parts._asdict().items()}
    known = micro * parts.total
    causes |= {"pipeline": found.busy - known + found.bubble, "gradients": found.gradients, "gathered": found.weights,
               "optimizer": found.optimizer, "offload": found.offload, "host": found.host}
    seconds = {name: float(value) for name, value in causes.items() if value > 0}
    total = sum(seconds.values())
    tokens = job.workload.tokens * micro * job.data_parallel
    cards = job.cluster.count
    flops = model_flops(job) * tokens / total / cards
    return StepTime(
        step_s=total,
        tokens_per_s=tokens / total,
        tokens_per_s_per_gpu=tokens / total / cards,
        model_flops_per_s_per_gpu=flops,
        mfu=flops / timing.machine.rates.peak,
        seconds=seconds,
        bound=max(BOUNDS, key=lambda name: sum(seconds.get(cause, 0.0) for cause in BOUNDS[name])),
        sources=(*timing.machine.rates.sources, *timing.machine.fabric.sources),
        assumptions=timing.machine.fabric.assumptions,
    )


def model_flops(job: Job) -> float:
    """Operations of one token forward and backward; recomputation and the masked half of attention not counted."""
    from vramcast.timing.training.operators import layer_operators

    whole, style = Shape(1, job.workload.seq_len), recipe_of(job).style
    model = job.model
    forward = sum(
        run.count * operator.flops
        for run in model.main.runs
        for operator in layer_operators(run.layer, hidden=model.hidden, shape=whole, style=style)
    )
    head = 2.0 * model.hidden * model.vocab
    return 3 * (forward / job.workload.seq_len + head)
