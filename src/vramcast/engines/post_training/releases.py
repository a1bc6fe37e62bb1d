"""Frameworks by release: who lives in which process, what sleeps how, what is computed in which type.

[verl] verl-project/verl v0.3 070ed6a, v0.4.1 8d9e350, v0.5.0 8fdc4d3, v0.6.1 d62da49, v0.7.0 f9c855f, 0.8.0.dev
b178a3c, v0.9.0 483b8a0, 0.10.0.dev 1dda039
[trl] huggingface/trl f2cd577 trl/generation/vllm_generation.py, trl/trainer/grpo_config.py
[swift] modelscope/ms-swift 3602360 (4.6.0.dev0) swift/rlhf_trainers/rollout_mixin.py `_prepare_vllm_engine`, whose
LLMEngine has 2,048 tokens unasked; README.md for its vLLM; swift/rlhf_trainers/args_mixin.py
[openrlhf] OpenRLHF/OpenRLHF v0.6.4 ebbe2cb, v0.8.0 a542dd9, v0.8.5 5974dfe, v0.9.0 06ab51e, v0.9.2, v0.9.5 c0e2ee2,
v0.10.0, 0.11.0 3c3be62: setup.py for its vLLM; trainer/ray/vllm_engine.py: until 0.9.0 the `LLM` class, whose batches
are vLLM's own, since then `AsyncLLMEngine`, which has 2,048 tokens and 128 sequences unasked [vllm arg_utils.py];
trainer/ppo_trainer.py `broadcast_to_vllm`: weights alone are woken since 0.9.2
[slime] THUDM/slime 624b824 (0.3.1) slime/backends/megatron_utils/actor.py: a trainer on the engine's cards is paused
whole by torch_memory_saver while it generates; copies of the weights, one a tag, wait on the host and take turns
[unsloth] unslothai/unsloth-zoo ce232d6c (2026.8.13), 08df47a2, eb68b541 (2025.9.10) unsloth_zoo/vllm_utils.py
`load_vllm`, `patch_vllm_enable_sleep_mode`: weights are there once, and of a sleeping engine the cache alone leaves
[nemo] NVIDIA-NeMo/RL 7ea279a nemo_rl/models/generation/vllm/vllm_worker.py, nemo_rl/algorithms/grpo.py: the policy
waits on the host while the engine generates, and its optimizer while weights are handed over
"""

from __future__ import annotations

from typing import Final, NamedTuple

from vramcast.domain.post_training import PostTrainingJob
from vramcast.domain.version import Version


class Release(NamedTuple):
    """What holds from a release on."""

    since: Version
    in_process: bool  # vLLM lives in the trainer's process [workers/rollout/vllm_rollout]
    sleep_level: int  # 1: weights wait on the host; 2: they are dropped [vllm_async_server.py]
    wakes_both: bool  # weights and cache are back before the weights are handed over [sharding_manager/fsdp_vllm.py]
    divides: str  # logits by the temperature: "in place" [dp_actor.py], in a "copy" [fsdp/transformer_impl.py]
    defers_sync: bool  # micro-batches before the last are not reduced [fsdp/transformer_impl.py]
    reference_width: int  # bytes of a frozen reference's element [fsdp_workers.py; config/ref/ref.yaml]
    bucket_mib: int  # of the handover between processes [config/rollout/rollout.yaml]
    max_sequences: int | None  # of the engine; None: it is not told any [vllm_rollout_spmd.py]
    graphs: bool  # the engine captures graphs unasked
    context_of_model: bool  # its longest sequence is the model's, not that of the data [vllm_async_server.py]
    vllm: Version  # that its documents name
    sglang: Version
    first_engine: bool = False  # of vLLM: its scripts export VLLM_ATTENTION_BACKEND=XFORMERS, which the second lacks
    pads: bool = False  # batches, unasked [config/model/hf_model.yaml `use_remove_padding`]
    learns_entropy: bool = False  # its gradient is computed whatever its coefficient [dp_actor.py]
    leaves: bool = False  # all of the trainer is on the host while an engine on its cards generates
    swaps_reference: bool = False  # a copy of the weights as they were waits on the host, and takes their place
    apart: bool = False  # every network is a process of its own, and the engine starts before them
    batched_tokens: int | None = 8192  # of a forward of the engine; None: it is not told any
    micro_batch: int | None = None  # sequences of a micro-batch, where nobody says
    rating_batch: int | None = None  # the same of passes without gradients
    expands: bool = False  # segments of the trainer, but while it starts and hands weights over [verl utils/device.py]
    serves_reward: bool = False  # a second engine rates answers [experimental/reward_loop/reward_model.py]
    shares_weights: bool = False  # the trainer's frozen weights are the engine's, which keeps them asleep, too


MEMORY_FRACTION: Final = 0.5
MICRO_TOKENS: Final = 16384
"""`gpu_memory_utilization`, `ppo_max_token_len_per_gpu` where nobody says them
[config/rollout/rollout.yaml, config/actor/actor.yaml]."""


VERL: Final = (
    Release((0, 9), False, 2, False, "copy", True, 4, 2048, 256, True, True, (0, 21), (0, 5, 8), expands=True,
            serves_reward=True),
    Release((0, 8), False, 2, False, "in place", False, 4, 2048, 256, True, True, (0, 12), (0, 5, 6), expands=True,
            serves_reward=True),
    Release((0, 7), True, 2, False, "in place", False, 4, 512, 1024, True, True, (0, 12), (0, 5, 6), expands=True),
    Release((0, 6), True, 2, False, "in place", False, 4, 512, 1024, True, True, (0, 11), (0, 5, 5), pads=True,
            expands=True),
    Release((0, 5), True, 1, False, "in place", False, 2, 512, None, False, False, (0, 8, 5), (0, 4, 6), pads=True),
    Release((0, 4), True, 1, False, "in place", False, 2, 512, None, False, False, (0, 8, 5), (0, 4, 6), pads=True,
            first_engine=True),
    Release((0, 2), True, 1, True, "in place", False, 2, 512, None, False, False, (0, 8), (0, 4, 6), pads=True,
            first_engine=True, learns_entropy=True),
)
NEMO: Final = Release((0, 3), False, 1, False, "copy", False, 2, 0, 256, True, False, (0, 11), (0, 5, 5), leaves=True,
        swaps_reference=True),


TRL: Final = (
    Release((1, 0), True, 2, False, "in place", False, 2, 0, None, True, False, (0, 19), (0, 5, 8), pads=True,
            batched_tokens=4096, micro_batch=8),
    Release((0, 24), True, 2, False, "in place", False, 2, 0, None, True, False, (0, 12), (0, 5, 5), pads=True,
            batched_tokens=4096, micro_batch=8),
    Release((0, 18), True, 2, False, "in place", False, 2, 0, None, True, False, (0, 8, 5), (0, 4, 6), pads=True,
            batched_tokens=4096, micro_batch=8),
)


SWIFT: Final = Release((4, 0), True, 1, False, "in place", False, 2, 0, None, True, True, (0, 23), (0, 5, 8), pads=True,
        batched_tokens=2048, micro_batch=1),


def _unsloth(since: Version, vllm: Version) -> Release:
    """[unsloth]: its batch is the answers to one prompt, unless another one holds several [unsloth rl.py]."""
    return Release(since, True, 1, False, "in place", False, 2, 0, None, True, False, vllm, (0, 5, 8), pads=True,
                   batched_tokens=None, micro_batch=8, shares_weights=True)


UNSLOTH: Final = tuple(_unsloth(*row) for row in (
    ((2026, 7), (0, 21)), ((2026, 1), (0, 14)), ((2025, 11), (0, 11)), ((2025, 8), (0, 10)),
))


def _openrlhf(since: Version, vllm: Version) -> Release:
    """[openrlhf]: what its releases share, and what changed."""
    streams, few = since >= (0, 9, 1), since >= (0, 10)
    return Release(
        since, False, 1, since < (0, 9, 2), "", False, 2, 0, 128 if streams else None, True, False, vllm, (0, 5, 8),
        pads=True, apart=True, batched_tokens=2048 if streams else None, micro_batch=1 if few else 4,
        rating_batch=1 if few else 8,
    )


OPENRLHF: Final = tuple(_openrlhf(*row) for row in (
    ((0, 11), (0, 27)), ((0, 10), (0, 19)), ((0, 9, 5), (0, 17)), ((0, 9, 2), (0, 13)), ((0, 9, 1), (0, 13)),
    ((0, 9), (0, 11)), ((0, 8, 5), (0, 9)), ((0, 8), (0, 8, 5)), ((0, 6), (0, 8)),
))


SLIME: Final = (
    Release((0, 3), False, 2, False, "", False, 2, 512, None, True, False, (0, 21), (0, 5, 15), leaves=True,
            swaps_reference=True, batched_tokens=None, micro_batch=1),
    Release((0, 2), False, 2, False, "", False, 2, 512, None, True, False, (0, 12), (0, 5, 5), leaves=True,
            swaps_reference=True, batched_tokens=None, micro_batch=1),
)


class Framework(NamedTuple):
    """One framework."""

    releases: tuple[Release, ...]  # newest first
    oldest: Version  # that its facts cover
    newest: Version
    default: Version
    engine: str = "pytorch"  # of the trainer, where nobody says
    rollout_tp: int = 2
    memory_fraction: float = MEMORY_FRACTION  # of the card for the engine
    others: tuple[str, ...] = ()  # engines that may train instead
    rollout: str = "vllm"  # the engine that generates, where nobody says


FRAMEWORKS: Final[dict[str, Framework]] = {
    "verl": Framework(VERL, (0, 2), (0, 10), (0, 8), others=("megatron",)),
    "nemo-rl": Framework(NEMO, (0, 3), (0, 6), (0, 6), "megatron", 1, 0.6, ("pytorch",)),
    "trl": Framework(TRL, (0, 18), (1, 9), (1, 9), "huggingface", 1, 0.3),
    "ms-swift": Framework(SWIFT, (4, 0), (4, 6), (4, 6), "huggingface", 1, 0.9, ("megatron",)),
    "unsloth": Framework(UNSLOTH, (2025, 8), (2026, 10), (2026, 10), "huggingface", 1, 0.5),
    "slime": Framework(SLIME, (0, 2), (0, 3), (0, 3), "megatron", 1, 0.7, rollout="sglang"),
    "openrlhf": Framework(OPENRLHF, (0, 6), (0, 11), (0, 11), "deepspeed", 1),
}


def lives_inside(job: PostTrainingJob) -> bool:
    """Whether the engine that generates lives in the trainer's process."""
    return release_of(job).in_process and job.rollout_engine == "vllm" and job.rollout.gpus is None


def sleep_level(job: PostTrainingJob) -> int:
    """1: the engine's weights wait on the host, as they do where adapters are handed over beside them; 2: they are
    dropped. TRL and ms-swift, whose arguments say it, merge adapters into them."""
    if job.rollout.level is not None:
        return job.rollout.level
    adapted = job.plan.peft is not None and job.engine != "huggingface"
    return 1 if adapted else release_of(job).sleep_level


def keeps_cache(job: PostTrainingJob) -> bool:
    """Whether the trainer gives nothing back between stages: TRL does it only to wake an engine that sleeps [trl]."""
    return job.engine == "huggingface" and not job.rollout.sleeps


def leaves_cards(job: PostTrainingJob) -> bool:
    """Whether all of the trainer waits on the host while the engine generates: where both share cards."""
    return release_of(job).leaves and job.rollout.gpus is None


def has_own_reference(job: PostTrainingJob) -> bool:
    """Whether the network as it was is one beside the one that learns: not where adapters are switched off, or its
    weights are put in their place."""
    there = job.updates.reference or is_swift_on_megatron(job)  # which loads one whether it is asked or not
    return there and job.plan.peft is None and not release_of(job).swaps_reference


def is_swift_on_megatron(job: PostTrainingJob) -> bool:
    """Whether ms-swift trains with Megatron: what it offloads is away only while its engine starts and generates, and a
    reference beside full fine-tuning goes with the weights [swift megatron/trainers/rollout_mixin.py `offload_context`,
    rlhf_mixin.py `prepare_model`]."""
    return job.framework == "ms-swift" and job.engine == "megatron"


def release_of(job: PostTrainingJob) -> Release:
    """What holds in the version of the framework that is asked about."""
    return next(one for one in FRAMEWORKS[job.framework].releases if job.version >= one.since)
