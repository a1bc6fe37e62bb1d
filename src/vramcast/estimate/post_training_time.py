"""How long a step of post-training takes: generation by the engine, passes and updates by the roofline of training.

Generation ends with its longest sequence: all sequences advance together as long as the mean, the last one alone for
what the longest has beyond it.
"""

from __future__ import annotations

from typing import Final

from msgspec.structs import replace

from vramcast.domain.answer import StepTime
from vramcast.domain.job import Job, Recompute
from vramcast.domain.post_training import WITH_CRITIC, PostTrainingJob
from vramcast.engines.verl import trainer
from vramcast.engines.verl.rollout import serve_job
from vramcast.estimate.speed import timed as timed_serving
from vramcast.estimate.step_time import timed as timed_step
from vramcast.estimate.training_styles import HIDDEN as HIDDEN
from vramcast.units import ceil_div

HOST_BYTES_PER_S: Final = 25e9
"""Between pinned memory and a card over PCIe 4 or 5, one direction, as runs of verl have it: 20 to 50 GB/s."""

NOT_TIMED: Final = "the handover of weights, rewards and advantages are not timed"


def step_time(job: PostTrainingJob) -> tuple[StepTime | None, tuple[str, ...]]:
    """Seconds of a step by its stages, and what is assumed; None and a sentence where the rates are not known."""
    generated, reason = _generation_s(job)
    updated, why = _update_s(job)
    if generated is None or updated is None:
        return None, (reason or why,)
    passes = 1 + job.updates.reference
    forward = updated / (job.updates.epochs * (4 if job.plan.recompute is Recompute.FULL else 3))
    moved = _moved_s(job)
    seconds = {"generate": generated, "old_log_prob": forward, "update_actor": updated}
    if passes > 1:
        seconds["ref_log_prob"] = forward
    if job.algorithm in WITH_CRITIC:
        seconds |= {"values": forward, "update_critic": updated}
    if moved:
        seconds["offload"] = moved
    whole, episodes = sum(seconds.values()), job.episodes
    tokens = episodes.prompts * episodes.samples * episodes.usual
    rate = tokens / whole
    flops = 6 * _active(job) * tokens / (job.cluster.count * whole)
    return StepTime(
        step_s=whole, tokens_per_s=rate, tokens_per_s_per_gpu=rate / job.cluster.count,
        model_flops_per_s_per_gpu=flops, seconds=seconds, bound=max(seconds, key=lambda name: seconds[name]),
    ), (NOT_TIMED,)


def _active(job: PostTrainingJob) -> float:
    from vramcast.timing.training.operators import active_elements

    return sum(run.count * active_elements(run.layer, hidden=job.model.hidden) for run in job.model.main.runs)


def _update_s(job: PostTrainingJob) -> tuple[float | None, str]:
    """All optimizer steps of a step."""
    found = trainer.batches(job, learns=True)
    made: Job = trainer.train_job(job, found)
    length = job.episodes.longest if job.updates.padded else job.episodes.usual
    samples = max(1, found.tokens * job.updates.ulysses // length)
    workload = replace(made.workload, seq_len=ceil_div(length, job.updates.ulysses), micro_batch=samples)
    clock = timed_step(replace(made, workload=workload))
    if clock.time is None:
        return None, clock.assumptions[0] if clock.assumptions else "no step time"
    return clock.time.step_s * found.steps, ""


def _generation_s(job: PostTrainingJob) -> tuple[float | None, str]:
    """Until the longest answer is complete."""
    asked, episodes = serve_job(job), job.episodes
    many, one = (timed_serving(replace(asked, requests=replace(asked.requests, concurrency=count))).speed
                 for count in (asked.requests.concurrency, 1))
    if many is None or one is None or many.step_s is None or one.step_s is None:
        return None, "no step time: the engine's rates are not known"
    replicas = job.cluster.count // asked.plan.tp
    sequences = episodes.prompts * episodes.samples / replicas
    mean = episodes.mean_response_len or episodes.response_len
    rounds = max(1.0, sequences / asked.requests.concurrency)
    prompts = episodes.prompts / replicas * (episodes.mean_prompt_len or episodes.prompt_len)
    return (
        prompts / many.prefill_tokens_per_s + rounds * mean * many.step_s
        + (episodes.response_len - mean) * one.step_s
    ), ""


def _moved_s(job: PostTrainingJob) -> float:
    """What is offloaded comes to the card and goes back once a stage."""
    plan = job.plan
    learning = trainer.actor(job, trainer.batches(job, learns=True))
    size = 0.0
    if plan.offload_parameters != "none":
        stages = 3 + (job.updates.reference and plan.peft is not None)
        size += 2 * stages * sum(tensor.num_bytes * count for tensor, count in learning.shards)
    if plan.offload_optimizer != "none":
        size += 2 * sum(tensor.num_bytes * count for tensor, count in learning.states)
    return size / HOST_BYTES_PER_S
