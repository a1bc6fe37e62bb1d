"""Single changes to a plan that does not fit, each computed: what would make it fit, and at what cost."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

from msgspec.structs import replace

from vramcast.domain.answer import Change
from vramcast.domain.job import AttentionKernel, Job, Loss, Peft, Plan, Precision, Recompute, Shards
from vramcast.errors import VramcastError


class Candidate(NamedTuple):
    """One thing to try: its words, what it costs, and the plan or job it leads to (None: does not apply)."""

    words: Callable[[Job], str]
    cost: str
    apply: Callable[[Job], Job | None]


def _plan(job: Job, **changes: object) -> Job:
    return replace(job, plan=replace(job.plan, **changes))


def _smaller_micro_batch(job: Job) -> Job | None:
    batch, accumulation = job.workload.micro_batch, job.workload.grad_accum
    if batch == 1:
        return None
    half = batch // 2
    return replace(
        job, workload=replace(job.workload, micro_batch=half, grad_accum=accumulation * batch // half)
    )


def _full_recompute(job: Job) -> Job | None:
    return None if job.plan.recompute is Recompute.FULL else _plan(job, recompute=Recompute.FULL, recompute_layers=None)


def _next_shards(job: Job) -> Job | None:
    order = list(Shards)
    index = order.index(job.plan.shards)
    if job.data_parallel == 1 or index + 1 == len(order):
        return None
    return _plan(job, shards=order[index + 1])


def _all_shards(job: Job) -> Job | None:
    if job.data_parallel == 1 or job.plan.shards in (Shards.EVERYTHING, Shards.OPTIMIZER_AND_GRADIENTS):
        return None
    return _plan(job, shards=Shards.EVERYTHING)


def _other_engine(engine: str) -> Callable[[Job], Job | None]:
    """Engines that copy everything on every rank cannot shard: another one can."""

    def apply(job: Job) -> Job | None:
        if job.engine not in ("pytorch", "huggingface") or job.data_parallel == 1 or job.plan.peft:
            return None
        precision = Precision.MIXED_BF16 if engine == "deepspeed" else job.plan.precision
        return replace(_plan(job, shards=Shards.EVERYTHING, precision=precision), engine=engine, engine_options={})

    return apply


def _double(name: str) -> Callable[[Job], Job | None]:
    def apply(job: Job) -> Job | None:
        degree = getattr(job.plan, name) * 2
        if job.data_parallel % 2 or degree > job.cluster.count:
            return None
        return _plan(job, **{name: degree})

    return apply


def _if_eager_attention(job: Job) -> Job | None:
    return _plan(job, attention=AttentionKernel.FLASH) if job.plan.attention is AttentionKernel.EAGER else None


def _fused_loss(job: Job) -> Job | None:
    return None if job.plan.loss is Loss.FUSED_LINEAR else _plan(job, loss=Loss.FUSED_LINEAR)


def _optimizer_offload(job: Job) -> Job | None:
    return _plan(job, offload_optimizer="cpu") if job.plan.offload_optimizer == "none" else None


def _eight_bit(job: Job) -> Job | None:
    return _plan(job, optimizer="adamw-8bit") if job.plan.optimizer in ("adam", "adamw") else None


def _lora(job: Job) -> Job | None:
    return None if job.plan.peft else _plan(job, peft=Peft(rank=16))


def _half_sequence(job: Job) -> Job | None:
    if job.workload.seq_len < 2048:
        return None
    return replace(job, workload=replace(job.workload, seq_len=job.workload.seq_len // 2))


def _degree(name: str) -> Callable[[Job], str]:
    return lambda job: f"--{name} {getattr(job.plan, name)}"


CANDIDATES: Final[tuple[Candidate, ...]] = (
    Candidate(lambda job: "--attention flash", "none", _if_eager_attention),
    Candidate(lambda job: f"--shards {job.plan.shards}", "more communication per step", _next_shards),
    Candidate(lambda job: f"--shards {job.plan.shards}", "gathers the weights in forward and backward", _all_shards),
    Candidate(
        lambda job: f"--engine {job.engine} --shards everything",
        "gathers the weights in forward and backward",
        _other_engine("torchtitan"),
    ),
    Candidate(
        lambda job: f"--engine {job.engine} --shards everything",
        "gathers the weights in forward and backward",
        _other_engine("deepspeed"),
    ),
    Candidate(lambda job: "--loss fused_linear", "about none", _fused_loss),
    Candidate(
        lambda job: f"--micro-batch {job.workload.micro_batch} --grad-accum {job.workload.grad_accum}",
        "smaller matrix products",
        _smaller_micro_batch,
    ),
    Candidate(lambda job: "--recompute full", "one more forward: about a third more time", _full_recompute),
    Candidate(_degree("tp"), "communication in every layer", _double("tp")),
    Candidate(_degree("pp"), "pipeline bubbles", _double("pp")),
    Candidate(_degree("cp"), "exchanges keys and values", _double("cp")),
    Candidate(lambda job: "--optimizer adamw-8bit", "8-bit states", _eight_bit),
    Candidate(lambda job: "--offload-optimizer cpu", "the step runs at PCIe and CPU speed", _optimizer_offload),
    Candidate(lambda job: "--peft lora --lora-rank 16", "trains adapters instead of the weights", _lora),
    Candidate(lambda job: f"--seq-len {job.workload.seq_len}", "shorter context", _half_sequence),
)
"""In order of what a user gives up, least first."""

Measure = Callable[[Job], int]


def single_changes(job: Job, *, measure: Measure) -> tuple[Change, ...]:
    """Every applicable change that lowers the peak, those that make it fit first.

    Args:
        job: the plan that does not fit
        measure: device peak of a job, or a lower bound of it where it does not fit [bytes]
    """
    needed_bytes = measure(job)
    found = [change for change in _tried(job, measure) if change.device_bytes < needed_bytes]
    return tuple(sorted(found, key=lambda change: not change.fits))


def _tried(job: Job, measure: Measure) -> Iterator[Change]:
    seen: set[Plan | str] = set()
    for candidate in CANDIDATES:
        changed = candidate.apply(job)
        if changed is None or candidate.words(changed) in seen:
            continue
        seen.add(candidate.words(changed))
        try:
            needed = measure(changed)
        except VramcastError:
            continue  # the engine does not support it: nothing to propose
        yield Change(
            change=candidate.words(changed),
            device_bytes=needed,
            fits=needed <= job.cluster.gpu.visible_bytes,
            cost=candidate.cost,
        )
