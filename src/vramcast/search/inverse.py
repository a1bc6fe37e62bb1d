"""Inverse questions about training: how large a batch, a sequence, a model, and which machines are enough.

Every plan looked at is answered by the engine's own model; nothing is interpolated. What is monotone (more data and
more parameters never need less) is bisected, everything else tried one by one. A plan whose live tensors alone exceed
the card, or tell that its interval does, is none, and played through the allocator only where its size is shown or
compared: `measured`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from math import lcm, log
from typing import Final, NamedTuple

from msgspec.structs import replace

from vramcast.blocks.parameters.model import count_parameters
from vramcast.domain.answer import Answer, Tried
from vramcast.domain.device import Cluster
from vramcast.domain.job import Job, Shards
from vramcast.domain.model import Model
from vramcast.domain.planning import Goal, Limits, Space, too_close
from vramcast.domain.verdict import claimed_bytes, usable_bytes
from vramcast.errors import InvalidSpec, Note, VramcastError, joined
from vramcast.estimate.changes import Need
from vramcast.estimate.host_memory import has_room, host_need, shortfall
from vramcast.estimate.step_time import timed
from vramcast.estimate.techniques import on_engine, options_between, with_plan, with_workload
from vramcast.estimate.training import answer, live_bytes, live_of, may_run_out, need_of, rank_programs
from vramcast.search import goals
from vramcast.search.goals import RUNGS, Rung, first_enough, largest, largest_look, nearest_of, scaled_model
from vramcast.units import format_bytes

MOST_BATCH: Final = 1 << 20
MOST_TOKENS: Final = 1 << 24
"""Samples and positions beyond which nobody looks."""

TOKEN_STEP: Final = 128
"""Sequences are looked at in steps of this, or of what the degrees that split them divide [tokens]."""

SMALLEST_MODEL: Final = 10**8
GROWTH: Final = 1.01
"""Models of the family are looked at in steps of 1 %."""
MOST_STEPS: Final = 1157
"""10^13 parameters."""

SHORT: Final = {"micro_batch": 1, "grad_accum": 1, "seq_len": 128}
"""A workload so small that only states count."""

SEARCHED: Final = ("torchtitan", "megatron")
"""Engines with more ways to divide a model than the sets of techniques try."""

MARGIN: Final = 1.25
"""By how much states of a parameter may differ between architectures: padding, layers gathered whole."""

WORTH_IT: Final = 0.05
"""Gain in tokens per second below which doubling the batch stops helping."""


class Question(NamedTuple):
    """What an inverse question starts from."""

    job: Job  # the plan on the first of the clusters; the goal replaces what it looks for
    clusters: tuple[Cluster, ...]
    headroom: float | None = None  # share of a card that stays free; None: the 90 % interval fits
    allowed: frozenset[str] = frozenset()  # techniques that are not tried by themselves
    engines: tuple[str, ...] = ()  # empty: any
    models: Callable[[], Iterable[Model]] = tuple  # of the catalogue


class Look(NamedTuple):
    """One plan looked at."""

    job: Job
    value: int | str
    tried: Tried  # without `needed_bytes` where that is only known to be too much
    live_bytes: int = 0  # never more than needed; 0: no such plan
    claimed_bytes: int = 0  # what is held against a card; 0: not known
    leaves: bool = False  # whether it fits and leaves free what it is to

    @property
    def is_possible(self) -> bool:
        """Whether such a plan can be at all."""
        return bool(self.live_bytes)

    @property
    def misses(self) -> float:
        """How often over what there is would be needed, or more often."""
        return (self.claimed_bytes or self.live_bytes) / max(1, self.tried.capacity_bytes or 0)


Result = goals.Result[Look]


def find(goal: str, asked: Question) -> Answer:
    """The answer of the plan that a goal asks for, with what else was looked at.

    Raises: UnknownName for another goal, InvalidSpec where no plan is possible at all
    """
    return choose(goal, asked)[1]


def choose(goal: str, asked: Question) -> tuple[Job, Answer]:
    """The plan that a goal asks for, else the one that misses by least, and its answer with what else was looked at.

    Raises: as `find`
    """
    look, found, warnings = goals.choose(
        goal, GOALS, asked, measured, alternatives=lambda looks: any(look.tried.parameters for look in looks)
    )
    chosen = answer(look.job)
    return look.job, replace(chosen, found=found, warnings=(*warnings, *chosen.warnings))


def measured(look: Look) -> Look:
    """The plan with what it needs, allocator included."""
    if look.tried.needed_bytes is not None or not look.live_bytes:
        return look
    capacity = look.tried.capacity_bytes or 0
    need = need_of(look.job, rank_programs(look.job))
    tried = replace(
        look.tried, needed_bytes=need.needed_bytes, high_bytes=need.high_bytes,
        reason=_reason(look.job, need, capacity, None), fits=need.needed_bytes <= capacity and has_room(look.job),
    )
    return look._replace(
        tried=tried, claimed_bytes=need.needed_bytes if look.live_bytes > capacity else need.high_bytes
    )


def _look(job: Job, what: str, value: int | str, headroom: float | None) -> Look:
    """Whether a plan fits, by how much, and how fast it is."""
    capacity = usable_bytes(job.cluster.gpu.visible_bytes, headroom)
    try:
        programs = rank_programs(job)
        live = live_of(job, programs)
        if live > capacity or (headroom is None and may_run_out(job, programs)):
            return Look(job, value, Tried(what=what, fits=False, capacity_bytes=capacity), live)
        need = need_of(job, programs)
    except VramcastError as error:
        return Look(job, value, Tried(what=what, fits=False, reason=str(error)))
    claimed = claimed_bytes(needed_bytes=need.needed_bytes, high_bytes=need.high_bytes, headroom=headroom)
    fits = need.needed_bytes <= capacity and has_room(job)
    leaves = fits and claimed <= capacity
    clock = timed(job).time if leaves else None
    tried = Tried(
        what=what, fits=fits, reason="" if leaves else _reason(job, need, capacity, headroom),
        needed_bytes=need.needed_bytes, high_bytes=need.high_bytes, capacity_bytes=capacity,
        tokens_per_s=clock.tokens_per_s if clock else None,
    )
    return Look(job, value, tried, live, claimed, leaves)


def _reason(job: Job, need: Need, capacity: int, headroom: float | None) -> str:
    """Why a plan does not fit, or leaves too little free."""
    if need.needed_bytes > capacity:
        return Note("{} needed, {} usable", format_bytes(need.needed_bytes), format_bytes(capacity))
    lacks = shortfall(host_need(job))
    return lacks or too_close(need.needed_bytes, need.high_bytes, capacity, headroom)


def _with_batch(asked: Question, samples: int) -> Look:
    job = with_workload(asked.job, micro_batch=samples)
    return _look(job, f"--micro-batch {samples}", samples, asked.headroom)


def _largest_batch(asked: Question) -> Result:
    return largest_look(lambda samples: _with_batch(asked, samples), MOST_BATCH)


def _longest_sequence(asked: Question) -> Result:
    plan, positions = asked.job.plan, asked.job.model.main.positions
    step = lcm(TOKEN_STEP, 2 * plan.cp, plan.tp)
    most = max(1, (positions or MOST_TOKENS) // step)

    def look(number: int) -> Look:
        shortest = asked.job.workload.min_seq_len or 0
        lengths = {"seq_len": step * number} | ({"min_seq_len": None} if shortest > step * number else {})
        job = with_workload(asked.job, **lengths)
        return _look(job, f"--seq-len {step * number}", step * number, asked.headroom)

    return largest_look(look, most, asked.job.workload.seq_len // step)


def _knee(asked: Question) -> Result:
    """Batches by doubling, up to the first whose doubling gains less than 5 %, or does not fit."""
    looks = [_with_batch(asked, 1)]
    if looks[0].leaves and looks[0].tried.tokens_per_s is None:
        raise InvalidSpec("no step time is known: {}", joined("; ", timed(asked.job).assumptions, most=300))
    best = looks[0] if looks[0].leaves else None
    while looks[-1].leaves and len(looks) <= MOST_BATCH.bit_length():
        looks.append(_with_batch(asked, 1 << len(looks)))
        before, after = looks[-2].tried, looks[-1].tried
        if not looks[-1].leaves or (after.tokens_per_s or 0) < (1 + WORTH_IT) * (before.tokens_per_s or 0):
            break
        best = looks[-1]
    return goals.Result(looks, best)


def _rungs(asked: Question, job: Job) -> Iterator[tuple[Rung, Job]]:
    """Sets of techniques that apply to a job, those that must be allowed by name too."""
    for rung in RUNGS:
        built = rung.build(job)
        if built is not None and (not asked.engines or built.engine in asked.engines):
            yield rung, built


def _may(asked: Question, rung: Rung) -> bool:
    return not rung.allow or rung.allow in asked.allowed


def _largest_model(asked: Question) -> Result:
    """For every set of techniques the largest model; the answer is the largest of the catalogue with those allowed."""
    catalogue = sorted(asked.models(), key=lambda model: -count_parameters(model).total)
    looks = {rung: _largest_with(asked, rung, catalogue) for rung, _ in _rungs(asked, asked.job)}
    possible = [look for rung, look in looks.items() if look.leaves and _may(asked, rung)]
    return goals.Result(list(looks.values()), max(possible, key=_size, default=None))


def _size(look: Look) -> tuple[int, float]:
    """The larger model is the answer; of plans for the same one the faster."""
    return count_parameters(look.job.model).total, look.tried.tokens_per_s or 0.0


def _largest_with(asked: Question, rung: Rung, catalogue: list[Model]) -> Look:
    """The largest of the family and of the catalogue with one set of techniques."""

    def job_of(model: Model) -> Job:
        job = rung.build(replace(asked.job, model=model))
        assert job is not None  # it applied to the question's own model on the same cards
        return job

    def look(model: Model) -> Look:
        return _look(job_of(model), "", model.name, asked.headroom)

    def may_fit(model: Model, **workload: int) -> bool:
        return _may_fit(with_workload(job_of(model), **workload), asked.headroom)

    most = largest(lambda steps: may_fit(_of_size(steps)), MOST_STEPS, _guess(asked.job))
    steps = largest(lambda steps: look(_of_size(steps)).leaves, most, most) if most else 0
    parameters = count_parameters(_of_size(steps)).total if steps else None
    # states take the same bytes a parameter whatever the architecture: what they alone fill, no model exceeds by much
    alone = largest(lambda steps: may_fit(_of_size(steps), **SHORT), MOST_STEPS, max(1, most))
    bound = MARGIN * count_parameters(_of_size(alone)).total
    candidates = (model for model in catalogue if count_parameters(model).total <= bound)
    found = next((looked for looked in map(look, candidates) if looked.leaves), None)
    looked = found or measured(look(_of_size(max(1, steps))))
    bare = with_plan(replace(asked.job, model=looked.job.model), shards=Shards.NOTHING)
    tried = replace(
        looked.tried, what=f"{rung.name}: {options_between(bare, looked.job) or '-'}", parameters=parameters,
        model=f"{found.job.model.name} ({count_parameters(found.job.model).total / 1e9:.1f}B)" if found else None,
        reason=looked.tried.reason or ", ".join(_remarks(asked, rung, looked.job)),
    )
    return looked._replace(tried=tried, live_bytes=0)


def _remarks(asked: Question, rung: Rung, job: Job) -> Iterator[str]:
    """What a set of techniques needs besides the cards."""
    if not _may(asked, rung):
        yield Note("needs --allow {}", rung.allow)
    need = host_need(job)
    if need is not None:
        low, high = (format_bytes(size or need.memory_bytes) for size in (need.memory_bytes, need.memory_high_bytes))
        yield Note("at least {}, at most {} of main memory in each machine", low, high)


def _may_fit(job: Job, headroom: float | None) -> bool:
    """Whether live tensors leave room: what does not pass cannot fit."""
    try:
        return live_bytes(job) <= usable_bytes(job.cluster.gpu.visible_bytes, headroom) and has_room(job)
    except VramcastError:
        return False


def _of_size(steps: int) -> Model:
    return scaled_model(int(SMALLEST_MODEL * GROWTH**steps))


def _guess(job: Job) -> int:
    """Steps of the family at which 16 bytes a parameter fill all cards together."""
    total = job.cluster.count * job.cluster.gpu.visible_bytes / 16
    return max(1, int(log(max(1.1, total / SMALLEST_MODEL), GROWTH)))


def _enough(order: Callable[[Cluster], tuple[float, ...]]) -> Callable[[Question], Result]:
    """The first machines, in an order, on which some allowed set of techniques fits."""

    def search(asked: Question) -> Result:
        clusters = sorted(asked.clusters, key=lambda cluster: (*order(cluster), cluster.name))
        return first_enough(clusters, lambda cluster: _on_cluster(asked, cluster))

    return search


def _on_cluster(asked: Question, cluster: Cluster) -> Look:
    """The first set of techniques that fits on some machines, else the one that misses by least."""
    here = replace(asked.job, cluster=cluster)
    looks: list[Look] = []
    for rung, job in _rungs(asked, here):
        if _may(asked, rung):
            what = options_between(with_plan(here, shards=Shards.NOTHING), job)
            looks.append(_look(job, f"--gpus {cluster.name} {what}".rstrip(), cluster.name, asked.headroom))
            if looks[-1].leaves:
                return looks[-1]
    if any(_may_fit(with_workload(look.job, **SHORT), asked.headroom) for look in looks):
        found = _searched(asked, here)
        if found is not None:
            what = options_between(with_plan(here, shards=Shards.NOTHING), found)
            return _look(found, f"--gpus {cluster.name} {what}".rstrip(), cluster.name, asked.headroom)
    if not looks:
        reason = Note("no plan of {} is known here", ", ".join(asked.engines))
        return Look(here, cluster.name, Tried(what=f"--gpus {cluster.name}", fits=False, reason=reason))
    return nearest_of(looks, measured) or looks[0]


def _searched(asked: Question, job: Job) -> Job | None:
    """The fastest plan that fits of all that engines with more than data parallelism have; None, too, without NumPy."""
    engines = [engine for engine in SEARCHED if not asked.engines or engine in asked.engines]
    if not engines or job.cluster.count == 1 or job.plan.peft is not None:
        return None
    try:
        from vramcast.search.training.search import best_job
    except ImportError:
        return None
    space = Space(
        model=job.model, workload=job.workload, clusters=(job.cluster,), engines=tuple(engines), plan=job.plan,
        global_batch=job.cluster.count * job.workload.micro_batch * job.workload.grad_accum,
        micro_batches=(job.workload.micro_batch,), optimizers=(job.plan.optimizer,),
        precisions=tuple(dict.fromkeys(on_engine(job, engine).plan.precision for engine in engines)),
    )
    return best_job(space, Limits(headroom=asked.headroom), Goal.FASTEST)


def _by_price(asked: Question) -> Result:
    """The cheapest an hour; machines without a price cannot be compared, and currencies are not converted."""
    priced = tuple(cluster for cluster in asked.clusters if cluster.price is not None)
    currencies = sorted({cluster.price.currency for cluster in priced if cluster.price})
    if len(currencies) != 1:
        known = Note("prices in {} are not compared; choose one with --currency", joined(" and ", currencies))
        raise InvalidSpec(known if currencies else "none of the machines has a price; give --price, for example 2.5usd")
    by_hour = _enough(lambda cluster: (cluster.price.per_hour * cluster.num_nodes if cluster.price else 0.0,))
    return by_hour(asked._replace(clusters=priced))


GOALS: Final[dict[str, Callable[[Question], Result]]] = {
    "largest-batch": _largest_batch,
    "longest-sequence": _longest_sequence,
    "knee": _knee,
    "largest-model": _largest_model,
    "smallest-box": _enough(lambda cluster: (cluster.count * cluster.gpu.visible_bytes, cluster.num_nodes)),
    "cheapest-box": _by_price,
    "fewest-gpus": _enough(lambda cluster: (cluster.count, cluster.num_nodes, cluster.gpu.visible_bytes)),
}
"""What can be asked for -> how it is searched."""
