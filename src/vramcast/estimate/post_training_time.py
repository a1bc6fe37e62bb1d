"""How long a step of post-training takes, stage by stage as verl prints it.

Generation ends with its longest sequence: all advance together for the mean, the last one alone for what the longest
has beyond it. Passes and updates are those of training, by the roofline; what is offloaded comes and goes with them.
Where kernels are launched one by one the host decides; what it takes is measured: [runs] verl 0.3 and 0.4 in 2025 with
vLLM 0.8 without graphs, nine of LoRA on H100 (1.5B to 72B) and three of PPO on MI300X, gone through stage by stage.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from msgspec.structs import replace

from vramcast.blocks.parameters.model import count_parameters
from vramcast.domain.answer import StepTime
from vramcast.domain.job import Recompute
from vramcast.domain.model import MoE
from vramcast.domain.post_training import WITH_CRITIC, PostTrainingJob
from vramcast.domain.serving import Version
from vramcast.engines.post_training import fsdp, trainer
from vramcast.engines.post_training.batches import batches, replicas, seen_from
from vramcast.engines.post_training.releases import leaves_cards
from vramcast.engines.post_training.rollout import engine, serve_job
from vramcast.engines.post_training.trainer import num_bytes
from vramcast.errors import Note
from vramcast.estimate.speed import timed as timed_serving
from vramcast.estimate.step_time import timed as timed_step
from vramcast.timing.training.operators import active_elements
from vramcast.units import ceil_div

HOST_BYTES_PER_S: Final = 25e9
"""Between pinned memory and a card, one direction [runs: 20 to 50e9]."""

SEQUENCE_S: Final = 0.2e-3
"""What vLLM's first engine takes of the host for every token of a sequence [runs: 0.17 to 0.21 ms]."""

FIRST_ENGINE_UNTIL: Final[Version] = (0, 9)

LAUNCH_S: Final = 0.5e-3
ADAPTED_S: Final = 1.1e-3
"""A layer's launches in a decoding step without graphs, and with adapters [runs: 0.5; 1.0 to 1.2, one 1.8 ms]."""

UNIT_S: Final = 0.5e-3
"""Gathering one adapter of a FSDP1, a unit of its own, in one pass over a layer [runs: 0.4 to 0.7 ms]."""

HOST_STEP_S: Final = 5.9e-3
DECODING: Final = 1.32
"""What a decoding step of vLLM's second engine takes of the host, and its time on the card over that of the roofline,
where lengths differ and no two ranks have the same work [pages]."""


class Pace(NamedTuple):
    """A framework's passes over those of training alone, and its handover of weights."""

    dense: float
    experts: float  # of networks with routed experts
    handover_s: float  # of any network
    handover_s_per_billion: float  # parameters, on the cards that generate
    handover_apart_s_per_billion: float  # to cards of their own


PACES: Final[dict[str, Pace]] = {
    "verl": Pace(1.0, 1.0, 0.7, 0.16, 0.16),
    "verl, megatron": Pace(2.5, 2.5, 0.7, 0.3, 0.3),
    "trl": Pace(1.0, 1.0, 0.7, 0.16, 0.16),
    "unsloth": Pace(1.0, 1.0, 0.7, 0.16, 0.16),
    "ms-swift": Pace(1.0, 1.0, 0.7, 0.16, 0.16),
    "openrlhf": Pace(1.0, 1.0, 0.7, 0.16, 0.16),
    "slime": Pace(1.28, 2.6, 0.0, 0.089, 0.06),
    "nemo-rl": Pace(1.28, 2.6, 0.0, 0.089, 0.06),
}
"""[runs]: handovers of 0.9 to 6.2 s of 1.5B to 32B; of Megatron one run of a 7B on tp 2 and pp 2, four sequences of 290
tokens a micro-batch, whose launches the host does not keep up with. [pages] NeMo-RL's step times of v0.5.0 and v0.6.0,
40 runs of 8B dense to 671B with experts on 8 to 512 H100 and GB200: six constants fitted to them before engines were
timed by measured kernels, those of experts and of engines apart once more since; median 9 %."""

NOT_TIMED: Final = {
    True: "advantages, validation and checkpoints are not timed",
    False: "rewards, advantages, validation and checkpoints are not timed",
}
"""By whether a network gives the rewards."""


def step_time(job: PostTrainingJob) -> tuple[StepTime | None, tuple[str, ...]]:
    """Seconds of a step by its stages, and what is assumed; None and a sentence where the rates are not known.

    An engine that generates ahead works beside the trainer: only what its answers come later is waited for.
    """
    generated, reason = generation_s(job)
    seconds, why = trainer_seconds(job)
    if generated is None or seconds is None:
        return None, (reason or why,)
    said = [NOT_TIMED[job.reward is not None]]
    if job.rollout.ahead:
        said.append(Note(
            "the engine generates for {:,.0f} s beside the trainer, which waits for what is left", generated
        ))
    seconds = whole_step(job, generated, seconds)
    whole, episodes, count = sum(seconds.values()), job.episodes, job.cluster.count
    tokens = episodes.prompts * episodes.samples * episodes.usual
    active = sum(run.count * active_elements(run.layer, hidden=job.model.hidden) for run in job.model.main.runs)
    return StepTime(
        step_s=whole, tokens_per_s=tokens / whole, tokens_per_s_per_gpu=tokens / whole / count,
        model_flops_per_s_per_gpu=6 * active * tokens / (count * whole), seconds=seconds,
        bound=max(seconds, key=lambda name: seconds[name]), sources=(), assumptions=(),
    ), tuple(said)


def whole_step(job: PostTrainingJob, generated_s: float, seconds: dict[str, float]) -> dict[str, float]:
    """All stages: an engine that generates ahead is waited for only where its answers come later."""
    if job.rollout.ahead:
        generated_s = max(0.0, generated_s - sum(seconds.values()) + seconds["update_weights"])
    return {"generate": generated_s} | seconds


def trainer_seconds(job: PostTrainingJob) -> tuple[dict[str, float] | None, str]:
    """Every stage but that of the engine."""
    updated, why = _update_s(job)
    if updated is None:
        return None, why
    if job.engine == "pytorch" and fsdp.steps_on_host(job):
        return None, "no step time: an optimizer that steps on the host is not timed"
    passes = 4 if job.plan.recompute is Recompute.FULL else 3  # backward is two
    learning, leaves = trainer.of(job).actor(job, batches(job, learns=True)), leaves_cards(job)
    weights, states = (
        2 * num_bytes(held) / HOST_BYTES_PER_S if moved or leaves else 0.0
        for held, moved in zip((learning.weights, learning.moments), trainer.moved_by_stage(job), strict=True)
    )
    pace = PACES.get(f"{job.framework}, {job.engine}", PACES[job.framework])
    updated *= pace.experts if any(isinstance(run.layer.channel, MoE) for run in job.model.main.runs) else pace.dense
    once = updated / (job.updates.epochs * passes)
    asked = once + weights + _units_s(job, learns=False)
    trained = updated + weights + states + passes * _units_s(job, learns=True)
    seconds = {**({} if job.updates.reuses_log_prob else {"old_log_prob": asked}), "update_actor": trained}
    if job.updates.reference:
        seconds["ref_log_prob"] = once + weights  # adapters that are switched off are not gathered
    if trainer.rates_inside(job):
        seconds = {"update_actor": sum(seconds.values())}
    if job.algorithm in WITH_CRITIC:
        beside = seen_from(job, "critic").trainer_gpus / job.trainer_gpus if job.own_gpus else 0.0
        more = max(0.0, 1 / beside - 1) if beside else 1.0  # on cards of its own it works meanwhile
        seconds |= {"values": asked * more, "update_critic": trained * more}
    if job.reward is not None:
        seconds["reward"] = once * count_parameters(job.reward).total / count_parameters(job.model).total
    billions = count_parameters(job.model).total / 1e9
    handed = pace.handover_s_per_billion if job.rollout.gpus is None else pace.handover_apart_s_per_billion
    seconds["update_weights"] = pace.handover_s + handed * billions
    return seconds, ""


def _units_s(job: PostTrainingJob, *, learns: bool) -> float:
    """What adapters that are units of their own cost one pass over all micro-batches."""
    peft = job.plan.peft
    if peft is None or job.engine != "pytorch" or fsdp.sharder(job) != "fsdp1":
        return 0.0
    found = batches(job, learns=learns)
    units = 2 * len(peft.targets) * job.model.num_layers  # the two factors of each
    return UNIT_S * units * found.accumulated * found.steps


def _update_s(job: PostTrainingJob) -> tuple[float | None, str]:
    """All optimizer steps of a step."""
    found = batches(job, learns=True)
    made = trainer.of(job).train_job(job, found)
    length = job.episodes.longest if job.updates.padded else job.episodes.usual
    local = job.updates.mini_batch * job.episodes.samples // replicas(job)
    workload = replace(made.workload, seq_len=ceil_div(length, job.updates.ulysses),
                       micro_batch=max(1, local // found.accumulated))
    workload = replace(workload, objective="sft", completion_len=0)  # answers are tokens like any other
    clock = timed_step(replace(made, workload=workload, engine_options={}))
    if clock.time is None:
        return None, clock.assumptions[0] if clock.assumptions else "no step time"
    return clock.time.step_s * found.steps, ""


def _held_at_once(job: PostTrainingJob) -> int:
    """Sequences of the mean length that the engine's cache holds."""
    rank = engine(job, held_bytes=0).deployment.ranks[0]
    if rank.cache is None:
        return 1
    return max(1, rank.cache.num_bytes // max(1, rank.cache.sequence_bytes(job.episodes.usual)))


def generation_s(job: PostTrainingJob) -> tuple[float | None, str]:
    """Until the longest answer is complete; of several steps that the engine works on at once, each one's part."""
    if (lag := job.rollout.lag) > 1:
        together = replace(job, episodes=replace(job.episodes, prompts=lag * job.episodes.prompts),
                           rollout=replace(job.rollout, lag=1))
        every, why = generation_s(together)
        return None if every is None else every / lag, why
    asked, episodes = serve_job(job), job.episodes
    at_once = min(asked.requests.concurrency, _held_at_once(job))
    asked = replace(asked, requests=replace(asked.requests, concurrency=at_once))
    many, one = (timed_serving(replace(asked, requests=replace(asked.requests, concurrency=count))).speed
                 for count in (asked.requests.concurrency, 1))
    if many is None or one is None or many.step_s is None or one.step_s is None:
        return None, "no step time: the engine's rates are not known"
    engines = asked.cluster.count // asked.plan.num_ranks
    sequences = episodes.prompts * episodes.samples / engines
    mean, longest = episodes.mean_response_len or episodes.response_len, episodes.response_len
    rounds = max(1.0, sequences / asked.requests.concurrency)
    prompts = episodes.prompts / engines * (episodes.mean_prompt_len or episodes.prompt_len)
    on_card = rounds * mean * many.step_s + (longest - mean) * one.step_s
    launch = 0.0 if asked.plan.graphs else job.model.num_layers * (LAUNCH_S if job.plan.peft is None else ADAPTED_S)
    on_host = (rounds * mean + longest - mean) * launch
    if asked.engine == "vllm" and asked.version < FIRST_ENGINE_UNTIL:
        return prompts / many.prefill_tokens_per_s + max(on_card, on_host + SEQUENCE_S * sequences * mean), ""
    waits = HOST_STEP_S * max(longest, rounds * mean)
    return DECODING * (prompts / many.prefill_tokens_per_s + max(on_card, on_host)) + waits, ""
