"""The engine that generates beside a trainer: its weights, its cache, what it holds besides.

[budget] vllm-project/vllm vllm/v1/worker/gpu_worker.py `determine_available_memory`: up to 0.11 everything that the
card holds counts against the share of the card, since then only what came after the worker's start, which must find
its share free; SGLang's share is one of what is free at its start
[cumem] vllm/device_allocator/cumem.py: `sleep` unmaps what was allocated under the tags "weights" and "kv_cache";
graphs, NCCL and the context stay

What Unsloth tells the vLLM that it starts: a share of what is free, and how many sequences run at once.

[zoo] unslothai/unsloth-zoo unsloth_zoo/vllm_utils.py `load_vllm`, `approximate_vllm_memory_usage`: eb68b541 (2025-09),
08df47a2 (2026-01), ce232d6c (2026-08); a standby takes what is asked, at least nine tenths of it since 2afbcc19
(2025.9.6), at least its tier since 65939946 (2025.11.1), no more and no less since fa82dcc2 (2026.2.1)
"""

from __future__ import annotations

from importlib import import_module
from typing import Final, NamedTuple

from msgspec.structs import replace

from vramcast.blocks.parameters.model import count_parameters
from vramcast.domain.job import Precision
from vramcast.domain.model import Head
from vramcast.domain.post_training import PostTrainingJob, Rollout
from vramcast.domain.program import Alloc, Category, Program, Tensor, extent, live_at_end
from vramcast.domain.serving import Deployment, Requests, ServeJob, ServePlan, ServingRank, Version
from vramcast.engines.post_training.batches import part_of
from vramcast.engines.post_training.releases import FRAMEWORKS, is_swift_on_megatron, release_of
from vramcast.engines.serving.table import SERVING
from vramcast.errors import InvalidSpec, Note, Unsupported
from vramcast.units import GIB, format_bytes

PACKED: Final = 16 / 5
"""By what weights in 4 bits are taken to be smaller."""


class Standby(NamedTuple):
    """The share of a card that an engine takes which gives its cache up while the trainer works."""

    since: Version
    tiers: tuple[tuple[float, float], ...]  # a tenth of the card from here on [GiB] -> share
    is_least: bool = True  # more may be asked; else nothing but the tier is taken


NEWER: Final = 0.95
"""Of a tier, with vLLM 0.11 and newer."""

STANDBY: Final = (
    Standby((2026, 2, 1), ((4.0, 0.925), (2.5, 0.9), (2.0, 0.825), (1.4, 0.8), (1.0, 0.775), (0.0, 0.75)), False),
    Standby((2025, 11, 1), ((4.0, 0.925), (2.5, 0.9), (2.0, 0.875), (1.4, 0.85), (1.0, 0.8), (0.0, 0.75))),
    Standby((2025, 9, 6), ((0.0, 0.9 / NEWER),)),
    Standby((0,), ((0.0, 0.0),)),
)
"""Newest first."""

SEQUENCES: Final = ((2, 8), (4, 16), (8, 32), (12, 48), (16, 64), (24, 80), (40, 96), (48, 112), (80, 128))
"""What is left for the cache, up to [GiB] -> `max_num_seqs`; 256 beyond."""

TOKENS: Final = ((4, 2048), (12, 4096), (24, 6144))
"""The same -> `max_num_batched_tokens`; 8,192 beyond."""


class Limits(NamedTuple):
    """What vLLM is started with."""

    fraction: float  # of the whole card
    max_sequences: int
    batched_tokens: int


def limits(job: PostTrainingJob, fraction: float) -> Limits:
    """Of a card on which nothing else is; `fraction` is what is asked, a share of what is free."""
    gpu, asked = job.cluster.gpu, fraction
    if job.rollout.sleeps:
        rule = next(rule for rule in STANDBY if job.version >= rule.since)
        tier = NEWER * next(share for tenth, share in rule.tiers if gpu.visible_bytes / GIB / 10 >= tenth)
        asked = max(fraction, tier) if rule.is_least else tier
    parameters, model = count_parameters(job.model).total, job.model
    ends = model.vocab * model.hidden * (1 if model.tied else 2)
    packed = PACKED if job.plan.peft is not None and job.plan.peft.base != "full" else 1
    left = asked * gpu.free_bytes - 2 * ((parameters - ends) / packed + ends)
    sequences, tokens = (next((count for most, count in table if left <= most * GIB), beyond)
                         for table, beyond in ((SEQUENCES, 256), (TOKENS, 8192)))
    return Limits(asked * gpu.free_bytes / gpu.visible_bytes, sequences, max(tokens, job.episodes.longest))


ENGINES: Final = ("vllm", "sglang")

LEAST_RANK: Final = 8
"""Of the adapters that vLLM has slots for."""

SECOND_ONLY: Final[Version] = (0, 11)
"""First vLLM without its first engine."""

UNSURE: Final = 2 * GIB
"""By how much the profile of a start may be counted too high, where the engine has nearly nothing left [bytes]."""

SNAPSHOT_SINCE: Final[Version] = (0, 12)
"""First vLLM whose budget leaves out what others held before it began [budget]."""


class Engine(NamedTuple):
    """One card's part of the engine."""

    job: ServeJob
    deployment: Deployment
    weights: Tensor  # that sleep
    cache: Tensor
    kept: Program  # what stays beside both: graphs
    forward: Program  # the largest forward
    outside: tuple[Tensor, ...]  # beside its allocator, without the context
    shortfall: str = ""


def serve_job(job: PostTrainingJob) -> ServeJob:
    """The engine's part as a serving question."""
    asked, release, episodes = job.rollout, release_of(job), job.episodes
    cluster = part_of(job.cluster, job.engine_gpus)
    tp = asked.tp or min(FRAMEWORKS[job.framework].rollout_tp, cluster.count)
    if cluster.count % (tp * asked.dp):
        degree = f"{tp}" if asked.dp == 1 else f"{tp} x rollout-dp={asked.dp}"
        raise InvalidSpec("rollout-tp={} does not divide {} GPUs", degree, cluster.count)
    trained = job.model.context if release.context_of_model else None
    context = asked.context or max(trained or 0, episodes.longest)
    if context < episodes.longest:
        raise InvalidSpec("context={} is shorter than the {} tokens of a sequence", context, episodes.longest)
    concurrent = max(1, episodes.prompts * episodes.samples * tp * asked.dp // cluster.count)
    swift = is_swift_on_megatron(job)
    # as many sequences as one generation has, into merged weights
    of_trl = job.engine == "huggingface" or (swift and asked.gpus is None)
    most = None if release.max_sequences is None else asked.max_sequences or release.max_sequences
    most = asked.max_sequences or concurrent if of_trl else most
    usual = FRAMEWORKS[job.framework]
    of_class = release.in_process or release.batched_tokens is None  # vLLM's `LLM`
    own: dict[str, str | int | float | bool] = {}
    if of_class and job.rollout_engine == "vllm":
        own |= {"offline": True}
        own |= {"v1": False} if release.first_engine and job.rollout_version < SECOND_ONLY else {}
    share, tokens = asked.memory_fraction or usual.memory_fraction, asked.batched_tokens or release.batched_tokens
    peft, dtype = job.plan.peft, "bf16"
    stored = asked.weights or (dtype if job.model.quantisation else None)  # what learns is handed over in 16 bits
    if release.shares_weights:
        share, sequences, at_once = limits(job, share)
        most, tokens = asked.max_sequences or sequences, asked.batched_tokens or at_once
        stored = peft.base if peft is not None and peft.base != "full" else stored
        dtype = "fp16" if job.plan.precision is Precision.AMP_FP16 else dtype
    merges = swift or (of_trl and not release.shares_weights)
    rank = 0 if peft is None or merges else max(LEAST_RANK, peft.rank)
    return ServeJob(
        model=job.model,
        requests=Requests(
            context=context, concurrency=min(concurrent, most or asked.max_sequences or concurrent),
            input_len=episodes.mean_prompt_len or episodes.prompt_len,
            output_len=episodes.mean_response_len or episodes.response_len,
        ),
        plan=ServePlan(
            tp=tp, dp=asked.dp, attention_dp=asked.attention_dp, expert_parallel=asked.expert_parallel,
            kv_dtype=asked.kv_dtype or "auto", cache_bytes=asked.cache_bytes, block_tokens=asked.block_tokens,
            draft=asked.draft, memory_fraction=share, max_sequences=most, batched_tokens=tokens, weights=stored,
            graphs=release.graphs if asked.graphs is None else asked.graphs, dtype=dtype,
            lora_slots=int(rank > 0), lora_rank=rank or 16,
        ),
        cluster=cluster,
        engine=job.rollout_engine,
        version=job.rollout_version,
        engine_options={**own, **asked.engine_options},
    )


def rating_job(job: PostTrainingJob) -> PostTrainingJob | None:
    """What the second engine is asked, which serves the network that rates; None where there is none.

    It is verl's own with the defaults of its `rollout`: no graphs, half of the card, two ranks; and sleeps with its
    weights on the host [verl config/reward/reward.yaml, experimental/reward_loop/reward_model.py]. Its cache fills that
    share, so that a head of one column instead of the vocabulary's moves nothing of the sum: it is served as a
    language model of the same layers.

    Raises: Unsupported where the engine that generates has cards of its own
    """
    if job.reward is None or not release_of(job).serves_reward:
        return None
    if job.rollout.gpus is not None:
        raise Unsupported("the engine of a reward network beside cards of the engine's own is not modelled; leave out "
                          "--rollout-gpus")
    asked = job.rollout
    model = job.reward if job.reward.head is not Head.CLASSIFIER else replace(job.reward, head=Head.LM)
    return replace(job, model=model, reward=None, plan=replace(job.plan, peft=None), rollout=Rollout(
        tp=asked.reward_tp or min(RATING_TP, job.cluster.count), memory_fraction=asked.reward_fraction, graphs=False,
        max_sequences=RATED_AT_ONCE))


RATING_TP: Final = 2
RATED_AT_ONCE: Final = 1024
"""`tensor_model_parallel_size` and `max_num_seqs` of that engine unasked."""


def engine(job: PostTrainingJob, *, held_bytes: int) -> Engine:
    """The engine on one card.

    Args:
        held_bytes: of the card that the trainer holds when the engine starts [bytes]

    Raises: Unsupported for an engine that is not modelled here
    """
    if job.rollout_engine not in ENGINES:
        raise Unsupported("--rollout {} is not modelled beside a trainer; use vllm or sglang", job.rollout_engine)
    asked = serve_job(job)
    deployment: Deployment = import_module(SERVING[job.rollout_engine].module).deploy(asked)
    if len(deployment.ranks) > 1:
        raise Unsupported("pipeline stages of the engine are not modelled beside a trainer; use --rollout-tp")
    rank = deployment.ranks[0]
    if rank.cache is None:
        raise InvalidSpec("{} generates no tokens; use a language model", job.model.name)
    load, serving = (tuple(nodes) for nodes in rank.program.phases.values())
    found = extent(load).net
    cache, short = _cache(asked, rank, held_bytes, visible=job.cluster.gpu.visible_bytes)
    short = short or _too_small(asked, rank, cache, held_bytes)
    weights = Tensor(name="weights", num_bytes=found, category=Category.WEIGHTS, owner="rollout",
                     formula=Note("over {} ranks", asked.plan.tp), source="the network's configuration")
    kept = Tensor(name="key-value cache", num_bytes=cache, category=Category.CACHE, owner="rollout",
                  formula=Note(
                      "{:g} of {}, less what the engine needs besides",
                      asked.plan.memory_fraction, format_bytes(job.cluster.gpu.visible_bytes)
                  ), source="vllm/v1/worker/gpu_worker.py")
    stays = live_at_end(serving)
    graphs = tuple(Alloc(tensor) for tensor in stays if tensor.category is not Category.CACHE)
    forward = tuple(node for node in serving if not (isinstance(node, Alloc) and node.tensor in stays))
    return Engine(asked, deployment, weights, kept, graphs, forward, rank.program.outside, short)


def _too_small(asked: ServeJob, rank: ServingRank, cache_bytes: int, held_bytes: int) -> str:
    """Why an engine does not start with its cache: vLLM's must hold its longest sequence, SGLang's anything.

    Source: vllm/v1/core/kv_cache_utils.py `check_enough_kv_cache_memory`; sglang model_runner.py `init_memory_pool`
    """
    least = 1 if asked.engine == "sglang" or rank.cache is None else rank.cache.sequence_bytes(asked.context)
    short_of = min(0, rank.startup.get("KV cache", 0))  # where weights and profile alone are more than the share
    counted = held_bytes if asked.engine == "vllm" and asked.version < SNAPSHOT_SINCE and short_of else 0
    if cache_bytes + short_of - counted + UNSURE > least and (cache_bytes or asked.engine != "sglang"):
        return ""
    return (Note(
        "the engine has {} left for its cache, less than the {} of one sequence of {:,} tokens; raise "
        "--memory-fraction or --rollout-tp, or lower --context",
        format_bytes(cache_bytes), format_bytes(least), asked.context
    ))


def _cache(asked: ServeJob, rank: ServingRank, held_bytes: int, *, visible: int) -> tuple[int, str]:
    """Bytes of the cache beside what others hold, and why the engine would not start [budget]."""
    alone = rank.cache.num_bytes if rank.cache is not None else 0
    fraction = asked.plan.memory_fraction or 0.0
    if asked.engine == "sglang":
        return max(0, alone - int(fraction * held_bytes)), ""
    if asked.version < SNAPSHOT_SINCE:
        left = alone - held_bytes
        shortfall = "" if alone + UNSURE > held_bytes else (
            Note(
                "the engine counts what the trainer holds ({}) against its share and has nothing left for its cache; "
                "raise --memory-fraction, or offload the weights", format_bytes(held_bytes)
            )
        )
        return max(0, left), shortfall
    free = visible - held_bytes
    shortfall = "" if free >= fraction * visible else (
        Note(
            "the engine finds {} free when it starts, less than its share of {}; lower --memory-fraction, or offload "
            "the weights", format_bytes(max(0, free)), format_bytes(int(fraction * visible))
        )
    )
    return alone, shortfall
