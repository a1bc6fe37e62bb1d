"""The training engines: what is true of each of them as a whole. What a job decides stands in the engine's module.

Another engine is one row here and one module with `ranks(job)`; a newer version is its number in `newest`.
Those that train diffusion pipelines are families of scripts.

[examples] huggingface/diffusers examples/*/train_*.py @0.40   [kohya]
kohya-ss/sd-scripts networks/lora.py `LoRANetwork`, networks/lora_flux.py, networks/lora_sd3.py @0.10.1
[titan] pytorch/torchtitan assets/version.txt: b461ea82c, 29624e37f, 64b5e15fa, 73a0e6979
[litgpt] Lightning-AI/litgpt, its tags; 0.1.0 and 0.2.0 pyproject.toml: 2bcb2c3e, 34fc98c2
"""

from __future__ import annotations

from typing import Final, Literal

from msgspec import Struct

from vramcast.domain.job import Job, Precision, Shards
from vramcast.domain.version import LAST, Version, last_patch, read_version

Sharder = Literal["fsdp1", "fsdp2", "deepspeed"]

_OF_FSDP2: Final = ("reshard_after_forward",)
_OF_PIPELINES: Final = (
    "optimizer_kernel", "recompute_layers", "recompute_modules", "attention", "offload_activations", "cp_kind",
    "first_stage_layers", "last_stage_layers", "freeze",
)

PURE: Final[dict[str, Precision]] = {f"pure-{width}": width for width in (Precision.BF16, Precision.FP16)}
"""Names of recipes without fp32 copies that mean the same for every engine."""

# bf16.enabled, --bf16 and precision="bf16" keep them [deepspeed runtime/precision_config.py, megatron training/
# arguments.py, colossalai booster/plugin/low_level_zero_plugin.py `master_weights`]
_WITH_COPIES: Final[dict[str, Precision]] = {Precision.BF16: Precision.MIXED_BF16, Precision.FP16: Precision.MIXED_FP16}


class TrainingEngine(Struct, frozen=True):
    """One row of `TRAINING`."""

    module: str  # imported when asked for, so that a question pays for one engine only
    oldest: Version  # that its facts cover
    newest: Version  # also the one assumed when none is named
    of: str  # what the versions are versions of
    kin: Literal["eager", "titan", "megatron"]  # whose code predicts it, and so whose misses it has
    precision: Precision  # where nobody says, as its own defaults or recipes have it
    sixteen_bits: Precision  # what a search for 16 bits asks it for
    in_fp16: Precision | None = None  # with a loss scale, for cards without bf16
    runs_as: dict[Precision, Precision] = {}
    calls: dict[str, Precision] = {}  # recipes that it calls by the name of another
    by_version: bool = True  # False: everything modelled is the same in all of them
    shards: Shards = Shards.NOTHING  # where nobody says
    sharders: tuple[Sharder, ...] = ()  # what may do its sharding, the usual one first; () its own
    leaves_sharding: bool = False  # who shards is chosen by version and by what is asked (`releases.sharder`)
    wraps_alone: bool = False  # by FSDP on one rank, too
    divides_states: bool = False  # whatever is asked for: ZeRO-1 at least
    is_flat: bool = False  # its partitions are cut without regard to weights
    copies_in_fp32: bool = False  # the optimizer, in every recipe; else it updates the weights themselves
    runs_transformers: bool = False  # transformers' model code
    is_trainer: bool = False  # transformers' Trainer runs the loop
    one_model: bool = False  # its programs hold one language model and its loss
    objectives: tuple[str, ...] = ()  # that they have beside those of a language model
    unused: tuple[str, ...] = ()  # fields of the plan that it does not look at: anything but the default is refused


TRAINING: Final[dict[str, TrainingEngine]] = {
    "pytorch": TrainingEngine(
        "vramcast.engines.pytorch", (2, 0), (2, 13), "PyTorch", "eager", Precision.AMP_BF16, Precision.AMP_BF16,
        Precision.AMP_FP16, sharders=("fsdp1", "fsdp2"), leaves_sharding=True, runs_transformers=True,
    ),
    # FSDP holds for the Trainer in fp32 what it casts when it gathers it [accelerate utils/fsdp_utils.py]
    "huggingface": TrainingEngine(
        "vramcast.engines.huggingface", (4, 30), (5, 23), "transformers", "eager", Precision.AMP_BF16,
        Precision.AMP_BF16, Precision.AMP_FP16,
        {Precision.MIXED_BF16: Precision.AMP_BF16, Precision.MIXED_FP16: Precision.AMP_FP16},
        sharders=("fsdp1", "fsdp2", "deepspeed"), leaves_sharding=True, runs_transformers=True, is_trainer=True,
    ),
    # casts the weights and runs without autocast, the Trainer's, too
    # [deepspeed runtime/engine.py `_configure_distributed_model`]
    "deepspeed": TrainingEngine(
        "vramcast.engines.deepspeed", (0, 9), (0, 19), "DeepSpeed", "eager", Precision.MIXED_BF16,
        Precision.MIXED_BF16, Precision.MIXED_FP16,
        {Precision.AMP_BF16: Precision.MIXED_BF16, Precision.AMP_FP16: Precision.MIXED_FP16}, _WITH_COPIES,
        shards=Shards.OPTIMIZER_AND_GRADIENTS, sharders=("deepspeed",), divides_states=True, is_flat=True,
        copies_in_fp32=True, runs_transformers=True, unused=(*_OF_FSDP2, "optimizer_kernel"),
    ),
    # fp32 shards, cast when they are gathered, reduced in fp32 [titan config/configs.py `mixed_precision_reduce`]
    "torchtitan": TrainingEngine(
        "vramcast.engines.torchtitan", (2024,), (2026, 7), "torchtitan, by the date of the checkout", "titan",
        Precision.AMP_BF16, Precision.MIXED_BF16, None,
        {Precision.MIXED_BF16: Precision.AMP_BF16, Precision.FP8: Precision.AMP_BF16},
        shards=Shards.EVERYTHING, sharders=("fsdp2",), wraps_alone=True, one_model=True,
        unused=tuple(name for name in _OF_PIPELINES if name != "freeze"),
    ),
    # trains 16-bit weights [torchtune recipes/full_finetune_distributed.py]
    "torchtune": TrainingEngine(
        "vramcast.engines.torchtune", (0, 1), (0, 7), "torchtune", "titan", Precision.BF16, Precision.BF16, None,
        {Precision.MIXED_BF16: Precision.BF16},
        shards=Shards.EVERYTHING, sharders=("fsdp2",), wraps_alone=True, one_model=True, objectives=("dpo", "gkd"),
        unused=tuple(name for name in _OF_PIPELINES if name not in ("optimizer_kernel", "offload_activations")),
    ),
    "litgpt": TrainingEngine(
        "vramcast.engines.litgpt", (2023,), (2026, 7), "litgpt, by the date of the checkout", "eager", Precision.BF16,
        Precision.BF16, sharders=("fsdp1",), one_model=True, unused=(
            *_OF_FSDP2, "recompute", "recompute_layers", "recompute_modules", "attention", "loss", "compile",
            "offload_optimizer", "offload_parameters", "offload_activations", "freeze",
        ),
    ),
    "megatron": TrainingEngine(
        "vramcast.engines.megatron", (0, 2), (0, 17), "Megatron Core", "megatron", Precision.MIXED_BF16,
        Precision.MIXED_BF16, Precision.MIXED_FP16, calls=_WITH_COPIES, by_version=False, shards=Shards.OPTIMIZER,
        copies_in_fp32=True, objectives=("dpo", "kto", "reward", "classification"), one_model=True,
        unused=(*_OF_FSDP2, "optimizer_kernel", "shard_group"),
    ),
    "colossalai": TrainingEngine(
        "vramcast.engines.colossalai", (0, 3), (0, 5), "Colossal-AI", "eager", Precision.MIXED_BF16,
        Precision.MIXED_BF16, Precision.MIXED_FP16, calls=_WITH_COPIES, by_version=False,
        shards=Shards.OPTIMIZER_AND_GRADIENTS,
        divides_states=True, is_flat=True, copies_in_fp32=True, runs_transformers=True,
        unused=(*_OF_FSDP2, "optimizer_kernel", "loss"),
    ),
    "unsloth": TrainingEngine(
        "vramcast.engines.unsloth", (2024,), (2026, 10, 9), "Unsloth", "eager", Precision.AMP_BF16, Precision.AMP_BF16,
        Precision.AMP_FP16, runs_transformers=True, is_trainer=True, unused=_OF_FSDP2,
    ),
}
"""Engines by name, as they are offered."""

FLATTENS: Final = ("fsdp1", *(name for name, engine in TRAINING.items() if engine.is_flat))
"""What gives an optimizer flat pieces of many weights; DeepSpeed partitions those of Muon apart."""

UNUSED_BY_SHARDER: Final[dict[str | None, tuple[str, ...]]] = {
    None: _OF_FSDP2, "deepspeed": TRAINING["deepspeed"].unused,
}
"""`unused` of engines that leave sharding to others, by who does it."""


def engine_of(job: Job) -> TrainingEngine:
    """The row of a job's engine."""
    return TRAINING[job.engine]


class Trainer(Struct, frozen=True):
    """What is true of one family of scripts."""

    oldest: Version
    newest: Version
    of: str
    casts_input: bool  # adapters read a copy of their input in their own type
    targets: dict[str, tuple[str, ...]]  # class of a denoiser -> modules with adapters, where nobody says; "": others
    text_targets: tuple[str, ...]
    caches_beside: bool  # what is cached is made while the denoiser is on the card


_ATTENTION: Final = ("to_k", "to_q", "to_v", "to_out.0")
JOINT: Final = (
    "attn.to_k", "attn.to_q", "attn.to_v", "attn.to_out.0", "attn.add_k_proj", "attn.add_q_proj", "attn.add_v_proj",
    "attn.to_add_out",
)
FEED_FORWARD: Final = ("ff.net.0.proj", "ff.net.2", "ff_context.net.0.proj", "ff_context.net.2")

DIFFUSION: Final[dict[str, Trainer]] = {
    "diffusers": Trainer((0, 20), (0, 42), "diffusers", casts_input=True, targets={
        "FluxTransformer2DModel": (*JOINT, *FEED_FORWARD), "SD3Transformer2DModel": JOINT, "": _ATTENTION,
    }, text_targets=("q_proj", "k_proj", "v_proj", "out_proj"), caches_beside=True),
    "sd-scripts": Trainer((0, 6), (0, 10), "sd-scripts", casts_input=False, targets={
        "UNet2DConditionModel": (*_ATTENTION, "net.0.proj", "net.2", "proj_in", "proj_out"),
        "FluxTransformer2DModel": (*JOINT, *FEED_FORWARD, "proj_mlp", "single_transformer_blocks.proj_out"),
        "Lumina2Transformer2DModel": (*_ATTENTION, "linear_1", "linear_2", "linear_3"),
        "": (*JOINT, *FEED_FORWARD),
    }, text_targets=("q_proj", "k_proj", "v_proj", "out_proj", "fc1", "fc2"), caches_beside=False),
}
"""Engines that train pipelines."""


MADE: Final[dict[str, str]] = {
    "torchtitan": "0.1.0 2025-06-05, 0.2.0 2025-10-17, 0.2.1 2025-12-26, 0.2.2 2026-02-20",
    "litgpt": """
    0.1.0 2024-03-11, 0.2.0 2024-03-15, 0.3.1 2024-05-08, 0.4.0 2024-06-10, 0.4.1 2024-06-17, 0.4.2 2024-06-25,
    0.4.3 2024-07-05, 0.4.4 2024-07-10, 0.4.5 2024-07-17, 0.4.6 2024-07-24, 0.4.7 2024-08-01, 0.4.8 2024-08-02,
    0.4.9 2024-08-08, 0.4.10 2024-08-13, 0.4.11 2024-08-23, 0.4.12 2024-09-11, 0.4.13 2024-09-27, 0.5.0
    2024-10-04, 0.5.1 2024-10-10, 0.5.2 2024-10-22, 0.5.3 2024-10-29, 0.5.4 2024-12-23, 0.5.5 2025-01-08, 0.5.6
    2025-01-24, 0.5.7 2025-01-27, 0.5.8 2025-05-06, 0.5.9 2025-06-12, 0.5.10 2025-08-13, 0.5.11 2025-09-09,
    0.5.12 2025-12-18, 0.5.13 2026-06-29
    """,
}
"""Engine -> releases and the days of their code, where versions are dates."""

YEARS: Final = 1000
"""Versions that begin with a larger number are dates."""


def checkout(engine: str, written: str) -> Version | None:
    """The day of a release of an engine whose versions are dates; None for whatever else is behind "@".

    A series is its last release; one newer than all is newer than every date, and keeps its name.

    >>> checkout("torchtitan", "0.2.0"), checkout("torchtitan", "0.2"), checkout("torchtitan", "2026-01-05")
    ((2025, 10, 17), (2026, 2, 20), None)
    """
    found = read_version(written)
    if engine not in MADE or found is None or found[0] >= YEARS:
        return None
    made = {read_version(name) or (): day for name, day in map(str.split, MADE[engine].split(","))}
    if found > max(made):
        return (LAST, *found)
    days = [day for name, day in made.items() if name <= last_patch(found)]
    return read_version(days[-1]) if days else None
