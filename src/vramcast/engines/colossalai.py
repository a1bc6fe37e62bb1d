"""ColossalAI's LowLevelZeroPlugin (ZeRO 1 and 2) with HybridAdam, as ColossalChat's trainers use it.

[CA] ColossalAI colossalai/zero/low_level/low_level_optim.py `LowLevelZeroOptimizer`: 16-bit weights, fp32 partition per
weight, 16-bit gradient partitions that stay beside their fp32 copies while the optimizer steps.
[CC] applications/ColossalChat/coati/trainer/{sft,dpo,orpo,simpo}.py: `outputs`, with logits in fp32, is a variable of
the loop and lives until backward has ended.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

from msgspec.structs import replace

from vramcast.domain.cublas import blas_workspaces
from vramcast.domain.job import Job, Phase, Precision, RankProgram, Shards
from vramcast.domain.program import Alloc, Category, Free, Loop, Node, Program, TensorsOf
from vramcast.engines.eager.passes import free_gradients, inference, passes
from vramcast.engines.eager.question import packing_sentences, recipe_of
from vramcast.engines.eager.recipe import Recipe, elements, weights
from vramcast.engines.pytorch import one_role
from vramcast.errors import Unsupported
from vramcast.operators.linear import Numerics
from vramcast.operators.lowering import WeightGradients
from vramcast.states.optimizers import optimizer
from vramcast.states.steps import Weight, weight_program
from vramcast.units import FP32, HALF, ceil_div

BUCKET: Final = 12 * 1024 * 1024
"""`reduce_bucket_size_in_m` of LowLevelZeroPlugin [elements]."""


class Trainer(NamedTuple):
    """What a ColossalChat trainer runs and holds per micro-batch."""

    answers: int  # sequences of one sample in the forward that learns
    kept_logits: int  # bytes per logit that variables of the loop hold during backward
    reference: bool = False  # a frozen copy of the weights


TRAINERS: Final[dict[str, Trainer]] = {
    "sft": Trainer(1, 4),
    "simpo": Trainer(2, 4),
    "orpo": Trainer(2, 8),  # and the log-probabilities behind the loss of the chosen answers
    "dpo": Trainer(2, 8, reference=True),
    "kto": Trainer(1, 16, reference=True),  # policy and reference, each on answers and on the KL batch
}
"""Trainers of coati/trainer by name."""


def ranks(job: Job) -> tuple[RankProgram, ...]:
    """The one role of data-parallel ranks.

    `engine_options`: "trainer", a key of TRAINERS; "sft" where it is not named.

    Raises: Unsupported for Gemini's chunks, ZeRO-3 and model parallelism
    """
    plan = job.plan
    if plan.shards is Shards.EVERYTHING or plan.offload_parameters != "none":
        raise Unsupported(
            "Gemini's chunked weights are not modelled for --engine colossalai; use --shards optimizer+gradients, or "
            "--engine deepspeed"
        )
    if plan.precision not in (Precision.MIXED_BF16, Precision.MIXED_FP16, Precision.BF16, Precision.FP16):
        raise Unsupported("precision {} is not modelled for --engine colossalai; use mixed-bf16", plan.precision)
    name = str(job.engine_options.get("trainer", "dpo" if job.workload.objective == "dpo" else "sft"))
    if name not in TRAINERS:
        raise Unsupported("ColossalChat's trainer {} is not modelled; use one of {}", name[:40], ", ".join(TRAINERS))
    if job.workload.objective in ("ppo", "grpo", "reward"):
        raise Unsupported(
            "objective={} is not modelled for --engine colossalai; use sft or dpo", job.workload.objective
        )
    trainer = TRAINERS[name]
    recipe = recipe_of(job, loss="huggingface_shifted" if name == "sft" else "eager")
    sizes = replace(
        recipe.sizes, batch=job.workload.micro_batch * trainer.answers, numerics=Numerics(HALF, HALF, HALF, HALF)
    )
    if sizes.adapter is not None:
        sizes = replace(sizes, adapter=replace(sizes.adapter, width=HALF, compute=HALF))
    recipe = replace(recipe, sizes=sizes, kept_logits=trainer.kept_logits)
    return (one_role(job, _phases(job, recipe, trainer), *packing_sentences(job)),)


_tensor: Final = TensorsOf(owner="low level zero", source="colossalai/zero/low_level/low_level_optim.py")


def _phases(job: Job, recipe: Recipe, trainer: Trainer) -> Mapping[Phase, Program]:
    held = weights(recipe)
    partition = ceil_div(elements(held, learning_only=True), job.data_parallel)
    offloaded = job.plan.offload_optimizer != "none"
    load: list[Node] = [*weight_program(held)]
    if trainer.reference:
        load += weight_program(replace(weight, owner=f"reference.{weight.owner}") for weight in held)
    states: list[Node] = []
    if not offloaded:
        load.append(Alloc(_tensor("fp32 weights", partition * FP32, Category.OPTIMIZER)))
        made = optimizer(job.plan.optimizer).state_tensors((partition,), width=FP32)
        states = [Alloc(_tensor(state.name, state.num_bytes, Category.OPTIMIZER)) for state in made]
    return {
        Phase.LOAD: tuple(load),
        Phase.FIRST_STEP: (*blas_workspaces(job), *_step(job, recipe, held, tuple(states))),
        Phase.STEP: _step(job, recipe, held, ()),
        Phase.EVALUATION: inference(recipe),
        Phase.CHECKPOINT: (),
    }


def _step(job: Job, recipe: Recipe, held: tuple[Weight, ...], states: Program) -> Program:
    """Micro-batches, whose gradients are reduced bucket by bucket; then the update of this rank's partition."""
    ranks_sharing = job.data_parallel if job.plan.shards is Shards.OPTIMIZER_AND_GRADIENTS else 1
    one = passes(recipe, policy=WeightGradients.TRANSIENT, shares=ranks_sharing)
    learning = elements(held, learning_only=True)
    size = min(BUCKET, learning) * HALF
    buckets = [_tensor(name, size, Category.COMMUNICATION) for name in ("bucket", "flat bucket")]
    born, died = tuple(map(Alloc, buckets)), tuple(map(Free, buckets))
    nodes: list[Node] = [*one.forward, *born, *one.backward, *died]
    if job.workload.grad_accum > 1:
        later = passes(recipe, policy=WeightGradients.TRANSIENT)
        again = (*later.forward, *born, *later.backward, *died)
        nodes.append(Loop(job.workload.grad_accum - 1, again, label="micro-batches"))
    return (*nodes, *_update(job, held, states), *free_gradients(one.gradients))


def _update(job: Job, held: tuple[Weight, ...], states: Program) -> Program:
    """fp32 copies of all gradients beside the 16-bit ones; with offload one weight at a time."""
    ranks_sharing = job.data_parallel
    largest = ceil_div(max((weight.elements for weight in held if weight.learns), default=0), ranks_sharing)
    partition = ceil_div(elements(held, learning_only=True), ranks_sharing)
    copied = largest if job.plan.offload_optimizer != "none" else partition
    wide = _tensor("fp32 gradients", copied * FP32, Category.GRADIENTS)
    gathered = _tensor("updated weight", largest * HALF, Category.COMMUNICATION)
    return (Alloc(wide), *states, Alloc(gathered), Free(gathered), Free(wide))
