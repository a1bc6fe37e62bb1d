"""Every plan of an engine whose programs are not joined from atoms: whole programs, read as lines over micro-batches.

The categorical choices and degrees are tried one by one, which for engines without deep pipelines are hundreds. What
the engine refuses is no plan. Without a pipeline the number of micro-batches of a step repeats a body that leaves
nothing behind, so programs of one choice differ in the micro-batch alone. What a build looks at of its machines is
written down: on others that are the same in that, the programs are the same, and are not built again.

The plans of one engine, from whichever way its programs are read.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from itertools import product
from operator import attrgetter
from typing import Any, Final, NamedTuple

import numpy as np
from msgspec.structs import replace

from vramcast.domain.device import Cluster, Gpu
from vramcast.domain.job import Job, Plan, Precision, Shards
from vramcast.domain.planning import Space
from vramcast.domain.program import Extents, Program, extent
from vramcast.engines import torchtitan
from vramcast.errors import Unsupported, VramcastError
from vramcast.estimate.checks import check
from vramcast.estimate.host_memory import has_room
from vramcast.estimate.ranks import outside_tensors
from vramcast.estimate.techniques import recipes
from vramcast.estimate.training import rank_programs
from vramcast.search.training.atoms import PROBES
from vramcast.search.training.degrees import divisors, possible
from vramcast.search.training.megatron import Block, Memories, blocks
from vramcast.search.training.pool import Plans, Questions, num_splits
from vramcast.search.training.states import Counts, NotAffine, affine, with_arrays
from vramcast.search.training.times import steps_s

LARGEST_MICRO_BATCH: Final = 64
"""Samples of a micro-batch beyond which a search looks only when told to."""

CHUNKS: Final = (1, 2, 4)
"""Virtual stages that are looked at unless told otherwise [count]."""

FEW: Final = 1000
"""Plans of pipelines that are read unless the engine was asked for: a few seconds [count]."""

PIPELINED: Final[dict[str, Callable[[Job], None]]] = {"torchtitan": torchtitan.check}
"""Engine with pipelines whose programs are read whole -> what refuses a job without building any."""


class Looked(NamedTuple):
    """What programs came to, and what was looked at of the machines on the way there."""

    facts: dict[str, object]
    live_bytes: Counts | VramcastError

    def holds_of(self, cluster: Cluster) -> bool:
        """Whether that is the same on other machines."""
        return all(attrgetter(name)(cluster) == value for name, value in self.facts.items())


Known = dict[tuple[object, ...], list[Looked]]
"""Plans with their micro-batches -> what is known of them, of one space."""


class Tracked:
    """A noun that writes down what is looked at."""

    def __init__(self, noun: Cluster | Gpu, facts: dict[str, object], path: str = "") -> None:
        self._noun, self._facts, self._path = noun, facts, path

    def __getattr__(self, name: str) -> object:
        value = getattr(self._noun, name)
        if isinstance(value, Gpu):
            return Tracked(value, self._facts, f"{name}.")
        self._facts[self._path + name] = value
        return value

    def _whole(self) -> Cluster | Gpu:
        self._facts |= {self._path + name: getattr(self._noun, name) for name in self._noun.__struct_fields__}
        return self._noun

    def __hash__(self) -> int:
        return hash(self._whole())

    def __eq__(self, other: object) -> bool:
        return self._whole() == (other._whole() if isinstance(other, Tracked) else other)


class Choice(NamedTuple):
    """Plans of one engine that differ in the micro-batch only."""

    jobs: tuple[Job, ...]
    live_bytes: Counts  # fullest rank, highest point of the run


def choices(space: Space, cluster: Cluster, engine: str, known: Known | None = None) -> Iterator[Choice]:
    """Every plan of a space on one cluster under one engine.

    Args:
        space, cluster, engine: what is searched
        known: what was read for other clusters, to which is added

    Raises: Unsupported with the engine's commonest reason where it refuses every one
    """
    refused: Counter[str] = Counter()
    some, undivided = False, 0
    known = {} if known is None else known
    for plan in _plans(space, cluster, recipes(space.precisions, engine, cluster.gpu)):
        base = _job(space, cluster, engine, plan)
        roomy = has_room(base)
        jobs = tuple(_jobs(space, base)) if roomy else ()
        if roomy and not jobs and base.data_parallel == cluster.count:
            undivided = cluster.count
        if jobs:
            try:
                choice = Choice(jobs, _live_bytes(engine, jobs, known))
            except VramcastError as reason:
                refused[str(reason)] += 1  # the engine has no such plan
                continue
            some = True
            yield choice
    if undivided and not some:  # before what is refused of plans that nobody asked for
        raise Unsupported(
            "global-batch={} does not divide over {} data-parallel ranks; use a multiple of {}",
            space.global_batch, undivided, undivided
        )
    if refused and not some:
        raise Unsupported(refused.most_common(1)[0][0])


def num_pipelines(space: Space, cluster: Cluster, engine: str) -> int:
    """How many plans with a pipeline an engine of PIPELINED has."""
    found = 0
    for plan in _plans(space, cluster, recipes(space.precisions, engine, cluster.gpu)):
        job = _job(space, cluster, engine, plan)
        if plan.pp > 1 and _is_possible(job):
            found += sum(1 for _ in _jobs(space, job))
    return found


def _is_possible(job: Job) -> bool:
    try:
        check(job)
        PIPELINED[job.engine](job)
    except VramcastError:
        return False
    return True


def _job(space: Space, cluster: Cluster, engine: str, plan: Plan) -> Job:
    return Job(
        model=space.model, workload=space.workload, cluster=cluster, engine=engine,
        engine_version=space.versions.get(engine),
        engine_options=space.engine_options, plan=plan,
    )


def _plans(space: Space, cluster: Cluster, precisions: tuple[Precision, ...]) -> Iterator[Plan]:
    degrees = {axis: possible(space, cluster, axis) for axis in ("tp", "pp", "cp", "ep")}
    for tp, pp, cp, ep in product(*degrees.values()):
        if cluster.count % (tp * pp * cp):
            continue
        for chunks in space.virtual_stages or CHUNKS:
            if chunks > 1 and (pp == 1 or pp * chunks > space.model.num_layers):
                continue
            plan = replace(
                space.plan, tp=tp, pp=pp, cp=cp, ep=ep, virtual_stages=chunks,
                schedule="interleaved" if chunks > 1 else "1f1b",
            )
            yield from _kept_states(space, plan, precisions, ranks=cluster.count // (tp * pp))


def _kept_states(
    space: Space, plan: Plan, precisions: tuple[Precision, ...], *, ranks: int
) -> Iterator[Plan]:
    """Shardings, recomputation, offload, precision and optimizer."""
    shards = space.shards if ranks > 1 else (Shards.NOTHING,)
    axes = shards, space.recompute, space.offload_optimizer, space.offload_parameters, precisions, space.optimizers,
    names = ("shards", "recompute", "offload_optimizer", "offload_parameters", "precision", "optimizer")
    for values in product(*axes):
        yield replace(plan, **dict(zip(names, values, strict=True)))


def _jobs(space: Space, base: Job) -> Iterator[Job]:
    """The micro-batches that divide the batch."""
    dp = base.data_parallel
    for micro_batch in space.micro_batches or divisors(min(space.global_batch, LARGEST_MICRO_BATCH)):
        if space.global_batch % (dp * micro_batch) == 0:
            accumulation = space.global_batch // (dp * micro_batch)
            workload = replace(base.workload, micro_batch=micro_batch, grad_accum=accumulation)
            yield replace(base, workload=workload)


def _live_bytes(engine: str, jobs: tuple[Job, ...], known: Known) -> Counts:
    """Highest live memory of each job's fullest rank, with what lies beside the allocator [bytes]."""
    cluster = jobs[0].cluster
    looked = known.setdefault((engine, jobs[0].plan, tuple(job.workload for job in jobs)), [])
    found = next((each for each in looked if each.holds_of(cluster)), None)
    if found is None:
        facts: dict[str, object] = {}
        tracked: Any = Tracked(cluster, facts)
        try:
            found = Looked(facts, live_bytes(tuple(replace(job, cluster=tracked) for job in jobs)))
        except VramcastError as reason:
            found = Looked(facts, reason)
        looked.append(found)
    if isinstance(found.live_bytes, VramcastError):
        raise found.live_bytes
    return found.live_bytes + sum(tensor.num_bytes for tensor in outside_tensors(jobs[0]))


def live_bytes(jobs: tuple[Job, ...]) -> Counts:
    """Highest live memory of each job's fullest rank, with what programs say lies beside the allocator [bytes]."""
    lined = [index for index, job in enumerate(jobs) if job.workload.grad_accum > 1 and job.plan.pp == 1]
    if len(lined) <= PROBES:
        lined = []
    found, known = np.empty(len(jobs), np.int64), Extents()
    for index in set(range(len(jobs))).difference(lined):
        found[index] = _built(jobs[index], known)
    if lined:
        found[lined] = _on_lines([jobs[index] for index in lined], known)
    return found


def _built(job: Job, known: Extents) -> int:
    return max(extent(program, known).peak + beside for program, beside in _runs(job))


def _runs(job: Job) -> Iterator[tuple[Program, int]]:
    """The whole run of every rank role, and what it says lies beside the allocator [bytes]."""
    for program in rank_programs(job, every_role=False):
        run = tuple(node for nodes in program.phases.values() for node in nodes)
        yield run, sum(tensor.num_bytes for tensor in program.outside)


def _on_lines(jobs: list[Job], known: Extents) -> Counts:
    """From the builds of the smallest and the largest micro-batch, where that of another one confirms them."""
    batches = np.array([job.workload.micro_batch for job in jobs], np.int64)
    few = [replace(job, workload=replace(job.workload, grad_accum=2)) for job in (jobs[0], jobs[-1])]
    middle = len(jobs) // 2
    peaks = []
    try:
        for (small, beside), (large, _) in zip(_runs(few[0]), _runs(few[1]), strict=True):
            line = affine(small, large, (int(batches[0]), int(batches[-1])))
            peaks.append(line.extents(batches).peak + beside)
    except (NotAffine, ValueError):  # another structure, or other roles
        return np.array([_built(job, known) for job in jobs], np.int64)
    found: Counts = np.maximum.reduce(peaks)
    if int(found[middle]) != _built(jobs[middle], known):
        return np.array([_built(job, known) for job in jobs], np.int64)
    return found


_NOTHING = np.empty(0)


def plans_on(
    space: Space, clusters: Sequence[Cluster], engine: str, memories: Memories | None = None, known: Known | None = None
) -> Iterator[Plans]:
    """Every plan, in batches of one cluster.

    Args:
        space: what may be varied
        clusters: equal machines, in each another number of them
        engine: the framework
        memories: what other kinds of cards of the same space have read; None: there are none
        known: the same of engines whose programs are read whole

    Raises: Unsupported where the engine cannot run the model on any of the clusters
    """
    gathers = bool(space.engine_options.get("fsdp"))  # over layers, which programs of one layer do not hold
    if engine == "megatron" and len(space.model.stacks) == 1 and not gathers:
        for block in blocks(space, clusters, memories):
            for cluster in block.clusters:
                yield _of_block(block, cluster)
    else:
        yield from _read(space, clusters, engine, {} if known is None else known)


def _read(space: Space, clusters: Sequence[Cluster], engine: str, known: Known) -> Iterator[Plans]:
    """Whole programs, cluster by cluster; what is refused on some is possible on others."""
    refused: Unsupported | None = None
    possible = False
    for cluster in clusters:
        try:
            for choice in choices(space, cluster, engine, known):
                possible = True
                yield _of_choice(choice)
        except Unsupported as reason:
            refused = refused or reason
    if refused is not None and not possible:
        raise refused


def _of_block(block: Block, cluster: Cluster) -> Plans:
    shape, order = block.possible.shape, block.order
    own = block.possible & (block.grid.nodes == cluster.num_nodes)[:, None]
    places = np.flatnonzero(np.broadcast_to(own, (len(order), *shape)))
    ways = tuple(np.array(order).T)
    live, seconds = (figures[ways].ravel()[places] for figures in (block.live_bytes, block.step_s))
    bare = block._replace(live_bytes=_NOTHING, step_s=_NOTHING)  # a kept plan must not keep all the others
    degrees, splits = block.grid, (block.stages.pp.bit_length() + block.stages.chunks.bit_length())
    num_splits = sum(np.frexp(axis)[1] for axis in (degrees.tp, degrees.cp, degrees.ep)) + splits  # bits of each
    plan_at, workload_at = cache(bare.plan_at), cache(bare.workload_at)  # many differ in the other alone

    def job_at(place: int) -> Job:
        rest, batch = divmod(int(places[place]), shape[1])
        way, index = divmod(rest, shape[0])
        plan = plan_at(*order[way], index)
        return replace(bare.job, plan=plan, workload=workload_at(index, batch), cluster=cluster)

    def jobs_at(some: Counts) -> Job:
        rest, batch = np.divmod(places[some], shape[1])
        way, index = np.divmod(rest, shape[0])
        return bare.jobs_at(ways[0][way], ways[1][way], index, batch, cluster)

    questions = Questions(job_at, jobs_at)
    return Plans(cluster, live, seconds, questions, num_splits[places // shape[1] % shape[0]])


def _of_choice(choice: Choice) -> Plans:
    seconds = steps_s(choice.jobs)
    alike = np.full(len(seconds), num_splits(choice.jobs[0].plan))

    def jobs_at(places: Counts) -> Job:
        batches = np.array([job.workload.micro_batch for job in choice.jobs])
        return with_arrays(choice.jobs[0], workload=with_arrays(choice.jobs[0].workload, micro_batch=batches[places]))

    questions = Questions(choice.jobs.__getitem__, jobs_at)
    return Plans(choice.jobs[0].cluster, choice.live_bytes, seconds, questions, alike)


__all__ = ["plans_on"]
