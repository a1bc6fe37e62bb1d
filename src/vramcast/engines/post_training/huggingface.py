"""TRL's GRPOTrainer and RLOOTrainer beside a vLLM: transformers' Trainer, DDP, ZeRO or FSDP as Accelerate runs them.

One step of `train` holds everything but the answers: the engine writes them. A micro-batch is padded to its longest
prompt and answer; the reference and the policy rate it inside the step.
[TRL] huggingface/trl f2cd577 trl/trainer/grpo_trainer.py; trl/generation/vllm_generation.py `sync_weights`: one weight
after the other, under ZeRO-3 gathered one at a time; adapters are merged, for which all weights are gathered at once
[swift] modelscope/ms-swift 3602360 swift/rlhf_trainers/rollout_mixin.py `split_batches`: all weights are gathered at
once, or so many parts of the layers and then the rest (`move_model_batches`); `offload_model`, `offload_optimizer`:
weights and moments leave while the engine starts and generates, fp32 weights and gradients of DeepSpeed stay
[unsloth] unslothai/unsloth-zoo ce232d6c unsloth_zoo/vllm_utils.py `convert_vllm_to_huggingface`, `load_lora`: frozen
weights are the engine's, adapters are copied into its slot
"""

from __future__ import annotations

from importlib import import_module
from typing import Final

from msgspec.structs import replace

from vramcast.blocks.parameters.model import count_parameters, named_parameters
from vramcast.domain.job import Job, Phase, Shards
from vramcast.domain.post_training import PostTrainingJob
from vramcast.domain.program import Category, Program, Tensor, live_at_end
from vramcast.engines.eager.releases import sharder
from vramcast.engines.post_training.batches import Batches, trainer_cluster
from vramcast.engines.post_training.releases import release_of
from vramcast.engines.post_training.trainer import Network, num_bytes
from vramcast.engines.training import Sharder, engine_of
from vramcast.units import ceil_div

BETA: Final = 0.04
"""Weight of a KL term where one is asked for: any but 0 loads a reference."""

HALF: Final = 2


def train_job(job: PostTrainingJob, found: Batches) -> Job:
    """The update as a job of TRL's trainer, whose answers come from elsewhere."""
    assert job.trainer is not None
    options = job.trainer.engine_options
    shares = {"shares_weights": True} if release_of(job).shares_weights else {}
    beta = (options.get("beta") or BETA) if job.updates.reference else 0.0
    workload = replace(
        job.trainer.workload, seq_len=job.episodes.prompt_len, completion_len=job.episodes.response_len,
        micro_batch=found.samples, grad_accum=found.accumulated,
    )
    return replace(job.trainer, workload=workload, plan=job.plan, cluster=trainer_cluster(job),
                   engine_options={**options, "beta": beta, "handed_over": True, **shares})  # in a stage of its own


def actor(job: PostTrainingJob, found: Batches) -> Network:
    """The network that learns, and the reference that its trainer holds beside it."""
    alone = train_job(job, found._replace(accumulated=min(found.accumulated, 2)))
    (role,) = import_module(engine_of(alone).module).ranks(alone)
    load, first = role.phases[Phase.LOAD], role.phases[Phase.FIRST_STEP]
    held = tuple(live_at_end(load).items())
    weights = tuple((tensor, count) for tensor, count in held if tensor.category is Category.WEIGHTS)
    moments = tuple((tensor, count) for tensor, count in held
                    if tensor.category is Category.OPTIMIZER and not tensor.name.endswith("weights"))
    made = tuple((tensor, count) for tensor, count in live_at_end((*load, *first)).items()
                 if tensor.category is Category.OPTIMIZER and tensor not in dict(held))
    return Network(load, weights, moments, made, first, role.phases[Phase.STEP])


def is_sharded(job: PostTrainingJob) -> bool:
    """Whether weights come to the card when Accelerate prepares them: behind the start of the engine, in the trainer's
    `__init__`, which the Trainer's own leaves on the host [TRL grpo_trainer.py `__init__`]."""
    return _sharder(job) is not None


def _sharder(job: PostTrainingJob) -> Sharder | None:
    assert job.trainer is not None
    return sharder(replace(job.trainer, plan=job.plan, cluster=trainer_cluster(job)))


def held_before(job: PostTrainingJob, learning: Network) -> int:
    """Of ZeRO-3 its partitions, which `from_pretrained` makes; of whole weights all but the reference's [bytes]."""
    by = _sharder(job)
    if job.updates.leaves or release_of(job).shares_weights:
        return 0
    if by is not None and not (by == "deepspeed" and job.plan.shards is Shards.EVERYTHING):
        return 0
    return num_bytes(tuple((tensor, count) for tensor, count in learning.weights
                           if tensor.category is Category.WEIGHTS and not tensor.owner.startswith("reference")))


def reference(job: PostTrainingJob, found: Batches) -> Network:
    """Part of what the trainer loads."""
    del job, found
    return Network(())


def log_prob(job: PostTrainingJob, found: Batches, *, entropy: bool, reference: bool = False) -> Program:
    """Inside the update."""
    del job, found, entropy, reference
    return ()


def _part(job: PostTrainingJob, parameters: int) -> int:
    """Weights that ms-swift gathers at once [swift]."""
    if job.rollout.parts is None:
        return parameters
    layers = job.model.num_layers
    each = [owned for owned in named_parameters(job.model) if ".layers." in owned.owner]
    inside = sum(owned.parameter.elements * owned.repeats for owned in each)
    return max(parameters - inside, inside * ceil_div(layers, job.rollout.parts) // layers)


def handover(job: PostTrainingJob, learning: Network) -> tuple[Tensor, ...]:
    """What is gathered to be handed over: one weight, or all of them where adapters are merged."""
    del learning
    if job.plan.shards is not Shards.EVERYTHING or job.trainer_gpus == 1:
        return ()
    parameters = count_parameters(job.model).total
    largest = max(owned.parameter.elements for owned in named_parameters(job.model))
    elements = parameters if job.plan.peft is not None else largest
    if job.framework == "ms-swift":
        elements = _part(job, parameters)
    return (Tensor(
        name="weights gathered to be handed over", num_bytes=elements * HALF, category=Category.COMMUNICATION,
        owner="handover", formula=f"{elements:,} x {HALF} B", source="trl/generation/vllm_generation.py",
    ),)

