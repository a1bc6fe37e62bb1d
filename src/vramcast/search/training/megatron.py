"""Every plan of a Megatron run: its highest live memory, exactly, thousands of plans at a time.

How many machines there are is one more axis: layers and schedules do not see it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby, product
from math import prod
from typing import Any, Final, NamedTuple

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from vramcast.domain.device import Cluster
from vramcast.domain.job import Job, Plan, Recompute, Shards, Workload
from vramcast.domain.model import MoE, MultiLatentAttention
from vramcast.domain.planning import Space
from vramcast.engines.megatron.options import Context
from vramcast.engines.megatron.run import state_rules
from vramcast.errors import Unsupported, VramcastError
from vramcast.estimate.checks import check
from vramcast.estimate.host_memory import has_room
from vramcast.estimate.ranks import communicator_bytes, context_tensor
from vramcast.estimate.techniques import recipes
from vramcast.estimate.training_styles import recipe_of
from vramcast.search.training.atoms import Atoms
from vramcast.search.training.degrees import Grid, Stages, divisors, grid, pipelines
from vramcast.search.training.stages import (
    Recomputation,
    Recomputations,
    Role,
    chunk_passes,
    enough,
    lasting_of_role,
    moments,
    roles,
    step_peak,
    weights_of_role,
)
from vramcast.search.training.states import Counts, Ranks, held_states, with_arrays
from vramcast.search.training.times import Seconds, Times
from vramcast.states.megatron import StateRules

LARGEST_MICRO_BATCH: Final = 16
"""Samples of a micro-batch beyond which a search looks only when told to."""

CACHED: Final = 1 << 14
"""Elements of an array that is quick to work on [count]."""

MOST_KNOWN: Final = 1 << 22
"""Plans of one kind of memory that are kept for other cards, 32 MiB [count]."""

SELECTIVE: Final[dict[str, tuple[tuple[str, ...], ...]]] = {
    "dense": (("core_attn",), ("layernorm",), ("mlp",), ("layernorm", "mlp")),
    "moe": (("core_attn",), ("layernorm",), ("moe_act",), ("layernorm", "moe_act"), ("moe",)),
    "mla": (("mla_up_proj",), ("layernorm", "moe_act", "mla_up_proj")),
}
"""Modules that selective recomputation drops, by what the model has [Megatron-LM --recompute-modules]."""

Mask = NDArray[np.bool_]


class Variant(NamedTuple):
    """How states are kept."""

    shards: Shards
    optimizer: str
    offload_optimizer: str


class Block(NamedTuple):
    """Plans that differ in numbers only. Axes of the arrays: variants, recomputations, degrees, micro-batches."""

    job: Job  # what all of them share
    clusters: tuple[Cluster, ...]
    grid: Grid
    micro_batches: tuple[int, ...]
    variants: tuple[Variant, ...]
    stages: Stages
    recomputations: Recomputations
    grad_accum: Counts  # degrees x micro-batches
    live_bytes: Counts  # fullest rank, highest point of the run
    step_s: Seconds
    possible: Mask  # degrees x micro-batches

    @property
    def order(self) -> tuple[tuple[int, int], ...]:
        """Variants and recomputations as plans are listed, of those that are alike the first one first: by what is
        computed again, then by variant, then by how many layers are."""
        ways, several = range(len(self.recomputations)), len(self.recomputations)
        kinds = groupby(ways, lambda way: several if self.recomputations[way].layers else way)
        variants = range(len(self.variants))
        return tuple((variant, way) for _, alike in kinds for variant, way in product(variants, list(alike)))

    def job_at(self, variant: int, recomputation: int, degrees: int, batch: int) -> Job:
        """The question of one plan."""
        nodes = int(self.grid.nodes[degrees])
        cluster = next(cluster for cluster in self.clusters if cluster.num_nodes == nodes)
        plan = self.plan_at(variant, recomputation, degrees)
        return replace(self.job, plan=plan, workload=self.workload_at(degrees, batch), cluster=cluster)

    def plan_at(self, variant: int, recomputation: int, degrees: int) -> Plan:
        """Its plan."""
        tp, cp, ep, etp = self.grid.at(degrees)
        states, stages, again = self.variants[variant], self.stages, self.recomputations[recomputation]
        sparse = any(isinstance(run.layer.channel, MoE) for run in self.job.model.main.runs)
        return replace(
            self.job.plan, tp=tp, cp=cp, ep=ep, etp=etp if sparse else None, pp=stages.pp,
            virtual_stages=stages.chunks, schedule="interleaved" if stages.chunks > 1 else "1f1b",
            first_stage_layers=stages.first, last_stage_layers=stages.last, shards=states.shards,
            optimizer=states.optimizer, offload_optimizer=states.offload_optimizer, recompute=again.kind,
            recompute_modules=again.modules, recompute_layers=again.layers or None,
        )

    def jobs_at(
        self, variants: Counts, recomputations: Counts, degrees: Counts, batches: Counts, cluster: Cluster
    ) -> Job:
        """The questions of several plans as one, as far as plans are compared."""
        kept: Any = np.array(self.variants, np.object_)[variants]
        kinds: Any = np.array([each.kind for each in self.recomputations], np.object_)
        tp, cp, ep, *_ = (axis[degrees] for axis in self.grid)
        plan = with_arrays(
            self.job.plan, tp=tp, cp=cp, ep=ep, pp=self.stages.pp, virtual_stages=self.stages.chunks,
            shards=kept[:, 0], optimizer=kept[:, 1], offload_optimizer=kept[:, 2], recompute=kinds[recomputations],
        )
        workload = with_arrays(self.job.workload, micro_batch=np.array(self.micro_batches)[batches])
        return with_arrays(self.job, plan=plan, workload=workload, cluster=cluster)

    def workload_at(self, degrees: int, batch: int) -> Workload:
        """Its data."""
        accumulation = int(self.grad_accum[degrees, batch])
        return replace(self.job.workload, micro_batch=self.micro_batches[batch], grad_accum=accumulation)


def blocks(space: Space, clusters: Sequence[Cluster], memories: Memories | None = None) -> Iterator[Block]:
    """Every plan of a space under Megatron-Core.

    Args:
        space: what may be varied
        clusters: equal machines, in each another number of them
        memories: what other kinds of cards of the same search have read; None: there are none

    Raises: Unsupported for models that Megatron does not pipeline
    """
    if len(space.model.stacks) > 1:
        raise Unsupported("{}: plans of several stacks are not searched for megatron", space.model.name)
    for precision in recipes(space.precisions, "megatron", clusters[0].gpu):
        together: dict[tuple[Variant, ...], list[Job]] = {}
        for cluster in clusters:
            job = Job(
                model=space.model, workload=space.workload, cluster=cluster, engine="megatron",
                engine_version=space.versions.get("megatron"),
                engine_options=space.engine_options, plan=replace(space.plan, precision=precision),
            )
            together.setdefault(tuple(_variants(space, job)), []).append(job)
        for variants, jobs in together.items():
            degrees = grid(space, [job.cluster for job in jobs])
            if variants and len(degrees):
                memory = Memory(space, jobs[0], degrees, variants)
                if memories is not None:
                    memory = memories.setdefault(_seen_by_memory(jobs[0], degrees, variants), memory)
                yield from _Search(memory, jobs, variants).blocks(once=memories is None)


def _seen_by_memory(job: Job, degrees: Grid, variants: tuple[Variant, ...]) -> tuple[object, ...]:
    """What live bytes of one space depend on."""
    context = Context(_with(job, variants[0]))
    of_gpu = context.attention_kernel, context.te_workspace_bytes, context.cublas_workspace_bytes
    rows = b"".join(axis.tobytes() for axis in degrees)
    return of_gpu, job.cluster.gpus_per_node, job.plan.precision, rows, variants


def micro_batches_of(space: Space) -> tuple[int, ...]:
    """Samples of a micro-batch that are looked at."""
    largest = min(space.global_batch, LARGEST_MICRO_BATCH)
    return space.micro_batches or tuple(n for n in divisors(space.global_batch) if n <= largest)


def _variants(space: Space, job: Job) -> Iterator[Variant]:
    """The ways to keep states that engine and main memory have room for.

    States are shared only between several cards, and by the engine's FSDP only where it is asked for.
    """
    shards = space.shards if job.cluster.count > 1 else (Shards.NOTHING,)
    for found in product(shards, space.optimizers, space.offload_optimizer):
        variant = Variant(*found)
        if variant.shards is Shards.EVERYTHING and not job.engine_options.get("fsdp"):
            continue
        if not has_room(_with(job, variant)):
            continue
        try:
            check(_with(job, variant))
            Context(_with(job, variant))
        except VramcastError:
            continue
        yield variant


def _with(job: Job, variant: Variant) -> Job:
    return replace(job, plan=replace(job.plan, **variant._asdict(), tp=1, pp=1, cp=1, ep=1, etp=None))


def selective_modules(job: Job) -> tuple[tuple[str, ...], ...]:
    """Sets of modules worth recomputing: those of the plan, or all that its model has."""
    if job.plan.recompute_modules:
        return (job.plan.recompute_modules,)
    layers = [run.layer for run in job.model.main.runs]
    sparse = any(isinstance(layer.channel, MoE) for layer in layers)
    latent = any(isinstance(layer.mixer, MultiLatentAttention) for layer in layers)
    sets = SELECTIVE["moe" if sparse else "dense"] + (SELECTIVE["mla"] if latent else ())
    return tuple(modules for modules in sets if _is_modelled(job, modules))


def _is_modelled(job: Job, modules: tuple[str, ...]) -> bool:
    """Whether the engine has them together."""
    plan = replace(job.plan, recompute=Recompute.SELECTIVE, recompute_modules=modules, tp=1, pp=1, cp=1, ep=1, etp=None)
    try:
        Context(replace(job, plan=plan))
    except VramcastError:
        return False
    return True


def sharing(job: Job, degrees: Grid, dp: Counts) -> tuple[StateRules, Ranks]:
    """How a job keeps its states, and the ranks that divide them for every combination of degrees."""
    context = Context(job)
    expert_dp = np.maximum(1, dp * degrees.cp * degrees.tp // (degrees.ep * degrees.etp))
    if not context.distributed_optimizer:
        return state_rules(context), Ranks(np.ones_like(dp), np.ones_like(dp))
    instances = context.options.optimizer_instances
    dense, expert = (np.maximum(1, ranks // instances) for ranks in (dp * degrees.cp, expert_dp))
    return state_rules(context), Ranks(dense, expert)


Memories = dict[tuple[object, ...], "Memory"]
"""What was read for cards that memory cannot tell apart, where several kinds of cards are searched."""


class Memory:
    """Live bytes of every plan, but for what lies beside the allocator: of a card they see its architecture alone."""

    def __init__(self, space: Space, job: Job, degrees: Grid, variants: tuple[Variant, ...]) -> None:
        self.space = space
        self.job = job
        self.grid = degrees
        self.kept = [_with(job, variant) for variant in variants]
        self.atoms = Atoms(job, degrees, micro_batches_of(space))
        self._known: dict[Stages, list[tuple[Recomputations, Counts]]] = {}
        self._num_known = 0

    def remembered(
        self, stages: Stages, stage_roles: list[Role], grad_accum: Counts, possible: Mask
    ) -> Iterable[tuple[Recomputations, Counts]]:
        """As `read`, for every kind of card that asks."""
        if stages in self._known:
            return self._known[stages]
        if self._num_known > MOST_KNOWN:
            return self.read(stages, stage_roles, grad_accum, possible)
        found = self._known[stages] = list(self.read(stages, stage_roles, grad_accum, possible))
        self._num_known += sum(live.size for _, live in found)
        return found

    def read(
        self, stages: Stages, stage_roles: list[Role], grad_accum: Counts, possible: Mask
    ) -> Iterator[tuple[Recomputations, Counts]]:
        """Recomputations, with the live bytes of the fullest rank: variants x recomputations x
        degrees x micro-batches."""
        fixed = [self._fixed(role, stages) for role in stage_roles]
        for recomputations in self._recomputations(stage_roles):
            live: Counts = np.int64(0)
            for role, (load_peak, steady, update) in zip(stage_roles, fixed, strict=True):
                peak = self._step_peak(role, stages, recomputations, grad_accum, possible)
                live = np.maximum(live, np.maximum(load_peak, steady + np.maximum(peak, update)))
            yield recomputations, live

    def data_parallel(self, stages: Stages) -> Counts:
        """Ranks, context parallelism not counted in; 0 where the degrees do not divide the cards."""
        model_parallel = self.grid.tp * self.grid.cp * stages.pp
        cards = self.grid.nodes * self.job.cluster.gpus_per_node
        whole = (cards % model_parallel == 0) & (cards % (self.grid.ep * self.grid.etp * stages.pp) == 0)
        return np.where(whole, cards // model_parallel, 0)

    def _fixed(self, role: Role, stages: Stages) -> tuple[Counts, Counts, Counts]:
        """Peak of the load, what lies below every step, and what the optimizer's step adds to that at its highest:
        variants x 1 x degrees x micro-batches [bytes]."""
        lasting = lasting_of_role(self.atoms, role)
        weights = weights_of_role(self.atoms, role)
        dp = np.maximum(self.data_parallel(stages), 1)
        shared = [sharing(job, self.grid, dp) for job in self.kept]
        found = [held_states(weights, rules, ranks) for rules, ranks in shared]
        load = np.stack([states.load_peak for states in found])[:, None, :, None]
        steady = np.stack([states.steady for states in found])[:, None, :, None] + lasting
        update = np.stack([np.broadcast_to(states.update, dp.shape) for states in found])[:, None, :, None]
        return load, steady, update

    def _recomputations(self, stage_roles: list[Role]) -> Iterator[Recomputations]:
        """As many together as make arrays of a size that stays in the cache."""
        allowed = self.space.recompute
        longest = max(chunk.num_layers for role in stage_roles for chunk in role.chunks)
        sets = selective_modules(self.job) if Recompute.SELECTIVE in allowed else ()
        alone = [Recomputation()] if Recompute.NONE in allowed else []
        alone += [Recomputation(modules=modules) for modules in sets]
        most = longest if Recompute.FULL in allowed else 0
        whole = tuple(Recomputation(layers=layers) for layers in range(1, most + 1))
        several = max(1, CACHED // prod(self.atoms.shape))
        if several > len(alone):
            yield (*alone, *whole[:several])
            whole = whole[several:]
        else:
            yield from ((each,) for each in alone)
        yield from (whole[first : first + several] for first in range(0, len(whole), several))

    def _step_peak(
        self, role: Role, stages: Stages, recomputations: Recomputations, grad_accum: Counts, possible: Mask
    ) -> Counts:
        different = list(dict.fromkeys(role.chunks))
        passes = [chunk_passes(self.atoms, chunk, recomputations) for chunk in different]
        kinds = tuple(map(different.index, role.chunks))
        classes = np.minimum(grad_accum, enough(stages=stages.pp, chunks=stages.chunks))
        found = np.zeros_like(grad_accum)
        for number in np.unique(classes[possible]):
            schedule = moments(
                stage=role.stage, stages=stages.pp, kinds=kinds, micro_batches=int(number)
            )
            found = np.where(classes == number, step_peak(passes, schedule), found)
        return found


class _Search:
    """One precision on some numbers of equal machines."""

    def __init__(self, memory: Memory, jobs: Sequence[Job], variants: tuple[Variant, ...]) -> None:
        self.memory = memory
        self.space = memory.space
        self.job = job = jobs[0]
        self.clusters = tuple(job.cluster for job in jobs)
        self.grid = memory.grid
        self.variants = variants
        self.atoms = Atoms(job, self.grid, micro_batches_of(self.space))
        ways = [(Recompute.NONE, ()), (Recompute.FULL, ())]
        self.times = Times(self.atoms, [*ways, *((Recompute.SELECTIVE, modules) for modules in selective_modules(job))])
        self.recipes = [(each, recipe_of(each)) for each in (_with(job, variant) for variant in variants)]

    def blocks(self, *, once: bool) -> Iterator[Block]:
        """Every plan; `once`: no other kind of card will ask for the same memory."""
        read = self.memory.read if once else self.memory.remembered
        for stages in pipelines(self.space, self.clusters):
            grad_accum, possible = self._accumulation(stages)
            if not possible.any():
                continue
            stage_roles, outside = roles(self.job, stages), self._outside(stages)
            for recomputations, live in read(stages, stage_roles, grad_accum, possible):
                seconds = self._step_s(stages, stage_roles, recomputations, grad_accum)
                whole = live + outside
                yield Block(
                    self.job, self.clusters, self.grid, self.atoms.micro_batches, self.variants, stages, recomputations,
                    grad_accum, whole, np.broadcast_to(seconds, whole.shape), possible,
                )

    def _step_s(
        self, stages: Stages, stage_roles: list[Role], recomputations: Recomputations, grad_accum: Counts
    ) -> Seconds:
        """Seconds of a step: variants x recomputations x degrees x micro-batches."""
        timed = [self.times.stage(role, recomputations) for role in stage_roles]
        dp = self.memory.data_parallel(stages)
        found = [self.times.step_s(stages, timed, job, recipe, grad_accum, dp) for job, recipe in self.recipes]
        return np.stack([seconds.reshape(-1, *self.atoms.shape) for seconds in found])

    def _accumulation(self, stages: Stages) -> tuple[Counts, Mask]:
        """Micro-batches of a step, and where the batch divides evenly."""
        dp = self.memory.data_parallel(stages)[:, None]
        batch = dp * np.array(self.atoms.micro_batches, np.int64)
        safe = np.maximum(batch, 1)
        count = self.space.global_batch // safe
        possible = (batch > 0) & (count > 0) & (self.space.global_batch % safe == 0)
        if stages.chunks > 1:
            possible &= count % stages.pp == 0  # schedules.py: micro-batches come in groups of the pipeline's ranks
        return np.where(possible, count, 1), possible

    def _outside(self, stages: Stages) -> Counts:
        """CUDA context and communicators [bytes]."""
        gpu = self.job.cluster.gpu
        grid = self.grid
        degrees = (self.memory.data_parallel(stages), grid.tp, np.int64(stages.pp), grid.cp, grid.ep)
        count: Counts = sum((degree > 1).astype(np.int64) for degree in degrees)
        return gpu.held_bytes + context_tensor(gpu).num_bytes + count[:, None] * communicator_bytes(gpu)
