"""What a trainer process does with a network that Megatron-Core splits.

[verl] verl/utils/megatron_utils.py `offload_megatron_model_to_cpu`, `offload_megatron_optimizer`: weights and gradient
buffers leave together, fp32 weights and moments with the optimizer; verl/workers/megatron_workers.py; utils/megatron/
tensor_parallel.py `vocab_parallel_entropy`: logits are cloned, and their fp32 softmax is kept
[nemo] nemo_rl/models/policy/workers/megatron_policy_worker.py `offload_before_refit`, `offload_after_refit`
"""

from __future__ import annotations

from typing import Final

from msgspec.structs import replace

from vramcast.blocks.parameters.model import named_parameters
from vramcast.domain.job import Job, Phase, RankProgram, Recompute, Shards, Workload
from vramcast.domain.model import LinearAttention, scorer
from vramcast.domain.post_training import PostTrainingJob
from vramcast.domain.program import Alloc, Category, Free, Program, Tensor, extent, live_at_end
from vramcast.engines.megatron import ranks
from vramcast.engines.post_training.batches import Batches, batches, trainer_cluster
from vramcast.engines.post_training.releases import is_swift_on_megatron, release_of
from vramcast.engines.post_training.trainer import ON_HOST, Network
from vramcast.errors import InvalidSpec, Unsupported
from vramcast.units import MIB, ceil_div

LOGIT_BYTES = 12
"""Of logits, their clone, and two copies in fp32 while an entropy is taken [verl]."""


OF_NEMO_RL: Final[dict[str, str | bool | int]] = {"accumulate_in_fp32": False, "precision_aware": True}
"""[nemo] examples/configs/grpo_math_1B.yaml `grad_reduce_in_fp32`, `use_precision_aware_optimizer`: every recipe begins
with it."""


OF_SWIFT: Final[dict[str, str | bool | int]] = {
    "cross_entropy": "policy", "adapters": "mcore-bridge", "attention_mask": False, "attention_backend": "flash",
    "rope_fusion": False, "vocab_divisor": 1, "router_fp32": True,
}
"""[swift] modelscope/ms-swift 3602360 swift/megatron/arguments/megatron_args.py, trainers/grpo_trainer.py: samples are
packed, and the loss is of log-probabilities."""

SERVER_BUCKET_MIB: Final = 512
"""Of weights on their way to an engine on cards of its own, which are joined into one tensor more [swift
megatron/trainers/rollout_mixin.py `_load_weights_to_server_in_buckets`]."""

OWN: Final = {"nemo-rl": OF_NEMO_RL, "ms-swift": OF_SWIFT}
"""Framework -> what it has otherwise than Megatron-LM."""


def train_job(job: PostTrainingJob, found: Batches) -> Job:
    """The update as a training job of Megatron. Sequences are filled up to what its ranks divide [verl models/mcore/
    util.py `preprocess_packed_seqs`]."""
    plan = job.plan
    parts = plan.tp * (2 * plan.cp if plan.cp > 1 else 1)
    return Job(
        model=job.model,
        workload=Workload(seq_len=ceil_div(found.tokens, found.samples * parts) * parts, micro_batch=found.samples,
                          grad_accum=found.accumulated, objective="pretrain",
                          images=1 if job.episodes.images is None else job.episodes.images),
        plan=replace(
            plan, shards=Shards.OPTIMIZER, offload_parameters="none", sharded_by=None,
            offload_optimizer=plan.offload_optimizer if steps_on_host(job) else "none",
            sequence_parallel=plan.tp > 1 if plan.sequence_parallel is None else plan.sequence_parallel,
            recompute=plan.recompute if plan.recompute is not Recompute.SELECTIVE or is_swift_on_megatron(job) else (
                Recompute.NONE),
        ),
        cluster=trainer_cluster(job),
        engine="megatron",
        engine_options={
            **OWN.get(job.framework, {}), **_predictions(job),
            **{name: value for name, value in job.trainer_options.items() if name not in NOT_OF_MEGATRON},
        },
    )


NOT_OF_MEGATRON: Final = (ON_HOST, "cross_entropy", "mtp")
"""What is said of a trainer that is none of Megatron's own arguments, or is the framework's."""


def _predictions(job: PostTrainingJob) -> dict[str, int]:
    """Modules that predict further tokens, as many as the network has, where they learn beside it [verl models/mcore/
    config_converter.py; slime backends/megatron_utils/model.py `enable_mtp_training`].

    Raises: InvalidSpec for a network that has none
    """
    if not job.trainer_options.get("mtp"):
        return {}
    if not (count := len(job.model.mtp_layers)):
        raise InvalidSpec("{} has no modules that predict further tokens; leave out mtp", job.model.name)
    return {"mtp_layers": count}


def steps_on_host(job: PostTrainingJob) -> bool:
    """Whether an offloaded optimizer is Megatron's own, which steps there; verl's comes back for its step unasked."""
    return job.framework == "slime" or bool(job.trainer_options.get(ON_HOST))


def _fullest(job: PostTrainingJob, found: Batches) -> RankProgram:
    """The pipeline stage that holds most."""
    if job.plan.peft is not None and not is_swift_on_megatron(job):
        raise Unsupported("adapters under Megatron are modelled for post-training with ms-swift alone; leave out "
                          "--peft")
    if job.framework == "slime" and any(isinstance(layer.mixer, LinearAttention) for layer in job.model.main.layers):
        raise Unsupported("{}: slime's linear attention is transformers', whole on every rank, which is not modelled "
                          "under Megatron", job.model.name)
    made = train_job(job, found)
    return max(ranks(made), key=lambda role: extent((*role.phases[Phase.LOAD], *role.phases[Phase.FIRST_STEP])).peak)


def actor(job: PostTrainingJob, found: Batches) -> Network:
    """The network that learns, on the fullest stage."""
    phases = _fullest(job, found).phases
    load, first = phases[Phase.LOAD], phases[Phase.FIRST_STEP]
    held = live_at_end(load)
    masters = tuple((tensor, count) for tensor, count in held.items() if tensor.category is Category.OPTIMIZER)
    weights = tuple((tensor, count) for tensor, count in held.items()
                    if tensor.category in (Category.WEIGHTS, Category.GRADIENTS))
    made = tuple((tensor, count) for tensor, count in live_at_end((*load, *first)).items()
                 if tensor not in held and tensor.category is Category.OPTIMIZER)
    return Network(load, weights, masters, made, first, phases[Phase.STEP])


def critic(job: PostTrainingJob, found: Batches) -> tuple[Network, Program]:
    """The network that estimates values, on the fullest stage, whose head has one column [verl megatron_workers.py
    `CriticWorker`]; a pass of it without gradients makes no logits, and is not counted."""
    return actor(replace(job, model=scorer(job.model)), found), ()


def reference(job: PostTrainingJob, found: Batches) -> Network:
    """The network as it was: its 16-bit weights alone."""
    learning = actor(job, found)
    weights = tuple((tensor, count) for tensor, count in learning.weights if tensor.category is Category.WEIGHTS)
    copies = tuple((replace(tensor, owner=f"reference.{tensor.owner}"), count) for tensor, count in weights)
    return Network(tuple(Alloc(tensor) for tensor, count in copies for _ in range(count)), copies)


def log_prob(job: PostTrainingJob, found: Batches, *, entropy: bool, reference: bool = False) -> Program:
    """Logits of a micro-batch on the last stage, whose tokens context-parallel ranks divide; layers without gradients
    hold less than those of an update."""
    del entropy, reference
    ranks_of_head, each = job.plan.tp * job.plan.cp, LOGIT_BYTES
    name, source = "logits, their clone and fp32 softmax", "verl utils/megatron/tensor_parallel.py"
    if is_swift_on_megatron(job):  # in 16 bits, with powers and shifted logits where ranks divide the vocabulary
        each, name = 4 if job.plan.tp == 1 else 8, "logits and their log softmax"
        source = "swift megatron/trainers/vocab_parallel_utils.py"
    size = ceil_div(found.tokens * job.model.vocab, ranks_of_head) * each
    logits = Tensor(name=name, num_bytes=size, category=Category.TEMPORARIES, owner="head", source=source,
                    formula=f"{found.tokens:,} x {job.model.vocab:,} x {each} B / {ranks_of_head}")
    return (Alloc(logits), Free(logits))


def handover(job: PostTrainingJob, learning: Network) -> tuple[Tensor, ...]:
    """A weight is gathered whole in 16 bits, and handed over in buckets."""
    del learning
    release = release_of(job)
    bucket = 0 if release.in_process else job.rollout.bucket_mib or release.bucket_mib
    if is_swift_on_megatron(job) and job.rollout.gpus is not None:
        bucket = 2 * SERVER_BUCKET_MIB
    largest = max(parameter.parameter.elements for parameter in named_parameters(job.model))
    sizes = {"largest weight, gathered": 2 * largest, "bucket": bucket * MIB}
    return tuple(Tensor(name=name, num_bytes=size, category=Category.COMMUNICATION, owner="handover",
                        source="verl utils/megatron_utils.py") for name, size in sizes.items() if size)


__all__ = ["actor", "batches", "critic", "handover", "log_prob", "reference", "train_job"]
