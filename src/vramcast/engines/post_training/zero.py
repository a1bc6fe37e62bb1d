"""What OpenRLHF's processes do with the networks that they train and ask, under DeepSpeed's ZeRO.

[actor] OpenRLHF/OpenRLHF 3c3be62 openrlhf/models/actor.py `Actor.forward`: logits are made fp32 before their
log-probabilities, with gradients and without; an entropy is computed where it is part of the loss
[ds] openrlhf/utils/deepspeed/deepspeed_utils.py `get_train_ds_config`, `get_eval_ds_config`: DeepSpeed's sizes where
"auto" stands; reference and reward network are partitioned under ZeRO-3 and whole under any other stage;
`offload_deepspeed_states`: states of the optimizer, fp32 weights and gradients leave, 16-bit weights stay
[sync] openrlhf/trainer/ray/ppo_actor.py `broadcast_to_vllm`: one weight after the other, gathered, and cloned where the
engine is on the same cards
"""

from __future__ import annotations

from typing import Final

from msgspec.structs import replace

from vramcast.blocks.parameters.model import named_parameters
from vramcast.domain.job import AttentionKernel, Job, Phase, Shards, Workload
from vramcast.domain.model import Model, scorer
from vramcast.domain.post_training import PostTrainingJob
from vramcast.domain.program import Category, Program, Tensor, live_at_end
from vramcast.engines.deepspeed import settings
from vramcast.engines.eager.question import recipe_of
from vramcast.engines.eager.recipe import Recipe
from vramcast.engines.eager.releases import with_its_kernels
from vramcast.engines.eager.zero import Zero, frozen_load, rating_pass, zero_phases
from vramcast.engines.post_training.batches import Batches, trainer_cluster
from vramcast.engines.post_training.trainer import Network
from vramcast.operators.linear import Numerics
from vramcast.operators.loss import upcast_policy_loss

HALF: Final = 2

ROUNDS: Final = 2
"""Micro-batches of an optimizer step worth playing [count]."""


def train_job(job: PostTrainingJob, found: Batches) -> Job:
    """The update as a training job of DeepSpeed."""
    plan = job.plan
    return Job(
        model=job.model,
        workload=Workload(seq_len=found.tokens // found.samples, micro_batch=found.samples,
                          grad_accum=found.accumulated, objective="sft"),
        plan=replace(plan, attention=plan.attention or AttentionKernel.FLASH),
        cluster=trainer_cluster(job),
        engine="deepspeed",
        engine_options={"overlap_comm": plan.shards is Shards.EVERYTHING, **job.trainer_options},
    )


def _recipe(made: Job, loss: str) -> tuple[Recipe, Zero]:
    recipe = with_its_kernels(recipe_of(made, loss=loss), made)
    sizes = replace(recipe.sizes, numerics=Numerics(HALF, HALF, HALF, HALF))
    return replace(recipe, sizes=sizes), settings(made, HALF)


def _frozen(recipe: Recipe) -> Recipe:
    return replace(recipe, sizes=replace(recipe.sizes, frozen=True), learning=())


def actor(job: PostTrainingJob, found: Batches) -> Network:
    """The network that learns."""
    return _network(job, found, upcast_policy_loss("compiled" if job.updates.entropy else ""))


def critic(job: PostTrainingJob, found: Batches) -> tuple[Network, Program]:
    """The network that estimates values, and one pass of it without gradients."""
    valued = replace(job, model=scorer(job.critic or job.model))
    rated, _ = reward(job, found, valued.model)
    return _network(valued, found, "torch"), rated


def _network(job: PostTrainingJob, found: Batches, loss: str) -> Network:
    few = found._replace(accumulated=min(found.accumulated, ROUNDS))
    phases = zero_phases(*_recipe(train_job(job, few), loss))
    held = live_at_end(phases[Phase.LOAD])
    moved = (Category.OPTIMIZER, Category.GRADIENTS)
    weights, masters = (
        tuple((tensor, count) for tensor, count in held.items() if (tensor.category in moved) is leaves)
        for leaves in (False, True)
    )
    return Network(phases[Phase.LOAD], weights, masters, (), phases[Phase.FIRST_STEP], phases[Phase.STEP])


def reference(job: PostTrainingJob, found: Batches) -> Network:
    """The network as it was."""
    recipe, zero = _recipe(train_job(job, found), upcast_policy_loss())
    offloads = job.updates.offload_reference and job.plan.shards is Shards.EVERYTHING
    load = frozen_load(_frozen(recipe), replace(zero, offload_parameters=bool(offloads)))
    return Network(load, tuple(live_at_end(load).items()))


def reward(job: PostTrainingJob, found: Batches, model: Model) -> tuple[Program, Network]:
    """A pass of a network that rates with one number, and what is kept of it."""
    recipe, zero = _recipe(train_job(replace(job, model=model), found), "torch")
    load = frozen_load(_frozen(recipe), zero)
    return rating_pass(_frozen(recipe), zero), Network(load, tuple(live_at_end(load).items()))


def log_prob(job: PostTrainingJob, found: Batches, *, entropy: bool, reference: bool = False) -> Program:
    """Log-probabilities of the answers without gradients, one micro-batch; no entropy is computed besides."""
    del entropy, reference
    recipe, zero = _recipe(train_job(job, found), upcast_policy_loss())
    return rating_pass(_frozen(recipe), zero)


def handover(job: PostTrainingJob, learning: Network) -> tuple[Tensor, ...]:
    """The largest weight, gathered where it is partitioned, and its clone for an engine on the same cards [sync]."""
    del learning
    largest = max(parameter.parameter.elements for parameter in named_parameters(job.model))
    made = {
        "largest weight, gathered": job.plan.shards is Shards.EVERYTHING and job.trainer_gpus > 1,
        "largest weight, cloned": job.rollout.gpus is None,
    }
    return tuple(
        Tensor(name=name, num_bytes=largest * HALF, category=Category.COMMUNICATION, owner="handover",
               formula=f"{largest:,} x {HALF} B", source="openrlhf/trainer/ray/ppo_actor.py")
        for name, is_made in made.items() if is_made
    )
