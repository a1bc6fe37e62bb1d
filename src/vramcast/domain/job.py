"""What is asked: a workload, the plan to run it with, and the engine that runs it.

What one kind of rank does over a run: the hand-over from engines to estimates.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from itertools import chain
from typing import Final, Literal

from msgspec import Struct

from vramcast.domain.calibration import Calibration
from vramcast.domain.device import Cluster
from vramcast.domain.model import Model, Noun
from vramcast.domain.program import BrokenProgram, Program, Tensor, freed_unallocated
from vramcast.domain.version import Version
from vramcast.errors import InvalidSpec
from vramcast.units import ceil_div

LARGEST_COUNT: Final = 2**40
"""No count a user can mean is larger; beyond it products stop fitting anything [count]."""


class Shards(StrEnum):
    """What the data-parallel group splits instead of copying (ZeRO 0, 1, 2, 3)."""

    NOTHING = "nothing"
    OPTIMIZER = "optimizer"
    OPTIMIZER_AND_GRADIENTS = "optimizer+gradients"
    EVERYTHING = "everything"


class Recompute(StrEnum):
    """Which activations are dropped after forward and computed again in backward."""

    NONE = "none"
    SELECTIVE = "selective"  # engine's own notion: Megatron core attention, torchtitan per-operator
    FULL = "full"  # every layer keeps only its input


class AttentionKernel(StrEnum):
    """Implementation of softmax(QK)V."""

    FLASH = "flash"
    EFFICIENT = "efficient"
    CUDNN = "cudnn"
    EAGER = "eager"  # scores are materialised


class Loss(StrEnum):
    """Implementation of the language-model head and its cross entropy."""

    EAGER = "eager"  # logits, then PyTorch's cross entropy in fp32
    COMPILED = "compiled"  # torch.compile fuses upcast and softmax
    FUSED = "fused"  # one kernel over materialised logits (TE, Liger, Megatron native fusion)
    FUSED_LINEAR = "fused_linear"  # logits never materialised whole (Liger FLCE, cut cross entropy)
    CHUNKED = "chunked"  # logits chunk by chunk over the sequence


class Precision(StrEnum):
    """A recipe: which dtype holds weights, computes, and holds gradients and optimizer states."""

    FP64 = "fp64"
    FP32 = "fp32"
    TF32 = "tf32"
    AMP_FP16 = "amp-fp16"  # torch.autocast: fp32 weights, cached 16-bit casts
    AMP_BF16 = "amp-bf16"
    MIXED_FP16 = "mixed-fp16"  # 16-bit weights, fp32 master copy in the optimizer (Megatron, DeepSpeed)
    MIXED_BF16 = "mixed-bf16"
    BF16 = "bf16"  # pure: weights, gradients and states all bf16
    FP16 = "fp16"
    FP8 = "fp8"  # fp8 matrix products over MIXED_BF16


class Phase(StrEnum):
    """Parts of a run with peaks of their own."""

    LOAD = "load"
    FIRST_STEP = "first step"
    STEP = "step"
    EVALUATION = "evaluation"
    WARM_UP = "warm-up"  # serving: sampler and graphs, before the first request
    SERVING = "serving"
    CHECKPOINT = "checkpoint"


GENERATES: Final = ("ppo", "grpo", "rloo")
"""Objectives that learn from answers which the model writes while it trains."""

ANSWERS: Final = ("dpo", "kto", "gkd", *GENERATES)
"""Objectives that rate what a language model writes."""


class Workload(Noun, frozen=True):
    """One optimizer step's data."""

    seq_len: int = 4096  # positions per sample, of the longest where they differ [tokens]
    min_seq_len: int | None = None  # of the shortest sample, where their lengths differ [tokens]
    micro_batch: int = 1  # samples per forward on one data-parallel rank [count]
    grad_accum: int = 1  # micro-batches per optimizer step [count]
    decoder_seq_len: int | None = None  # encoder-decoder models: positions of the decoder
    image_size: int | None = None  # vision towers [pixels per side]
    images: int = 1  # images per sample; 0: samples of text alone
    objective: Literal[
        "pretrain", "sft", "dpo", "kto", "gkd", "ppo", "grpo", "rloo", "reward", "classification", "tagging"
    ] = "pretrain"
    completion_len: int = 0  # generated tokens per sample (GENERATES, evaluation with generation)

    def __post_init__(self) -> None:
        counts = ("seq_len", "min_seq_len", "micro_batch", "grad_accum", "decoder_seq_len", "image_size")
        require_counts(self, *counts, zero=("completion_len", "images"))

    @property
    def tokens(self) -> int:
        return self.seq_len * self.micro_batch


class Peft(Noun, frozen=True):
    """Parameter-efficient fine-tuning."""

    method: str = "lora"  # key of operators.lora.ADAPTERS, or "prefix", "prompt", "ln", "adapter", "modules"
    rank: int = 8
    targets: tuple[str, ...] = ("attention.q", "attention.v")  # words of blocks.parameters.targets
    modules_to_save: tuple[str, ...] = ()  # trained whole: "embedding", "head", "classifier"
    virtual_tokens: int = 0  # prefix and prompt tuning
    dropout: float = 0.0
    base: Literal["full", "nf4", "nf4-dq", "int8", "gptq-int4", "gptq-int8", "awq-int4"] = "full"  # of frozen weights
    adapter_dtype: str = "fp32"
    trainable_parameters: int | None = None  # known from a run: overrides the count by rank and targets

    def __post_init__(self) -> None:
        require_counts(self, "rank", "trainable_parameters", zero=("virtual_tokens",))
        if not 0 <= self.dropout < 1:
            raise InvalidSpec("lora-dropout={:g} must be from 0 up to, but not, 1", self.dropout)


OPTIONAL_COUNTS: Final = ("etp", "first_stage_layers", "last_stage_layers", "shard_group", "recompute_layers")


WITHOUT_TARGETS: Final = ("prefix", "prompt", "ln", "adapter", "modules")
"""PEFT methods that name no weights to adapt."""


class Plan(Noun, frozen=True):
    """How the work is split and what is spent to save memory. Data parallelism is what the other degrees leave."""

    tp: int = 1
    pp: int = 1
    cp: int = 1
    ep: int = 1
    etp: int | None = None  # tensor parallelism inside experts; None: as tp
    virtual_stages: int = 1  # model chunks per pipeline rank (interleaved 1F1B)
    schedule: Literal["1f1b", "interleaved", "gpipe"] = "1f1b"
    first_stage_layers: int | None = None
    last_stage_layers: int | None = None
    sequence_parallel: bool | None = None  # None: the engine's default
    cp_kind: Literal["ring", "ulysses", "allgather"] = "ring"
    shards: Shards = Shards.NOTHING
    sharded_by: Literal["fsdp1", "fsdp2", "deepspeed"] | None = None  # what does the sharding; None: the engine's own
    shard_group: int | None = None  # HSDP: ranks that share one copy; None: the whole data-parallel group
    reshard_after_forward: bool = True
    precision: Precision = Precision.MIXED_BF16
    optimizer: str = "adamw"
    optimizer_kernel: Literal["foreach", "fused", "loop"] | None = None
    recompute: Recompute = Recompute.NONE
    recompute_layers: int | None = None  # only that many layers of a stage; None: all
    recompute_modules: tuple[str, ...] = ()  # what SELECTIVE drops
    attention: AttentionKernel | None = None  # None: the engine's default
    loss: Loss | None = None  # None: the engine's default
    compile: bool = False
    offload_optimizer: Literal["none", "cpu", "nvme"] = "none"
    offload_parameters: Literal["none", "cpu", "nvme"] = "none"
    offload_activations: bool = False
    freeze: tuple[str, ...] = ()  # parts that do not learn: names of stacks, "projector", "embedding", "head"
    peft: Peft | None = None

    def __post_init__(self) -> None:
        require_counts(self, "tp", "pp", "cp", "ep", "virtual_stages", *OPTIONAL_COUNTS)

    @property
    def model_parallel(self) -> int:
        """Ranks that hold one copy of the dense weights together."""
        return self.tp * self.pp

    def data_parallel(self, num_gpus: int) -> int:
        """Data-parallel ranks on a cluster of `num_gpus`, context parallelism not counted in."""
        divisor = self.tp * self.pp * self.cp
        if num_gpus % divisor:
            raise InvalidSpec(
                "tp={} x pp={} x cp={} = {} does not divide {} GPUs; use a multiple of {} GPUs or smaller degrees",
                self.tp, self.pp, self.cp, divisor, num_gpus, divisor
            )
        return num_gpus // divisor


class Job(Noun, frozen=True):
    """One training question, complete."""

    model: Model
    workload: Workload
    plan: Plan
    cluster: Cluster
    engine: str = "pytorch"
    engine_version: Version | None = None  # as the question names it; None: the newest that is known
    engine_options: dict[str, str | int | float | bool] = {}
    alloc_conf: str = ""  # PYTORCH_CUDA_ALLOC_CONF
    env: dict[str, str] = {}  # memory-relevant environment (CUBLAS_WORKSPACE_CONFIG ...)
    run_tokens: int | None = None  # of the whole run, where the question names it
    global_batch: int | None = None  # samples of an optimizer step, where the question names them: grad_accum follows
    teacher: Model | None = None  # whose logits the model learns from (gkd)
    calibration: Calibration | None = None  # what a measured run taught
    assumed: tuple[str, ...] = ()  # of what the question leaves open, one sentence each

    @property
    def data_parallel(self) -> int:
        return self.plan.data_parallel(self.cluster.count)

    @property
    def replicas(self) -> int:
        """Ranks that each hold the weights of a model-parallel group, or a share of them: context parallelism divides
        samples among such ranks."""
        return self.data_parallel * self.plan.cp


def require_counts(noun: Noun, *names: str, zero: tuple[str, ...] = ()) -> None:
    """Fields of a noun as counts; None leaves a choice open.

    Args:
        noun: whose fields
        names: those that count from 1
        zero: those that count from 0

    Raises: InvalidSpec as `require_count` does
    """
    for name in names:
        value = getattr(noun, name)
        if type(value) is int and 1 <= value <= LARGEST_COUNT:
            continue  # in line: a search makes some 10^5 plans
        if value is not None:
            require_count(name.replace("_", "-"), value)
    for name in zero:
        value = getattr(noun, name)
        if value is not None:
            require_count(name.replace("_", "-"), value, least=0)


def require_count(name: str, value: object, *, least: int = 1) -> int:
    """`value` as a count, or one sentence that says why not."""
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= LARGEST_COUNT:
        raise InvalidSpec("{}={!r} must be a whole number from {} to {}", name, value, least, LARGEST_COUNT)
    return value


def share(name: str, size: int, ranks: int, *, what: str) -> int:
    """`size / ranks`, or one sentence naming the divisors that would work."""
    if size % ranks:
        fits = [str(n) for n in range(1, min(size, 1024) + 1) if size % n == 0 and n <= 64]
        raise InvalidSpec(
            "{}={} does not divide {}={}; use {} or {}", name, ranks, what, size, ", ".join(fits[:-1]), fits[-1]
        )
    return size // ranks


__all__ = ["AttentionKernel", "Job", "Loss", "Peft", "Phase", "Plan", "Precision", "Recompute", "Shards", "Workload",
           "ceil_div", "require_count", "require_counts", "share"]


class RankProgram(Struct, frozen=True, kw_only=True):
    """Ranks that use the same memory are one role.

    The phases run in their order of declaration; what one leaves allocated the next one finds.
    `outside` lives beside the caching allocator: CUDA context, library handles, NCCL buffers.
    """

    role: str  # "all", "first stage", "last stage", "expert owner" ...
    count: int  # ranks of the role
    phases: Mapping[Phase, Program]
    outside: tuple[Tensor, ...] = ()
    alloc_conf: str = ""  # PYTORCH_CUDA_ALLOC_CONF the engine's launcher sets where the job says nothing
    assumptions: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    has_lengths: bool = False  # its steps are of many lengths

    def require_sound(self) -> None:
        """Refuse what no process could do, before its memory is answered: a search that reads sums alone need not.

        Raises: BrokenProgram, a bug of the engine
        """
        freed = freed_unallocated(tuple(chain.from_iterable(self.phases.values())))
        if freed is not None:
            size = freed.num_bytes
            raise BrokenProgram(f"{self.role} frees {freed.path} of {size} bytes, which it has not allocated")

    @property
    def steady(self) -> Phase:
        """The phase whose peak is the answer: a training step, or serving at full load."""
        return Phase.SERVING if Phase.SERVING in self.phases else Phase.STEP
