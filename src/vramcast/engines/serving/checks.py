"""Rules that the plans of every serving engine obey: what a degree must divide."""

from __future__ import annotations

from vramcast.domain.model import MLP, Attention, Head, MoE, MultiLatentAttention
from vramcast.domain.serving import PipelineJob, ServeJob, ServePlan
from vramcast.engines.serving.hardware import refuse_card, refuse_pipeline_card
from vramcast.engines.serving.requests import refuse_pipeline_requests, refuse_requests
from vramcast.engines.serving.table import SERVING
from vramcast.errors import InvalidSpec, UnknownName, Unsupported
from vramcast.states.cache import KV_BITS

LARGEST_SUGGESTED = 64

def refuse_foreign_cache(job: ServeJob) -> None:
    """Raise InvalidSpec for a cache dtype that the job's engine does not have."""
    known = SERVING[job.engine].kv_dtypes
    if known and job.plan.kv_dtype not in known:
        if job.plan.kv_dtype not in KV_BITS:
            raise UnknownName.of("cache dtype", job.plan.kv_dtype, known)
        raise InvalidSpec(f"kv-dtype={job.plan.kv_dtype} is none of {job.engine}'s; use {', '.join(known)}")


def refuse_ignored(job: ServeJob) -> None:
    """Raise Unsupported for a choice that the job's engine would not look at."""
    refuse_foreign_cache(job)
    if job.plan.draft is not None and job.model.head is not Head.LM:
        raise InvalidSpec(f"draft: {job.model.name} generates no tokens that a draft could propose; leave it out")
    _refuse_unread(job)
    refuse_requests(job)
    refuse_card(job)


def refuse_ignored_of_pipeline(job: PipelineJob) -> None:
    """The same of a diffusion pipeline."""
    _refuse_unread(job)
    if job.engine == "stable-diffusion.cpp" and job.requests.concurrency > 1:
        raise Unsupported(
            f"stable-diffusion.cpp generates one image after the other, not {job.requests.concurrency} at once; leave "
            "concurrency out"
        )
    refuse_pipeline_requests(job)
    refuse_pipeline_card(job)


def _refuse_unread(job: ServeJob | PipelineJob) -> None:
    reads, default = SERVING[job.engine].reads, ServePlan()
    for name in ServePlan.__struct_fields__:
        value = getattr(job.plan, name)
        if name not in reads and value != getattr(default, name):
            shown = value if isinstance(value, (int, float, str)) else "given"
            raise Unsupported(f"{name.replace('_', '-')}={shown} says nothing to {job.engine}; leave it out")


def check_degrees(job: ServeJob) -> None:
    """Raise InvalidSpec when a degree does not divide what it splits, naming those that would."""
    model, plan = job.model, job.plan
    for run in model.main.runs:
        mixer, channel = run.layer.mixer, run.layer.channel
        if isinstance(mixer, (Attention, MultiLatentAttention)):
            _divides("tp", plan.tp, mixer.num_heads, f"num_heads={mixer.num_heads} of {model.name}")
        if isinstance(mixer, Attention) and max(plan.tp, mixer.num_kv_heads) % min(plan.tp, mixer.num_kv_heads):
            _divides("tp", plan.tp, mixer.num_kv_heads, f"num_kv_heads={mixer.num_kv_heads} of {model.name}")
        if isinstance(channel, MLP):
            _divides("tp", plan.tp, channel.width, f"ffn={channel.width} of {model.name}")
        if isinstance(channel, MoE) and plan.expert_parallel:
            ranks = plan.tp * plan.dp
            _divides("tp x dp", ranks, channel.num_experts, f"num_experts={channel.num_experts} of {model.name}")
    if plan.expert_parallel and not any(isinstance(run.layer.channel, MoE) for run in model.main.runs):
        raise InvalidSpec(f"expert-parallel: {model.name} has no experts to divide; leave it out")
    if plan.pp > model.num_layers:
        raise InvalidSpec(f"pp={plan.pp} is more than the {model.num_layers} layers of {model.name}; use fewer stages")
    _divides("dcp", plan.dcp, plan.tp, f"tp={plan.tp}")


def divides(job: ServeJob) -> bool:
    """Whether the plan's degrees divide everything they split."""
    try:
        check_degrees(job)
    except InvalidSpec:
        return False
    return True


def _divides(name: str, degree: int, size: int, what: str) -> None:
    if size % degree:
        good = [str(n) for n in range(1, LARGEST_SUGGESTED + 1) if size % n == 0]
        listed = f"{', '.join(good[:-1])} or {good[-1]}" if len(good) > 1 else good[0]
        raise InvalidSpec(f"{name}={degree} does not divide {what}; use {listed}")
