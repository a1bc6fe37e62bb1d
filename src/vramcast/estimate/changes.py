"""Single changes to a plan that does not fit, each computed: what would make it fit, and at what cost.

An engine refuses many changes with one sentence. One that fails for any other reason shows a bug of that engine, which
is no reason to take the answer away from somebody who asked for another plan: it is left out. Where bugs are looked
for (tests, VRAMCAST_DEBUG) it is raised.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial, reduce
from typing import Final, Protocol, TypeVar

from msgspec import Struct
from msgspec.structs import replace

from vramcast import estimate
from vramcast.domain.answer import Change, StepTime
from vramcast.domain.job import Job
from vramcast.domain.verdict import Fit
from vramcast.engines.training import engine_of
from vramcast.errors import Note, VramcastError, joined
from vramcast.estimate.host_memory import has_room, host_need, shortfall, takes
from vramcast.estimate.techniques import TECHNIQUES, Technique, on_engine, options_between, rebatched, with_plan
from vramcast.units import ceil_div


class Need(Struct, frozen=True):
    """What the rank that needs most needs, as the answer to its job says it [bytes]."""

    needed_bytes: int  # device bytes in its highest phase, allocator included: what must fit
    high_bytes: int  # upper end of the 90 % interval


class Measure(Protocol):
    """What a job needs, whether it fits or not; None where that is not less than `below` [bytes]."""

    def __call__(self, job: Job, *, below: int | None = None) -> Need | None: ...


def single_changes(
    job: Job, needed_bytes: int, *, measure: Measure, time: StepTime | None = None
) -> tuple[Change, ...]:
    """Every applicable change that lowers the peak, those that make it fit first; where main memory is what there is
    too little of, those that need less of it.

    Args:
        job: the plan that does not fit
        needed_bytes: what it needs [bytes]
        measure: of what a job needs
        time: of its step; None: not known, and changes are not compared in it
    """
    before = None if time is None else time.tokens_per_s
    tried = _tried(job, measure, needed_bytes, before) if has_room(job) else _relieved(job, measure)
    return best_first(tried)


def best_first(changes: Iterable[Change]) -> tuple[Change, ...]:
    """Changes that are sure to fit, those that may, the others; each in the order in which they were."""
    ranks = {Fit.FITS: 0, Fit.CLOSELY: 0, Fit.MAY_RUN_OUT: 1, Fit.NOT: 2}
    return tuple(sorted(changes, key=lambda change: ranks[change.verdict]))


def combined_change(
    job: Job, needed_bytes: int, *, measure: Measure, time: StepTime | None = None
) -> Change | None:
    """The least changes together that make a plan fit, the interval of what it needs included where that can be.

    They are added in the order of what a user gives up, least first, until the plan fits; then those are taken back,
    the costliest first, without which it fits as well.

    Args: as of `single_changes`

    Returns: None where all of them are not enough, or main memory is what there is too little of
    """
    if not has_room(job):
        return None
    capacity = job.cluster.gpu.visible_bytes
    steps, changed, need = _added_up(job, measure, needed_bytes)
    if need is None or need.needed_bytes > capacity:
        return None
    is_safe = need.high_bytes <= capacity
    for place in reversed(range(len(steps) - 1)):  # the last was needed
        fewer = steps[:place] + steps[place + 1 :]
        tried = reduce(_with, fewer, job)
        less = attempted(partial(measure, tried))
        if less is not None and (less.high_bytes if is_safe else less.needed_bytes) <= capacity:
            steps, changed, need = fewer, tried, less
    before, after = time and time.tokens_per_s, _tokens_per_s(changed)
    slowdown = before / after - 1 if before and after and before != after else None
    cost, name = (joined(joint, dict.fromkeys(texts)) for joint, texts in (
        ("; ", [step.cost for step in steps]), (" + ", [step.name for step in steps])))
    return _change(job, changed, need, cost, name, slowdown)


def _added_up(job: Job, measure: Measure, needed_bytes: int) -> tuple[list[Technique], Job, Need | None]:
    """Techniques one over the other, as often as each lowers the need, until it fits; what that makes and needs."""
    steps: list[Technique] = []
    need: Need | None = None
    for technique in filter(lambda technique: technique.offered, TECHNIQUES):
        while _key(changed := _with(job, technique)) != _key(job):
            found = attempted(partial(measure, changed, below=needed_bytes))
            if found is None:
                break
            steps, job, need, needed_bytes = [*steps, technique], changed, found, found.needed_bytes
            if need.high_bytes <= job.cluster.gpu.visible_bytes:
                return steps, job, need
    return steps, job, need


def _with(job: Job, technique: Technique) -> Job:
    """The job with a technique; as it is where that does not apply."""
    changed = attempted(partial(technique.apply, job))
    return (changed and rebatched(changed)) or job


def _relieved(job: Job, measure: Measure) -> Iterator[Change]:
    """Without offload, and on as many machines as hold together what is offloaded."""
    need = host_need(job)
    assert need is not None  # there is too little room for it
    kept = with_plan(job, offload_optimizer="none", offload_parameters="none")
    times = max((ceil_div(needed, there) for _, needed, there, _ in need.places if there), default=1)
    more = replace(job, cluster=replace(job.cluster, num_nodes=job.cluster.num_nodes * times))
    fewer, larger = ("no offload", "states stay on the cards"), ("more machines", Note("{} times the GPUs", times))
    for relieved, (name, cost) in ((kept, fewer), (more, larger)):
        changed = rebatched(relieved)
        found = None if changed is None else attempted(partial(measure, changed))
        if changed is not None and found is not None:
            yield _change(job, changed, found, cost, name)


def _tried(job: Job, measure: Measure, needed_bytes: int, before: float | None) -> Iterator[Change]:
    seen = {_key(job)}
    for technique in TECHNIQUES:
        for engine in _engines(job, technique) if technique.offered else ():
            changed = technique.apply(on_engine(job, engine))
            changed = changed and rebatched(changed)
            if changed is None or _key(changed) in seen:
                continue
            seen.add(_key(changed))
            found = attempted(partial(_offers, job, changed, technique, partial(measure, below=needed_bytes), before))
            if found is not None:
                yield from found
                break


def _offers(
    job: Job, changed: Job, technique: Technique, measure: Callable[[Job], Need | None], before: float | None
) -> tuple[Change, ...]:
    """What a technique comes to: memory on the card and beside it, and the time of a token. None that needs no less.

    Raises: VramcastError where the engine does not have it
    """
    found = measure(changed)
    if found is None:
        return ()
    after = _tokens_per_s(changed)
    slowdown = before / after - 1 if before and after and before != after else None
    cost = f"{technique.cost}: {technique.usually}" if technique.usually and slowdown is None else technique.cost
    return (_change(job, changed, found, cost, technique.name, slowdown),)


def _change(
    job: Job, changed: Job, need: Need, cost: str, name: str, slowdown: float | None = None
) -> Change:
    host = host_need(changed)
    lacks = shortfall(host)
    return Change(
        change=options_between(job, changed),
        device_bytes=need.needed_bytes,
        fits=need.needed_bytes <= job.cluster.gpu.visible_bytes and not lacks,
        cost=lacks or joined("; ", filter(None, (cost, takes(host)))),
        slowdown=None if lacks else slowdown,
        high_bytes=need.high_bytes,
        capacity_bytes=job.cluster.gpu.visible_bytes,
        name=name,
    )


def _tokens_per_s(job: Job) -> float | None:
    clock = estimate.step_time.timed(job).time
    return None if clock is None else clock.tokens_per_s


def _engines(job: Job, technique: Technique) -> tuple[str, ...]:
    """The job's own; trainers that cannot shard by themselves are offered another that can."""
    if technique.against_asked and engine_of(job).leaves_sharding and not job.plan.peft:
        return (job.engine, *technique.engines)
    return (job.engine,)


def _key(job: Job) -> tuple[object, ...]:
    """What techniques change."""
    return job.engine, job.plan, job.workload, job.alloc_conf


OutcomeT = TypeVar("OutcomeT")


class Bugs:
    """What becomes of a bug that a proposal shows."""

    def __init__(self) -> None:
        """Left out."""
        self.are_raised = False


BUGS: Final = Bugs()
"""Of this process."""


def attempted(ask: Callable[[], OutcomeT]) -> OutcomeT | None:
    """What a proposal comes to; None where nothing can be proposed."""
    try:
        return ask()
    except VramcastError:
        return None  # the engine has no such plan
    except Exception:
        if BUGS.are_raised:
            raise
        return None
