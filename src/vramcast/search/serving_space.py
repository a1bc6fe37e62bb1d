"""The replicas that a space of deployments holds: engine, format, cache dtype and split on every machine.

What cannot hold its weights is not worked out. And the plans that each inverse question looks at, in the order in which
they are preferred.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import product
from typing import Final, NamedTuple

from msgspec.structs import replace

from vramcast.blocks.parameters.model import count_parameters
from vramcast.domain.device import Cluster, Gpu
from vramcast.domain.model import Attention, LinearAttention, Mixer, Model, MultiLatentAttention
from vramcast.domain.planning import Goal, Limits, ServeSpace
from vramcast.domain.serving import ServeJob
from vramcast.engines.serving.checks import dtype_on, has_kernel, instead, runs_on
from vramcast.engines.serving.table import SERVING
from vramcast.errors import Note, Unsupported, joined
from vramcast.estimate.serving_changes import with_length
from vramcast.search.serving_nearest import Attempt, Replica
from vramcast.states.ggml import MIXES
from vramcast.states.storage import FORMATS

SPANNED: Final = (2, 3, 4, 6, 8, 12, 16)
"""Machines that one replica is spread over, where one machine does not hold it."""


class Enumeration:
    """What was seen of a space so far."""

    def __init__(self, space: ServeSpace, limits: Limits, goal: Goal, tell: Callable[[int], None]) -> None:
        self.space = space
        self.limits = limits
        self.goal = goal
        self.tell = tell  # how many replicas were looked at
        self.refusals: dict[str, None] = {}
        self.attempts: list[Attempt] = []  # what carries nothing
        self.parameters = count_parameters(space.job.model).total

    def attempt(self, replica: Replica, machine: Cluster, machines: int | None = None) -> Attempt:
        """What carries nothing."""
        return Attempt(replica, machine, self.limits, self.space.most.get(machine.name), machines)

    def jobs(self, machine: Cluster) -> Iterator[ServeJob]:
        """Every replica on some cards of a machine, or on several machines."""
        gpu = machine.gpu
        for (engine, version), weights, kv_dtype in product(
            self.space.engines, self.space.weights, self.space.kv_dtypes
        ):
            base = replace(self.space.job, engine=engine, version=version, cluster=machine)
            if not runs_on(engine, version, gpu):
                self.refusals[Note("{} does not run on {}; {}", engine, gpu.name, instead(base))] = None
                continue
            if weights is not None and weights == base.model.quantisation and None in self.space.weights:
                continue  # as the checkpoint is stored, which is looked at
            loads = weights is None or weights in SERVING[engine].formats or (
                SERVING[engine].is_ggml and weights in MIXES)
            if weights is not None and not (loads and has_kernel(weights, gpu, engine, version)):
                self.refusals[Note("{} has no {} weights on {}", engine, weights, gpu.name)] = None
                continue
            dtype = dtype_on(gpu, base.plan.dtype or base.model.dtype)
            other = dtype != (base.plan.dtype or base.model.dtype) and not SERVING[engine].is_ggml  # which takes none
            changed = dtype if other else base.plan.dtype
            plan = replace(base.plan, weights=weights, kv_dtype=kv_dtype, dtype=changed, dp=1)
            stored = base.weights if weights is None else None
            yield from self._splits(replace(base, plan=plan, weights=stored), machine)

    def _splits(self, job: ServeJob, machine: Cluster) -> Iterator[ServeJob]:
        """Tensor and pipeline degrees over some of a machine's cards; over several machines where one is too small."""
        cards = machine.gpus_per_node
        splitting = SERVING[job.engine].splits
        for tp, pp in product(range(1, cards + 1), range(1, cards + 1)):
            if tp * pp <= cards and cards % (tp * pp) == 0 and (splitting or pp == 1):
                yield from self._split(job, part_of(machine, tp * pp), tp, pp)
        if splitting and self._weights_bytes(job, cards) > machine.gpu.visible_bytes:
            for nodes in SPANNED:
                if nodes <= self.space.most.get(machine.name, nodes):
                    yield from self._split(job, replace(machine, num_nodes=nodes), cards, nodes)

    def _split(self, job: ServeJob, cluster: Cluster, tp: int, pp: int) -> Iterator[ServeJob]:
        given = (self.space.tp, tp), (self.space.pp, pp)
        if any(allowed and degree not in allowed for allowed, degree in given) or not divisible(tp, job.model):
            return
        if pp > job.model.num_layers or self._weights_bytes(job, tp * pp) > cluster.gpu.visible_bytes:
            return
        yield replace(job, cluster=cluster, plan=replace(job.plan, tp=tp, pp=pp))

    def _weights_bytes(self, job: ServeJob, ranks: int) -> float:
        """At least what a rank holds of the weights [bytes]."""
        name = job.plan.weights or job.model.quantisation or job.plan.dtype or job.model.dtype
        bits = FORMATS[name].bits_per_weight if name in FORMATS else 4.0
        return self.parameters * min(bits, 16.0) / 8 / ranks

    def nothing_possible(self) -> str:
        """Why there is nothing to look at."""
        job = self.space.job
        smallest = min(self._weights_bytes(replace(job, plan=replace(job.plan, weights=name)), 1)
                       for name in self.space.weights)
        why = joined("; ", self.refusals, most=300) or Note("its weights take at least {:.0f} GiB", smallest / 2**30)
        return Note("no deployment of {} is possible on these machines: {}", job.model.name, why)


def key_of(job: ServeJob) -> tuple[object, ...]:
    """What replicas share that are worked out once for all machines with the same cards."""
    cluster = job.cluster
    return (
        cluster.gpu, cluster.gpus_per_node, cluster.num_nodes,
        cluster.network if cluster.num_nodes > 1 else None, job.engine, job.version, job.plan,
    )


def rent_of(machine: Cluster, machines: int) -> float:
    """Of so many machines an hour: money, or GPU-hours where no price is known."""
    return machines * (machine.price.per_hour if machine.price else machine.gpus_per_node)


def on_one(machine: Cluster, cluster: Cluster) -> int:
    """Replicas that one machine holds; 1 where a replica takes several."""
    return max(1, machine.gpus_per_node // cluster.gpus_per_node)


def part_of(machine: Cluster, cards: int) -> Cluster:
    """Some cards of one machine, at the machine's price: what is rented is the machine."""
    whole = cards == machine.gpus_per_node
    return replace(machine, gpus_per_node=cards, num_nodes=1, instance=machine.instance if whole else None)


NODE_CARDS: Final = 8
"""Cards of one machine, when more are asked for than one has."""

COUNTS: Final = (1, 2, 3, 4, 5, 6, 7, 8, 16, 24, 32, 48, 64, 96, 128)
"""Numbers of cards that are looked at."""


class Candidate(NamedTuple):
    """One plan to look at."""

    what: str  # the options in which it differs
    value: int | str
    job: ServeJob


def smallest_gpu(job: ServeJob, cards: Iterable[Gpu]) -> Iterator[Candidate]:
    """As many cards as the question has, of every kind that the engine runs on, the smallest first."""
    alone, held = job.cluster.count == 1, job.cluster.gpu.held_bytes
    fitting = [
        replace(gpu, held_bytes=held) for gpu in cards
        if runs_on(job.engine, job.version, gpu) and (alone or not gpu.stands_alone) and held < gpu.visible_bytes
    ]
    for gpu in sorted(fitting, key=lambda gpu: (gpu.visible_bytes, gpu.bandwidth_bytes_per_s or 0, gpu.name)):
        if job.plan.weights is not None and not has_kernel(
            job.plan.weights, gpu, job.engine, job.version
        ):
            continue
        cluster = Cluster(gpu=gpu, gpus_per_node=job.cluster.gpus_per_node, num_nodes=job.cluster.num_nodes)
        moved = replace(job, cluster=cluster)
        what = f"--gpus {cluster.name}"
        dtype = dtype_on(gpu, job.plan.dtype or job.model.dtype)
        if dtype != (job.plan.dtype or job.model.dtype):
            moved, what = replace(moved, plan=replace(job.plan, dtype=dtype)), f"{what} --dtype {dtype}"
        yield Candidate(what, gpu.name, moved)


def fewest_gpus(job: ServeJob) -> Iterator[list[Candidate]]:
    """For every number of cards all splits over them."""
    for count in COUNTS if not job.cluster.gpu.stands_alone else (1,):
        per_node = min(count, NODE_CARDS)
        cluster = Cluster(gpu=job.cluster.gpu, gpus_per_node=per_node, num_nodes=count // per_node)
        yield [
            Candidate(f"--gpus {cluster.name} {split.what}".rstrip(), count, split.job)
            for split in splits(replace(job, cluster=cluster))
        ]


def splits(job: ServeJob) -> Iterator[Candidate]:
    """Tensor and pipeline degrees that use every card, the largest tensor groups within one machine first."""
    count = job.cluster.count
    if not SERVING[job.engine].splits:
        yield Candidate("", count, replace(job, plan=replace(job.plan, tp=count, pp=1, dp=1)))
        return
    degrees = [tp for tp in range(count, 0, -1) if count % tp == 0 and divisible(tp, job.model)]
    for tp in sorted(degrees, key=lambda tp: tp > job.cluster.gpus_per_node):
        plan = replace(job.plan, tp=tp, pp=count // tp, dp=1)
        yield Candidate(f"--tp {tp} --pp {count // tp}", f"tp={tp} pp={count // tp}", replace(job, plan=plan))


def divisible(tp: int, model: Model) -> bool:
    """Whether every layer's heads can be divided by so many ranks."""
    return all(heads % tp == 0 for run in model.main.runs for heads in _heads(run.layer.mixer))


def _heads(mixer: Mixer | None) -> Iterator[int]:
    match mixer:
        case Attention() | MultiLatentAttention():
            yield mixer.num_heads
        case LinearAttention():
            yield from (mixer.num_k_heads, mixer.num_v_heads)


def formats(job: ServeJob) -> Iterator[Candidate]:
    """The checkpoint as it is, then every smaller format that the engine loads and the card has kernels for.

    Raises: Unsupported for an engine whose formats are not known
    """
    if not SERVING[job.engine].formats:
        known = ", ".join(name for name, engine in SERVING.items() if engine.formats)
        raise Unsupported("which formats {} loads is not known; use {}", job.engine, known)
    own = job.model.quantisation or job.model.dtype
    yield Candidate("as stored", own, replace(job, plan=replace(job.plan, weights=None), weights=job.weights))
    bits = FORMATS[own].bits_per_weight if own in FORMATS else 16.0
    for name in SERVING[job.engine].formats:
        if FORMATS[name].bits_per_weight < bits and has_kernel(
            name, job.cluster.gpu, job.engine, job.version
        ):
            changed = replace(job, plan=replace(job.plan, weights=name), weights=None)
            yield Candidate(f"--weights {name}", name, changed)


def with_context(job: ServeJob, tokens: int) -> Candidate:
    """The same load with longer or shorter sequences; a prompt that would not go in is cut."""
    words, changed = with_length(job.requests, tokens)
    return Candidate(words, tokens, replace(job, requests=changed))


def with_users(job: ServeJob, sequences: int) -> Candidate:
    """The same load with more or fewer sequences at once."""
    changed = replace(job.requests, concurrency=sequences)
    return Candidate(f"--concurrency {sequences}", sequences, replace(job, requests=changed))
