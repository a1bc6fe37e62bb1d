"""What a question about the largest model looks among.

LLaMA-like decoders of any size from 100M parameters up, without gaps; and sets of techniques that a job can be run
with, from none to all: what one card does, then several, then main memory.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Literal, NamedTuple

from msgspec.structs import replace

from vramcast.blocks.parameters.model import count_parameters
from vramcast.domain.job import Job, Precision, Recompute, Shards
from vramcast.domain.model import MLP, Attention, Layer, Model, Run, Stack
from vramcast.estimate.variants import on_engine, with_new_adapters, with_plan
from vramcast.units import round_up

HEAD_DIM: Final = 128
VOCABULARY: Final = 32000
LAYERS_OF_STEP: Final = 8
HIDDEN_OF_STEP: Final = 1024
"""Layers and width grow together in steps of 8 and 1024, as in LLaMA: 32 x 4096 is 7B, 40 x 5120 13B, and tensor and
pipeline degrees up to 8 divide them."""

PARAMETERS_OF_STEP: Final = 12 * HIDDEN_OF_STEP**2 * LAYERS_OF_STEP
"""12 H^2 a layer: 4 H^2 of attention and 3 x H x 8/3 H of a gated MLP; times the cube of the step's number."""

WIDTH_MULTIPLE: Final = 64


def scaled_model(parameters: int) -> Model:
    """The decoder with at most so many parameters: its feed-forward width takes what depth and width leave.

    >>> count_parameters(scaled_model(7_000_000_000)).total
    6990073856
    """
    step = max(1, round((parameters / PARAMETERS_OF_STEP) ** (1 / 3)))
    while step > 1 and count_parameters(_decoder(step, WIDTH_MULTIPLE)).total > parameters:
        step -= 1
    bare = count_parameters(_decoder(step, WIDTH_MULTIPLE)).total
    a_width = 3 * step * HIDDEN_OF_STEP * step * LAYERS_OF_STEP
    width = WIDTH_MULTIPLE + max(0, parameters - bare) // a_width
    return _decoder(step, max(WIDTH_MULTIPLE, round_up(width + 1, WIDTH_MULTIPLE) - WIDTH_MULTIPLE))


def _decoder(step: int, width: int) -> Model:
    hidden = step * HIDDEN_OF_STEP
    heads = hidden // HEAD_DIM
    attention = Attention(num_heads=heads, num_kv_heads=heads, head_dim=HEAD_DIM)
    layer = Layer(mixer=attention, channel=MLP(width=width, gated=True))
    stack = Stack(name="decoder", hidden=hidden, runs=(Run(count=step * LAYERS_OF_STEP, layer=layer),))
    return Model(name="LLaMA-like", family="llama", vocab=VOCABULARY, stacks=(stack,))


Build = Callable[[Job], Job | None]
"""The job with a set of techniques instead of its own; None where it does not apply."""


class Rung(NamedTuple):
    """One set of techniques."""

    name: str
    build: Build
    allow: str = ""  # what `--allow` must name for it; empty: it is tried by itself


def alone(job: Job) -> Job:
    """The same work on one card."""
    return copies(replace(job, cluster=replace(job.cluster, gpus_per_node=1, num_nodes=1)))


def copies(job: Job, engine: str = "pytorch") -> Job:
    """Everything copied to every card, nothing dropped or moved."""
    plain = with_plan(
        job, tp=1, pp=1, cp=1, ep=1, etp=None, virtual_stages=1, schedule="1f1b", shards=Shards.NOTHING,
        shard_group=None, recompute=Recompute.NONE, recompute_layers=None, recompute_modules=(),
        offload_optimizer="none", offload_parameters="none", offload_activations=False,
    )
    return on_engine(plain, engine)


def recomputed(job: Job) -> Job:
    """Copies that keep only the input of every layer."""
    return with_plan(copies(job), recompute=Recompute.FULL)


def eight_bit(job: Job) -> Job | None:
    """With recomputation, and 8-bit optimizer states."""
    return with_plan(recomputed(job), optimizer="adamw-8bit") if job.plan.optimizer in ("adam", "adamw") else None


def pure_bf16(job: Job) -> Job | None:
    """With recomputation, and weights, gradients and states in bf16."""
    possible = job.plan.peft is None and job.cluster.gpu.has_bf16
    return with_plan(recomputed(job), precision=Precision.BF16) if possible else None


def sharded(shards: Shards, recompute: Recompute, engine: str = "deepspeed") -> Build:
    """That much shared between all cards."""

    def build(job: Job) -> Job | None:
        if job.cluster.count == 1:
            return None
        return with_plan(copies(job, engine), shards=shards, recompute=recompute)

    return build


def tensor(job: Job) -> Job | None:
    """Layers split over the cards of a machine, optimizer states over the machines."""
    degree = job.cluster.gpus_per_node
    if degree == 1:
        return None
    return with_plan(copies(job, "megatron"), tp=degree, shards=Shards.OPTIMIZER, recompute=Recompute.FULL)


def pipeline(job: Job) -> Job | None:
    """And a pipeline stage in every machine."""
    split = tensor(job)
    return with_plan(split, pp=job.cluster.num_nodes) if split is not None and job.cluster.num_nodes > 1 else None


def offloaded(job: Job) -> Job:
    """Everything sharded where there are several cards, the optimizer in main memory."""
    shards = Shards.EVERYTHING if job.cluster.count > 1 else Shards.NOTHING
    whole = with_plan(copies(job, "deepspeed"), shards=shards, recompute=Recompute.FULL)
    return with_plan(whole, offload_optimizer="cpu")


def all_offloaded(job: Job) -> Job:
    """The weights in main memory as well."""
    return with_plan(offloaded(job), shards=Shards.EVERYTHING, offload_parameters="cpu")


def adapters(base: Literal["full", "nf4-dq"]) -> Build:
    """LoRA beside frozen weights, with recomputation."""

    def build(job: Job) -> Job | None:
        if job.plan.peft is not None:
            return None
        return with_new_adapters(on_engine(recomputed(job), "huggingface"), base)

    return build


RUNGS: Final[tuple[Rung, ...]] = (
    Rung("copies", copies),
    Rung("full recomputation", recomputed),
    Rung("ZeRO 1", sharded(Shards.OPTIMIZER, Recompute.NONE)),
    Rung("ZeRO 2", sharded(Shards.OPTIMIZER_AND_GRADIENTS, Recompute.NONE)),
    Rung("ZeRO 3", sharded(Shards.EVERYTHING, Recompute.NONE)),
    Rung("FSDP", sharded(Shards.EVERYTHING, Recompute.NONE, "torchtitan")),
    Rung("ZeRO 3, full recomputation", sharded(Shards.EVERYTHING, Recompute.FULL)),
    Rung("FSDP, full recomputation", sharded(Shards.EVERYTHING, Recompute.FULL, "torchtitan")),
    Rung("tensor parallelism, ZeRO 1, full recomputation", tensor),
    Rung("tensor and pipeline parallelism, full recomputation", pipeline),
    Rung("8-bit optimizer, full recomputation", eight_bit, "8bit-optimizer"),
    Rung("pure bf16, full recomputation", pure_bf16, "pure-bf16"),
    Rung("optimizer on the CPU, full recomputation", offloaded, "offload"),
    Rung("weights and optimizer on the CPU", all_offloaded, "offload-parameters"),
    Rung("LoRA, full recomputation", adapters("full"), "peft"),
    Rung("QLoRA, full recomputation", adapters("nf4-dq"), "peft"),
)
"""In order of what a user gives up, least first."""
