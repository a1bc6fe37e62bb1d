"""The decision path of a case: from one card to one that is sharded, split and offloaded, each step with its figures.

    one card? -> above what a card's states hold? -> shard -> recompute -> split -> offload -> more cards
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

from msgspec.structs import replace

from vramcast.blocks.parameters import count_parameters
from vramcast.domain.job import Job, Precision, Recompute, Shards
from vramcast.domain.planning import Decision
from vramcast.errors import VramcastError
from vramcast.estimate.training import needed_bytes
from vramcast.estimate.variants import on_engine, options_between, with_plan
from vramcast.units import ceil_div, format_bytes

STATE_BYTES: Final = 16
"""A parameter under Adam in mixed precision: 2 + 2 for weight and gradient, 4 + 4 + 4 for its copy and two moments, or
4 + 4 + 4 + 4 under autocast [ZeRO, arXiv:1910.02054, section 3.1]."""

OFFLOADED_BYTES: Final = 12
"""What the optimizer keeps of a parameter, in main memory where it is offloaded [same]."""

WEIGHT_BYTES: Final = 2

MOST_MACHINES: Final = 1024

TAKE: Final = "take it"
COPY: Final = "copy it to every card for speed"
SHARD: Final = "shard them"
NOT_STATES: Final = "activations and temporaries are what is too large"
USE_MORE: Final = "use that many"


class Step(NamedTuple):
    """One question of the path, and the job that answers it."""

    name: str
    question: str
    build: Callable[[Job], Job | None]  # None: does not apply
    otherwise: str  # what to do where it does not fit


def _one_card(job: Job, engine: str = "pytorch") -> Job:
    """The same work on one card, without anything that several share."""
    cluster = replace(job.cluster, gpus_per_node=1, num_nodes=1)
    alone = with_plan(
        job, tp=1, pp=1, cp=1, ep=1, etp=None, virtual_stages=1, schedule="1f1b", shards=Shards.NOTHING,
        shard_group=None, recompute=Recompute.NONE, offload_optimizer="none", offload_parameters="none",
    )
    return on_engine(replace(alone, cluster=cluster), engine)


def _recomputed(job: Job) -> Job:
    return with_plan(_one_card(job), recompute=Recompute.FULL)


def _eight_bit(job: Job) -> Job | None:
    return with_plan(_recomputed(job), optimizer="adamw-8bit") if job.plan.optimizer in ("adam", "adamw") else None


def _pure_bf16(job: Job) -> Job | None:
    return with_plan(_recomputed(job), precision=Precision.BF16) if job.plan.peft is None else None


def _offloaded_alone(job: Job) -> Job:
    return with_plan(on_engine(_recomputed(job), "deepspeed"), offload_optimizer="cpu")


def _sharded(shards: Shards, recompute: Recompute) -> Callable[[Job], Job]:
    def build(job: Job) -> Job:
        whole = replace(_one_card(job, "deepspeed"), cluster=job.cluster)
        return with_plan(whole, shards=shards, recompute=recompute)

    return build


def _tensor(job: Job) -> Job | None:
    """Layers split over one machine, states over the rest."""
    degree = job.cluster.gpus_per_node
    if degree == 1:
        return None
    whole = replace(_one_card(job, "megatron"), cluster=job.cluster)
    return with_plan(whole, tp=degree, shards=Shards.OPTIMIZER, recompute=Recompute.FULL)


def _pipeline(job: Job) -> Job | None:
    """And stages over the machines."""
    found = _tensor(job)
    return with_plan(found, pp=job.cluster.num_nodes) if found is not None and job.cluster.num_nodes > 1 else None


def _offloaded(job: Job) -> Job:
    return with_plan(_sharded(Shards.EVERYTHING, Recompute.FULL)(job), offload_optimizer="cpu")


def _all_offloaded(job: Job) -> Job:
    return with_plan(_offloaded(job), offload_parameters="cpu")


ONE_CARD: Final = (
    Step("one-card", "Does it fit on one card as it is?", _one_card, "recompute activations"),
    Step("one-card-recompute", "And with full recomputation?", _recomputed, "save on what each parameter takes"),
)

ONLY_ONE: Final = (
    *ONE_CARD,
    Step(
        "one-card-8bit", "And with 8-bit optimizer states?", _eight_bit,
        "train in pure bf16, if its rounding does no harm",
    ),
    Step("one-card-bf16", "And in pure bf16?", _pure_bf16, "put the optimizer on the CPU"),
    Step("one-card-offload", "With the optimizer on the CPU?", _offloaded_alone, "use several cards"),
)

SEVERAL: Final = (
    Step("zero-1", "Does it fit with ZeRO 1?", _sharded(Shards.OPTIMIZER, Recompute.NONE), "shard gradients as well"),
    Step(
        "zero-2", "And with ZeRO 2?", _sharded(Shards.OPTIMIZER_AND_GRADIENTS, Recompute.NONE), "shard weights as well"
    ),
    Step("zero-3", "And with ZeRO 3 (FSDP)?", _sharded(Shards.EVERYTHING, Recompute.NONE), "recompute activations"),
    Step(
        "zero-3-recompute", "And with full recomputation?", _sharded(Shards.EVERYTHING, Recompute.FULL),
        "split the layers themselves",
    ),
    Step("tensor", "With tensor parallelism in each machine and ZeRO 1?", _tensor, "add pipeline stages or offload"),
    Step("pipeline", "And with one pipeline stage a machine?", _pipeline, "offload"),
    Step("offload", "With ZeRO 3 and the optimizer on the CPU?", _offloaded, "put the weights on the CPU as well"),
    Step("offload-all", "And the weights on the CPU as well?", _all_offloaded, "use more cards, or larger ones"),
)


def decisions(job: Job) -> tuple[Decision, ...]:
    """The path for a job's model, data and cards; what its plan says of sharing and saving is not looked at.

    It ends at the first step that fits on the cards there are, and else with how many machines it would take.
    """
    path = list(_asked(job, ONE_CARD if job.cluster.count > 1 else ONLY_ONE))
    if path and path[-1].yes:
        return tuple(path)
    path.append(_size(job))
    if job.cluster.count > 1:
        path += _asked(job, SEVERAL)
    if not path[-1].yes or path[-1].name == "size":
        path += _more_machines(job)
    return tuple(path)


def _asked(job: Job, steps: tuple[Step, ...]) -> Iterator[Decision]:
    """The steps up to the first that fits."""
    capacity = job.cluster.gpu.visible_bytes
    for step in steps:
        built = step.build(job)
        if built is None:
            continue
        try:
            needed = needed_bytes(built)
        except VramcastError:
            continue  # no such plan for this model: nothing to decide
        decision = _decision(step, job, built, needed, capacity)
        yield decision
        if decision.yes:
            return


def _decision(step: Step, job: Job, built: Job, needed: int, capacity: int) -> Decision:
    fits, host = needed <= capacity, _host_bytes(built)
    finding = f"{'yes:' if fits else 'no: at least'} {format_bytes(needed)} of {format_bytes(capacity)}"
    if host is not None:
        finding += f", and {format_bytes(host)} of main memory in each machine"
    take = TAKE if job.cluster.count == built.cluster.count else COPY
    return Decision(
        name=step.name, question=step.question, finding=finding, action=take if fits else step.otherwise, yes=fits,
        device_bytes=needed, capacity_bytes=capacity, host_bytes=host, options=options_between(_bare(job), built),
    )


def _bare(job: Job) -> Job:
    """The question without what sharing it has, so that options say all of what is shared."""
    return with_plan(job, shards=Shards.NOTHING)


def _host_bytes(job: Job) -> int | None:
    """Main memory of one machine that an offloaded plan takes [bytes]."""
    if job.plan.offload_optimizer == "none":
        return None
    weights = 0 if job.plan.offload_parameters == "none" else WEIGHT_BYTES
    return ceil_div(count_parameters(job.model).total * (OFFLOADED_BYTES + weights), job.cluster.num_nodes)


def _size(job: Job) -> Decision:
    """Whether the states alone are more than a card: above 5B parameters for 80 GB."""
    number, capacity = count_parameters(job.model).total, job.cluster.gpu.visible_bytes
    states = number * STATE_BYTES
    limit, above = capacity / STATE_BYTES / 1e9, states > capacity
    return Decision(
        name="size",
        question=f"Is it above the {limit:.1f}B parameters whose states fill a card ({STATE_BYTES} bytes each)?",
        finding=f"{'yes' if above else 'no'}: {number / 1e9:.2f}B parameters, {format_bytes(states)} of states",
        action=SHARD if above else NOT_STATES,
        yes=above, device_bytes=states, capacity_bytes=capacity,
    )


def _more_machines(job: Job) -> Iterator[Decision]:
    """The smallest power of two of machines on which ZeRO 3 with recomputation fits."""
    build, machines = _sharded(Shards.EVERYTHING, Recompute.FULL), job.cluster.num_nodes
    while 2 * machines <= MOST_MACHINES:
        machines *= 2
        larger = build(replace(job, cluster=replace(job.cluster, num_nodes=machines)))
        try:
            needed = needed_bytes(larger)
        except VramcastError:
            return
        if needed <= job.cluster.gpu.visible_bytes:
            capacity = job.cluster.gpu.visible_bytes
            yield Decision(
                name="more", question="How many of these machines would do, with ZeRO 3 and full recomputation?",
                finding=f"{machines}: {format_bytes(needed)} of {format_bytes(capacity)}",
                action=USE_MORE, yes=True, device_bytes=needed, capacity_bytes=capacity,
                options=options_between(_bare(job), larger),
            )
            return


__all__ = ["decisions"]
