"""Which clusters and plans can be compared, by size and by prices in one currency; and why no plan keeps a deadline or
a budget: the best that there is without it, and what would keep it.

A plan as the options that ask for it, the few of them in which plans of one table differ, and why the winner wins
and what speed costs: the best plan beside the best that differ from it in one respect.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Final, NamedTuple

from msgspec.structs import replace

from vramcast.blocks.parameters.model import count_parameters
from vramcast.domain.device import Cluster
from vramcast.domain.job import Job, Plan, Recompute
from vramcast.domain.planning import Goal, Limits, MissedLimit, Point, Reason, Space
from vramcast.domain.version import named
from vramcast.engines.eager.releases import precision_word
from vramcast.engines.eager.trl import with_unasked
from vramcast.engines.training import engine_of
from vramcast.errors import InvalidSpec, Note, joined

if TYPE_CHECKING:  # it needs NumPy, which the search of servers and pages without it have not
    from vramcast.search.training.pool import Candidate, Candidates, Rule


def comparable(clusters: Sequence[Cluster], limits: Limits, goal: Goal) -> tuple[list[Cluster], list[str]]:
    """The clusters to look at, and what was left out: of prices in several currencies those of most machines stay.

    Raises: InvalidSpec where the limits leave nothing
    """
    warnings: list[str] = []
    kept = [cluster for cluster in clusters if limits.max_gpus is None or cluster.count <= limits.max_gpus]
    if not kept:
        smallest = min(cluster.count for cluster in clusters)
        raise InvalidSpec(
            "max-gpus={} leaves no cluster: the smallest given has {} GPUs; allow {}",
            limits.max_gpus, smallest, smallest
        )
    if limits.budget is None and goal is not Goal.CHEAPEST:
        return kept, warnings
    priced = [cluster for cluster in kept if cluster.price is not None]
    if not priced:
        if limits.budget is not None:
            raise InvalidSpec("a budget needs prices, and no machine has one; give --price, for example --price 2.5usd")
        return kept, ["no price is known: costs are GPU-hours"]
    if len(priced) < len(kept):
        names = ", ".join(cluster.instance or cluster.name for cluster in kept if cluster.price is None)
        warnings.append(Note("left out for want of a price: {}", names))
    currencies = Counter(cluster.price.currency for cluster in priced if cluster.price)
    wanted = limits.currency or currencies.most_common(1)[0][0]
    found = [cluster for cluster in priced if cluster.price and cluster.price.currency == wanted]
    if not found:
        raise InvalidSpec("no machine has a price in {}; there are prices in {}", wanted, ", ".join(sorted(currencies)))
    if len(found) < len(priced):
        others = joined(" and ", sorted(currencies.keys() - {wanted}))
        warnings.append(
            Note(
                "left out: {} machines priced in {}, which is not compared with {}; --currency chooses",
                len(priced) - len(found), others, wanted
            )
        )
    return found, warnings


def cheapest_of_alike(clusters: Sequence[Cluster], *, offload: bool) -> tuple[list[Cluster], list[str]]:
    """One cluster of those that are alike in all that memory and speed depend on: the cheapest, no other can be better.

    Args:
        clusters: to choose from
        offload: whether main memory and disks matter

    Returns: the clusters, in their order, and a sentence about those left out
    """
    best: dict[tuple[Cluster, str], Cluster] = {}
    for cluster in clusters:
        bare = replace(cluster, instance=None, price=None, notes=())
        if not offload:
            bare = replace(bare, host_bytes=None, nvme_bytes=None)
        key = (bare, cluster.price.currency if cluster.price else "")
        if key not in best or _per_hour(cluster) < _per_hour(best[key]):
            best[key] = cluster
    kept = list(best.values())
    left = len(clusters) - len(kept)
    return kept, [Note("left out: {} machines with the same cards and links as a cheaper one", left)] if left else []


def by_machine(clusters: Sequence[Cluster]) -> list[list[Cluster]]:
    """Clusters of equal machines together: each group's differ in the number of them and in what they cost."""
    together: dict[tuple[Cluster, int], list[Cluster]] = {}
    for cluster in clusters:
        machine = replace(cluster, num_nodes=1, instance=None, price=None, notes=())
        # a rack joins machines: what one card reaches grows with their number
        together.setdefault((machine, cluster.node_cards), []).append(cluster)
    return list(together.values())


def _per_hour(cluster: Cluster) -> float:
    return cluster.price.per_hour if cluster.price else float("inf")


def beats(one: Point, other: Point) -> bool:
    """Faster and not dearer, or cheaper and not slower."""
    mine, theirs = ((point.tokens_per_s, -point.cost_per_million_tokens) for point in (one, other))
    return one.unit == other.unit and mine != theirs and mine[0] >= theirs[0] and mine[1] >= theirs[1]


DOUBLINGS: Final = 3
"""Numbers of machines that are searched for one that keeps a deadline, from the first that could on."""


class Run(NamedTuple):
    """The best plan of a search, over the whole run."""

    label: str
    cluster: Cluster
    engine: str
    hours: float
    cost: float  # in the currency of the machines


Find = Callable[[Sequence[Cluster], Limits, Goal, str | None], Run | None]
"""The best plan on some clusters within limits for a goal, of one engine or (None) of all."""


def missed_limits(clusters: Sequence[Cluster], limits: Limits, find: Find) -> Iterator[MissedLimit]:
    """The limits of the run that no plan keeps, though it fits in memory; nothing where memory is what fails.

    Args:
        clusters: what was searched without finding a plan
        limits: what plans had to keep to
        find: a search
    """
    free = replace(limits, deadline_hours=None, budget=None)
    if limits == free:
        return
    fastest = find(clusters, free, Goal.FASTEST, None)
    if fastest is None:
        return
    deadline, budget = limits.deadline_hours, limits.budget
    if deadline is not None and fastest.hours > deadline:
        enough = _with_more_machines(fastest, free, deadline, find)
        yield MissedLimit(
            limit="deadline", allowed=deadline, least=fastest.hours, unit="hours", label=fastest.label,
            enough_label=enough.label if enough else "", enough=enough.hours if enough else None,
            times=enough.cluster.num_nodes // fastest.cluster.num_nodes if enough else None,
        )
        deadline = None  # the budget is looked at by itself
    if budget is None:
        return
    cheapest = find(clusters, replace(free, deadline_hours=deadline), Goal.CHEAPEST, None)
    if cheapest is not None and cheapest.cost > budget:
        price = cheapest.cluster.price
        yield MissedLimit(
            limit="budget", allowed=budget, least=cheapest.cost, unit=price.currency if price else "GPU-hours",
            label=cheapest.label,
        )


def _with_more_machines(fastest: Run, limits: Limits, deadline_hours: float, find: Find) -> Run | None:
    """The fastest run on the smallest multiple of its machines, of those looked at, that keeps the deadline."""
    first = max(2, 1 << (int(fastest.hours / deadline_hours).bit_length() - 1))
    for doubling in range(DOUBLINGS):
        cluster = replace(fastest.cluster, num_nodes=fastest.cluster.num_nodes * (first << doubling))
        if limits.max_gpus is not None and cluster.count > limits.max_gpus:
            return None
        found = find([cluster], limits, Goal.FASTEST, fastest.engine)
        if found is not None and found.hours <= deadline_hours:
            return found
    return None


WRITTEN: Final[tuple[tuple[str, Callable[[Job], object]], ...]] = (
    ("engine", lambda job: named(job.engine, job.engine_version)),
    ("tp", lambda job: job.plan.tp),
    ("pp", lambda job: job.plan.pp),
    ("cp", lambda job: job.plan.cp),
    ("ep", lambda job: job.plan.ep),
    ("etp", lambda job: job.plan.etp if job.plan.ep > 1 or job.plan.tp > 1 else None),
    ("virtual-stages", lambda job: job.plan.virtual_stages),
    ("schedule", lambda job: job.plan.schedule if job.plan.pp > 1 and engine_of(job).kin != "eager" else None),
    ("first-stage-layers", lambda job: job.plan.first_stage_layers),
    ("last-stage-layers", lambda job: job.plan.last_stage_layers),
    ("shards", lambda job: job.plan.shards.value if job.cluster.count > 1 else None),
    ("recompute", lambda job: job.plan.recompute.value),
    ("recompute-layers", lambda job: job.plan.recompute_layers if job.plan.recompute is Recompute.FULL else None),
    ("recompute-modules", lambda job: ",".join(job.plan.recompute_modules) or None),
    ("offload-optimizer", lambda job: job.plan.offload_optimizer),
    ("offload-parameters", lambda job: job.plan.offload_parameters),
    ("precision", precision_word),
    ("optimizer", lambda job: job.plan.optimizer),
    ("micro-batch", lambda job: job.workload.micro_batch),
    ("grad-accum", lambda job: job.workload.grad_accum),
    ("engine-option", lambda job: ",".join(f"{name}={_text(value)}" for name, value in job.engine_options.items())),
)
"""Options in the order in which people read a plan."""

ALWAYS: Final = ("engine", "shards", "precision", "micro-batch", "grad-accum")
"""Written whatever their value: engines and questions have defaults of their own."""

_DEFAULT: Final = Plan()


def _text(value: object) -> str:
    """An engine option as the command line writes it."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def options(job: Job) -> dict[str, str]:
    """The options that make this plan of a question about the same model and cards."""
    usual = with_unasked(replace(job, plan=_DEFAULT), ()).plan
    default = Job(model=job.model, workload=job.workload, plan=usual, cluster=job.cluster)
    found = {}
    for name, value in WRITTEN:
        given = value(job)
        if given is not None and (name in ALWAYS or given != value(default)):
            found[name] = str(given)
    return found


def label(job: Job) -> str:
    """The plan as the command line writes it: '--gpus 8xh100-sxm-80gb --engine megatron --tp 2 ...'."""
    return " ".join((f"--gpus {job.cluster.name}", *(f"--{name} {text}" for name, text in options(job).items())))


def signature(job: Job) -> tuple[object, ...]:
    """What makes a plan another one in a table: all but how much is recomputed, and the micro-batch."""
    plan = job.plan
    return (
        job.cluster.name, job.engine, plan.tp, plan.pp, plan.cp, plan.ep, plan.etp, plan.shards, plan.precision,
        plan.optimizer, plan.offload_optimizer, plan.offload_parameters,
    )


Respect = tuple[str, str, Callable[[Job], object]]
"""Its name, the option that says it, and how a plan has it; or an array of plans."""

RESPECTS: Final[tuple[Respect, ...]] = (
    ("cards", "gpus", lambda job: job.cluster.name),
    ("engine", "engine", lambda job: job.engine),
    ("tensor parallelism", "tp", lambda job: job.plan.tp),
    ("pipeline", "pp", lambda job: job.plan.pp),
    ("context parallelism", "cp", lambda job: job.plan.cp),
    ("expert parallelism", "ep", lambda job: job.plan.ep),
    ("virtual stages", "virtual-stages", lambda job: job.plan.virtual_stages),
    ("sharding", "shards", lambda job: job.plan.shards),
    ("recomputation", "recompute", lambda job: job.plan.recompute),
    ("optimizer offload", "offload-optimizer", lambda job: job.plan.offload_optimizer),
    ("precision", "precision", precision_word),
    ("micro-batch", "micro-batch", lambda job: job.workload.micro_batch),
)

EQUAL: Final = 5e-4
"""Plans closer than this are alike: no reason to name."""

TRIES: Final = 4
"""Plans of one kind that are put through the allocator before the search for a reason gives up."""


def reasons_of(
    best: Candidate, others: Candidates, rule: Rule, fits: Callable[[Candidate], bool],
    value: Callable[[Candidate], float],
) -> Iterator[Reason]:
    """One for every respect in which another choice was possible.

    Args:
        best: the winner, with the value of its goal
        others: candidates in the order of the goal
        rule: the goal
        fits: whether a candidate fits, allocator included
        value: of a candidate that fits, what the goal makes small
    """
    winner = best.job
    for words, option, look in _respects(winner, rule.goal):
        own = look(winner)
        found = next(filter(fits, islice(others.differing(look, own), TRIES)), None)
        if found is None:
            continue
        other = found.job
        times = _times(other, value(found), best, rule.goal)
        if times > 1 + EQUAL:
            theirs = str(look(other))
            yield Reason(kind="respect", respect=words, option=option, other=theirs, own=str(own), times=times)


def _respects(winner: Job, goal: Goal) -> tuple[Respect, ...]:
    """Where GPUs are counted, other ways to divide the work on as many are no worse: only the cards say something."""
    if goal is not Goal.FEWEST_GPUS:
        return RESPECTS
    return RESPECTS[:1] if winner.cluster.count > 1 else ()


def _times(other: Job, value: float, best: Candidate, goal: Goal) -> float:
    """How many times as large another plan's value is; of GPUs, without what breaks ties."""
    if goal is Goal.FEWEST_GPUS:
        return other.cluster.count / best.job.cluster.count
    return value / best.value


def points(found: Iterable[Candidate], rule: Rule) -> tuple[Point, ...]:
    """Cost against speed; a point is on the front where no other is faster and cheaper."""
    points = [_point(candidate, rule) for candidate in found]
    return tuple(replace(point, on_front=not any(beats(other, point) for other in points)) for point in points)


def _point(candidate: Candidate, rule: Rule) -> Point:
    job = candidate.job
    cost = rule.rate(job.cluster) * candidate.step_s / 3600 / rule.tokens * 1e6
    return Point(
        what=label(job), gpus=job.cluster.count, tokens_per_s=rule.tokens / candidate.step_s,
        cost_per_million_tokens=cost, unit=job.cluster.price.currency if job.cluster.price else "GPU-hours",
        on_front=True,
    )


def large_enough(space: Space, clusters: list[Cluster]) -> list[Cluster]:
    """Clusters whose cards together hold the weights at all; where none does, the one with the most memory.

    Every engine keeps each weight in 16 bits or more on some card, unless it is offloaded or a quantised base.
    """
    kept = [cluster for cluster in clusters if holds_weights(space, cluster)]
    return kept or [max(clusters, key=lambda cluster: cluster.count * cluster.gpu.visible_bytes)]


def holds_weights(space: Space, cluster: Cluster) -> bool:
    """Whether the cards together hold the weights in 16 bits, where they must."""
    if space.offload_parameters != ("none",) or (space.plan.peft and space.plan.peft.base != "full"):
        return True
    return cluster.count * cluster.gpu.visible_bytes >= 2 * count_parameters(space.model).total
