"""Single changes to a plan that does not fit, each computed: what would make it fit, and at what cost."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from msgspec.structs import replace

from vramcast.domain.answer import Change, StepTime
from vramcast.domain.job import Job
from vramcast.errors import VramcastError
from vramcast.estimate.host_memory import has_room, host_need, shortfall, takes
from vramcast.estimate.interval import interval
from vramcast.estimate.techniques import TECHNIQUES, WHOLE_MODEL_ENGINES, Technique
from vramcast.estimate.variants import on_engine, options_between, with_plan
from vramcast.units import ceil_div

Measure = Callable[[Job], int]


def single_changes(
    job: Job, needed_bytes: int, *, measure: Measure, time: StepTime | None = None
) -> tuple[Change, ...]:
    """Every applicable change that lowers the peak, those that make it fit first; where main memory is what there is
    too little of, those that need less of it.

    Args:
        job: the plan that does not fit
        needed_bytes: its measure [bytes]
        measure: device peak of a job, or a lower bound of it where it does not fit [bytes]
        time: of its step; None: not known, and changes are not compared in it
    """
    before = None if time is None else time.tokens_per_s
    tried = _tried(job, measure, needed_bytes, before) if has_room(job) else _relieved(job, measure)
    return tuple(sorted(tried, key=lambda change: not change.fits))


def _relieved(job: Job, measure: Measure) -> Iterator[Change]:
    """Without offload, and on as many machines as hold together what is offloaded."""
    need = host_need(job)
    assert need is not None  # there is too little room for it
    kept = with_plan(job, offload_optimizer="none", offload_parameters="none")
    times = max((ceil_div(needed, there) for _, needed, there, _ in need.places if there), default=1)
    more = replace(job, cluster=replace(job.cluster, num_nodes=job.cluster.num_nodes * times))
    for changed, cost in ((kept, "states stay on the cards"), (more, f"{times} times the GPUs")):
        try:
            needed = measure(changed)
        except VramcastError:
            continue  # the engine has no such plan
        change = options_between(job, changed)
        fits = needed <= job.cluster.gpu.visible_bytes
        yield Change(change=change, device_bytes=needed, fits=fits, cost=cost, high_bytes=_high(changed, needed, fits))


def _tried(job: Job, measure: Measure, needed_bytes: int, before: float | None) -> Iterator[Change]:
    seen = {_key(job)}
    for technique in TECHNIQUES:
        for engine in _engines(job, technique) if technique.offered else ():
            changed = technique.apply(on_engine(job, engine))
            if changed is None or _key(changed) in seen:
                continue
            seen.add(_key(changed))
            try:
                needed = measure(changed)
            except VramcastError:
                continue  # the engine does not support it: nothing to propose
            if needed < needed_bytes:
                yield _change(job, changed, technique, needed, before)
            break


def _change(job: Job, changed: Job, technique: Technique, needed: int, before: float | None) -> Change:
    """What a technique comes to: memory on the card and beside it, and the time of a token."""
    host, after = host_need(changed), _tokens_per_s(changed)
    lacks = shortfall(host)
    slowdown = before / after - 1 if before and after and before != after else None
    cost = f"{technique.cost}: {technique.usually}" if technique.usually and slowdown is None else technique.cost
    fits = needed <= job.cluster.gpu.visible_bytes and not lacks
    return Change(
        change=options_between(job, changed),
        device_bytes=needed,
        fits=fits,
        cost=lacks or "; ".join(filter(None, (cost, takes(host)))),
        slowdown=None if lacks else slowdown,
        high_bytes=_high(changed, needed, fits),
    )


def _high(job: Job, needed: int, fits: bool) -> int | None:
    """The upper end of the interval of a plan that fits; of another one only a lower bound is known [bytes]."""
    return interval(job.engine, needed)[1] if fits else None


def _tokens_per_s(job: Job) -> float | None:
    from vramcast.estimate.step_time import timed  # questions of memory alone never need it

    clock = timed(job).time
    return None if clock is None else clock.tokens_per_s


def _engines(job: Job, technique: Technique) -> tuple[str, ...]:
    """The job's own; trainers that cannot shard by themselves are offered another that can."""
    if technique.against_asked and job.engine in WHOLE_MODEL_ENGINES and not job.plan.peft:
        return (job.engine, *technique.engines)
    return (job.engine,)


def _key(job: Job) -> tuple[object, ...]:
    """What techniques change."""
    return job.engine, job.plan, job.workload, job.alloc_conf
