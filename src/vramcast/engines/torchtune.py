"""torchtune's fine-tuning of all weights and of adapters: FSDP2 or one GPU, 16-bit weights, chunked cross entropy.

[torchtune] meta-pytorch/torchtune recipes/{full,lora}_finetune_{distributed,single_device}.py;
torchtune/training/_distributed.py `shard_model`: a unit per block, one of the rest; torchtune/modules/peft/lora.py and
dora.py; torchtune/modules/low_precision/nf4_linear.py; torchtune/training/memory.py `OptimizerInBackwardWrapper`;
torchtune/modules/loss/ce_chunked_output_loss.py and cross_entropy_loss.py; recipes/configs/*/*_full.yaml `loss` at
every release
Adapters and one GPU are counted as eager code, whose frozen weights, adapters and packed bases these are.
"""

from __future__ import annotations

from typing import Final

from msgspec.structs import replace

from vramcast.blocks.ends import LINEAR
from vramcast.blocks.parts import Sizes, norm_variant
from vramcast.domain.job import AttentionKernel, Job, Loss, Precision, RankProgram, Recompute, Shards
from vramcast.domain.model import MLP, Attention
from vramcast.domain.version import Version
from vramcast.engines.eager.completions import distils, student_of, taught, teacher_sentences
from vramcast.engines.eager.phases import all_phases
from vramcast.engines.eager.preference import Rated, compared_phases
from vramcast.engines.eager.question import fake_of, fake_sentences, recipe_of, sharded_stepping_of
from vramcast.engines.eager.recipe import Recipe
from vramcast.engines.pytorch import one_role, sharded_role, sharding_of
from vramcast.engines.torchtitan.model import Choices
from vramcast.engines.torchtitan.pieces import Sharing, Span
from vramcast.engines.torchtitan.run import phases_of, pieces_of
from vramcast.engines.torchtitan.setting import Setting, facts
from vramcast.errors import InvalidSpec, Note, Unsupported
from vramcast.operators.linear import Numerics
from vramcast.operators.loss import TORCHTUNE_DISTILLED
from vramcast.parallel.fsdp import Fsdp
from vramcast.parallel.layout import Layout
from vramcast.states.optimizers import optimizer
from vramcast.units import FP32, round_up

NORMS: Final[tuple[tuple[Version, str], ...]] = (((0, 7), "eager"), ((0, 5), "torch"), ((0, 0), "eager"))
"""RMSNorm by the first release: written out, or F.rms_norm (1450d6126 to c5c160b42) [torchtune modules/rms_norm.py]."""

METHODS: Final = ("lora", "dora")
BASES: Final = ("full", "nf4", "nf4-dq")

LOSSES: Final[tuple[tuple[Version, str], ...]] = (
    ((0, 7), "linear_chunked"),  # LinearCrossEntropyLoss, 9c06c8bda of 2025-04-30
    ((0, 3), "chunked_output"),  # CEWithChunkedOutputLoss
    ((0, 0), "model_fp32_shifted"),  # torch.nn.CrossEntropyLoss over the model's float logits
)
"""Which loss the recipes' configurations name, by the first release that does."""


EAGER_LOSSES: Final[dict[str, tuple[str, bool]]] = {
    "linear_chunked": (LINEAR + "torchtune", False), "chunked_output": ("chunked_output", False),
    "model_fp32": ("torch", True), "model_fp32_shifted": ("shifted", True),
}
"""The same losses -> key of the loss tables, and whether the model returns fp32 logits."""

NUMERICS: Final = Numerics(2, 2, 2, 2)

ALONE: Final = "one GPU: torchtune's recipe for a single device, without FSDP"
IN_BACKWARD: Final = "every weight is stepped in backward as soon as its gradient is there (optimizer_in_bwd)"


def ranks(job: Job) -> tuple[RankProgram, ...]:
    """The one rank role of a torchtune run.

    `engine_options`: "split_root" (embedding and head are gathered apart), "optimizer_in_backward" (bool) and
    "recompute_every" (of layers that are recomputed only each so manieth).

    Raises: Unsupported for recipes that are not modelled.
    """
    _check(job)
    if job.plan.peft is not None or job.cluster.count == 1 or job.workload.objective in RATED_LOSSES:
        return (_eager(job),)
    asked, job = job.workload.seq_len, _padded(job)
    plan, workload, model = job.plan, job.workload, job.model
    group = min(plan.shard_group or job.data_parallel, job.data_parallel)
    fsdp = Fsdp(group, reduce_width=2)
    layout = Layout(tp=plan.tp, dp=job.data_parallel, sequence_parallel=plan.tp > 1)
    loss = _loss(job)
    sizes = Sizes(
        batch=workload.micro_batch, seq_len=workload.seq_len, hidden=model.hidden, numerics=NUMERICS,
        attention=AttentionKernel.FLASH, norm="compiled" if plan.compile else norm_of(job),
        activation="compiled" if plan.compile else "eager", rope="compiled" if plan.compile else "complex",
        grouped=False, tp=plan.tp, sequence_parallel=plan.tp > 1, fake=fake_of(job, NUMERICS),
    )
    setting = Setting(
        job, facts(), sizes, Choices(plan.recompute, loss, loss != "model_fp32_shifted", needed_only=plan.compile),
        Sharing(layout, fsdp, fsdp, weight_width=2), "blocks" if plan.reshard_after_forward else "never", 1,
        optimizer(plan.optimizer), plan.optimizer_kernel or "fused",
    )
    split = bool(job.engine_options.get("split_root"))
    setting = replace(setting, known=replace(setting.known, split_root=split))
    phases = phases_of(setting, pieces_of(setting, _span(job)))
    length = workload.seq_len
    padded = (Note("samples are padded to {} tokens, which tp={} divides", length, plan.tp),) if length != asked else ()
    return (RankProgram(role="all", count=job.cluster.count, phases=phases, assumptions=(*_said(job), *padded)),)


def _span(job: Job) -> Span:
    """All layers; of those that are recomputed each so manieth, the first of which is the last of its group
    [torchtune training/activations.py `checkpoint_wrapper`]."""
    every = int(job.engine_options.get("recompute_every") or 1)
    if every == 1:
        return Span(tuple((run.count, run.layer) for run in job.model.main.runs))
    layers = job.model.main.layers
    return Span(tuple((1, layer) for layer in layers),
                kept=frozenset(place for place in range(len(layers)) if (place + 1) % every))


def eager_recipe(job: Job) -> Recipe:
    """Adapters beside frozen weights, or all weights, as eager code."""
    plan = job.plan
    loss, returned = RATED_LOSSES.get(job.workload.objective) or EAGER_LOSSES[_loss(job)]
    recipe = recipe_of(job, loss=loss, variants="compiled" if plan.compile else "eager")
    stored = "full" if plan.peft is None or plan.peft.base == "full" else "nf4-torchao" + "-compiled" * plan.compile
    norm, rope = ("compiled", "compiled") if plan.compile else (norm_of(job), "complex")
    sizes = replace(
        recipe.sizes, grouped=False, rope=rope, norm=norm,
        stored=stored, left_whole=(), caches_products=False, expert_loop=False,
    )
    return replace(recipe, sizes=sizes, returns_fp32=returned, reentrant=False)


RATED_LOSSES: Final[dict[str, tuple[str, bool]]] = {
    "dpo": ("log_probabilities_whole_divided", True), "gkd": (TORCHTUNE_DISTILLED, False),
}
"""Objectives with a second network -> the same two. DPO's recipes ask for logits in one piece, which the model makes
fp32; those of distillation for chunks [recipes/lora_dpo_*.py, knowledge_distillation_*.py]."""


def _compared(job: Job, recipe: Recipe) -> tuple[Recipe, Rated | None, tuple[str, ...]]:
    """The recipe of a model beside which another answers, that other, and what is said of it."""
    if distils(job):
        teacher = replace(student_of(job), workload=replace(job.workload, objective="sft"))
        return recipe, taught(recipe, eager_recipe(teacher)), teacher_sentences(job)
    if job.workload.objective != "dpo":
        return recipe, None, ()
    own = job.plan.peft is None
    asked = replace(recipe, sizes=replace(recipe.sizes, adapter=None), recompute=False, offloads=False)
    # beside adapters the loop's variable holds the reference's logits until it is asked again
    held = recipe if own else replace(recipe, kept_behind=FP32)
    rated = Rated(asked, own, (), (), loads_fp32=False, one_unit=False)
    return held, rated, (rated.said,)


def _eager(job: Job) -> RankProgram:
    """Adapters beside frozen weights, all weights of one GPU, or another network beside either."""
    recipe, compared, who = _compared(job, eager_recipe(job))
    if job.cluster.count == 1:
        stepping = sharded_stepping_of(job)
        if job.engine_options.get("optimizer_in_backward"):
            stepping = replace(stepping, optimizer=replace(stepping.optimizer, gradients_in_backward=True))
        said = (ALONE, *((IN_BACKWARD,) if stepping.optimizer.gradients_in_backward else ()), *who)
        phases = all_phases(job, recipe, stepping) if compared is None else compared_phases(recipe, stepping, compared)
        return one_role(job, phases, *_said(job), *said)
    split = bool(job.engine_options.get("split_root"))
    sharding = replace(sharding_of(job, "fsdp2"), split_root=split, defers=False)  # no recipe has no_sync
    return sharded_role(job, recipe, sharding, *_said(job), *who[:distils(job)], compared=compared)


def _padded(job: Job) -> Job:
    """Samples as long as the collator makes them, where tensor parallelism would not divide them.

    [torchtune] torchtune/data/_collate.py `padded_collate_sft`, training/_distributed.py `min_seq_len_divisor`
    """
    length = round_up(job.workload.seq_len, job.plan.tp)
    return replace(job, workload=replace(job.workload, seq_len=length))


def _said(job: Job) -> tuple[str, ...]:
    """Whose loss is counted where nobody names a version."""
    rounding = fake_sentences(job)
    if job.engine_version is not None or job.plan.loss is not None or job.workload.objective in RATED_LOSSES:
        return rounding
    return (
        *rounding, "torchtune 0.7: head and loss run chunk by chunk; before, all logits were made first: "
        "--engine torchtune@0.6 counts them",
    )


def norm_of(job: Job) -> str:
    """How RMSNorm is written: a key of RMS_NORM_VARIANTS."""
    version, written = job.engine_version or LOSSES[0][0], norm_variant(job.model)
    if written != "eager":  # a class of its own at every release [torchtune models/gemma/rms_norm.py]
        return written
    return next(name for since, name in NORMS if version >= since)


def _loss(job: Job) -> str:
    """The loss that the recipe of the version names, or the one asked for.

    Raises: Unsupported for a loss that torchtune lacks.
    """
    version = job.engine_version or LOSSES[0][0]
    default = next(name for since, name in LOSSES if version >= since)
    asked = job.plan.loss
    if asked is None:
        return default
    if asked is Loss.EAGER:
        return "model_fp32" if version >= LOSSES[1][0] else default
    if asked is Loss.CHUNKED:
        return default if version >= LOSSES[1][0] else LOSSES[1][1]
    raise Unsupported("torchtune has no {} loss; use --loss chunked or eager", asked)


def _check(job: Job) -> None:
    plan, alone = job.plan, job.cluster.count == 1
    if not alone and job.data_parallel == 1:
        raise Unsupported(
            "torchtune with tensor parallelism alone is not modelled; use more GPUs than --tp {}", plan.tp
        )
    if not alone and plan.shards is not Shards.EVERYTHING:
        raise Unsupported("torchtune shards everything over several GPUs; leave --shards out, or use one GPU")
    if job.workload.objective in RATED_LOSSES and (plan.loss is not None or plan.compile or plan.tp > 1):
        raise Unsupported("{} of torchtune is modelled as its recipes make the loss, eagerly and without tensor "
                          "parallelism; leave --loss, --compile and --tp out", job.workload.objective)
    if plan.pp * plan.cp * plan.ep > 1:
        raise Unsupported("torchtune has no pipeline, context or expert parallelism; use --engine torchtitan")
    if plan.tp > 1 and plan.peft is not None:
        raise Unsupported("torchtune's recipes for adapters have no tensor parallelism; leave --tp out")
    if plan.peft is not None and (plan.peft.method not in METHODS or plan.peft.base not in BASES):
        raise Unsupported(
            "torchtune trains lora and dora beside bf16 or nf4 weights, not {} beside {}; use --engine huggingface",
            plan.peft.method, plan.peft.base
        )
    if job.engine_options.get("optimizer_in_backward") and not (alone and plan.peft is None):
        raise Unsupported("optimizer_in_backward is modelled for all weights of one GPU; leave it out")
    if job.engine_options.get("optimizer_in_backward") and job.workload.grad_accum > 1:
        raise InvalidSpec("optimizer_in_backward steps every micro-batch; use --grad-accum 1")
    if job.engine_options.get("recompute_every") and (plan.recompute is not Recompute.FULL or alone or plan.peft):
        raise InvalidSpec("recompute_every is of torchtune's full fine-tuning on several GPUs, with --recompute full; "
                          "leave it out")
    if plan.offload_activations and plan.recompute is Recompute.NONE:
        raise InvalidSpec("torchtune offloads activations only of layers that are recomputed; use --recompute full")
    if plan.offload_activations and not (alone or plan.peft is not None):
        raise Unsupported("torchtune's activation offload for all weights of several GPUs is not modelled; use one GPU")
    if plan.precision not in (Precision.BF16, Precision.MIXED_BF16):
        raise Unsupported("torchtune trains bf16 weights in bf16, not in {}; use bf16", plan.precision)
    if plan.offload_parameters == "nvme" or plan.offload_optimizer == "nvme":
        raise Unsupported("torchtune offloads to the host only; use --offload-optimizer cpu")
    if len(job.model.stacks) > 1:
        raise Unsupported("torchtune is modelled for text decoders; use --engine pytorch for models of several stacks")
    for layer in (run.layer for run in job.model.main.runs):
        if not isinstance(layer.mixer, Attention) or not isinstance(layer.channel, MLP):
            raise Unsupported("torchtune is modelled for dense attention models; use --engine megatron")
