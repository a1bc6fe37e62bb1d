"""What TRL's trainers, and Unsloth's, do by default, by release: reference models, checkpoints, and types of weights.

[TRL] huggingface/trl trl/trainer/{sft_trainer,grpo_config,grpo_trainer}.py, trl/models/utils.py `prepare_peft_model`,
tags v0.7.2 to v1.9.0; huggingface/trl trl/trainer/base_config.py `_BaseConfig`,
trl/trainer/{sft,dpo,grpo,reward}_config.py before 0.29
[PEFT] huggingface/peft src/peft/utils/other.py `prepare_model_for_kbit_training`: every 16-bit parameter that is not
packed becomes fp32, but for GPTQ, AQLM, EETQ, HQQ and torchao
[unsloth] unsloth/models/{loader,llama,vision}.py `from_pretrained`, `get_peft_model`: use_gradient_checkpointing is
True or "unsloth" in every release since 2023-12
"""

from __future__ import annotations

from collections.abc import Container, Iterator
from typing import Final, Literal

from msgspec.structs import replace

from vramcast.domain.job import Job, Precision, Recompute, Shards
from vramcast.domain.model import Head, Norm
from vramcast.domain.version import Version, last_release, read_version, version_text
from vramcast.engines.eager.recipe import HEAD, IN_MEMORY, Recipe
from vramcast.engines.eager.releases import NON_REENTRANT_SINCE, liger_kernels, sharder, software, transformers_version
from vramcast.errors import InvalidSpec, Note
from vramcast.operators.linear import Numerics
from vramcast.units import FP32

CONTEMPORARY_TRL: Final[tuple[tuple[Version, Version], ...]] = (
    ((5, 14), (1, 9)), ((5, 2), (0, 28)), ((5, 0), (0, 27)), ((4, 57), (0, 24)), ((4, 53), (0, 19)), ((0,), (0, 7, 2)),
)
"""Release of transformers, and the TRL that was the newest when it came: where no TRL is named [release dates]."""

Prepared = Literal["nothing", "norms", "all"]
"""Which weights of a packed network become fp32."""

PREPARES: Final[tuple[tuple[Version, Prepared], ...]] = (((0, 28), "nothing"), ((0, 25), "norms"), ((0, 7, 2), "all"))
"""[TRL] SFTTrainer since that release; before 0.25 [PEFT] does it, and embedding and head are cast back where the run
computes in bf16 and the base has 4 bits (`peft_module_casting_to_bf16`)."""

BETAS: Final[tuple[tuple[Version, float], ...]] = (((0, 19), 0.0), ((0,), 0.04))
"""`GRPOConfig.beta` since that release; without it there is no reference model [TRL]."""

RLOO_BETA: Final = 0.05
"""`RLOOConfig.beta` [TRL]."""

GENERATES_AHEAD_SINCE: Final[Version] = (0, 17)
"""Completions of all micro-batches of a step are generated at once, or of as many as `steps_per_generation` says;
before, each micro-batch's by themselves [TRL grpo_trainer.py `get_train_dataloader`]."""

UNSLOTH_BETA: Final = 0.001
UNSLOTH_BETA_SINCE: Final[Version] = (2025, 6, 5)
"""Unsloth writes its own default into TRL's configuration [unsloth models/rl.py, d7b0653a2 of 2025-06-22]."""

TRAINERS: Final = ("sft", "dpo", "kto", "gkd", "grpo", "rloo", "reward")
"""Objectives that name one of TRL's trainers. Its PPOTrainer has a loop of its own, which switches nothing on."""

RECOMPUTES_SINCE: Final[Version] = (0, 22)
"""`gradient_checkpointing` is on in the configurations of those [TRL a222aeb46 of 2025-08-08]."""

TRL_NON_REENTRANT_SINCE: Final[Version] = (0, 27)
"""Checkpoints are not reentrant unasked, before transformers 5, too [TRL sft_config.py `__post_init__`]."""

REENTRANT_SINCE: Final[dict[str, Version]] = {
    **dict.fromkeys(("sft", "gkd"), (0, 28)), **dict.fromkeys(("dpo", "kto", "grpo", "rloo", "reward"), (1, 9)),
}
"""Since that release each trainer forces the older kind of checkpoints on adapters under ZeRO-3 [TRL __init__]."""

CHUNKS_LOSS_SINCE: Final[Version] = (1, 7)
"""`SFTConfig.loss_type` is chunked_nll: head and loss run in checkpoints of 256 tokens; nll before, and beside Liger's
kernels [TRL]. Modelled where a rank has its weights whole."""

NARROWS_ADAPTERS: Final[dict[str, Version]] = {
    **dict.fromkeys(("sft", "gkd", "grpo", "rloo", "reward"), (0, 26)), "dpo": (0, 29), "kto": (1, 4),
}
"""Since that release each trainer makes every weight of a packed network that learns bf16, whatever the run computes in
[TRL __init__: `param.data = param.data.to(torch.bfloat16)`]."""

KEEPS_ADAPTERS: Final[Version] = (0, 9)
"""Before, `peft_module_casting_to_bf16` cast the adapters of 4-bit bases with the rest [TRL 99f2c94b2]."""

LOADS_FP32_SINCE: Final[Version] = (0, 27)
"""A model given by its id is loaded in float32 where `dtype` does not say otherwise [TRL trainer/utils.py
`create_model_from_path`, model_config.py `dtype`]; before, as its checkpoint has it."""


def trl_version(job: Job) -> Version:
    """The TRL of a job: named, or the one of its transformers' days.

    Raises: InvalidSpec for a name that is no version
    """
    named = str(job.engine_options.get("trl", ""))
    found = read_version(named) if named else None
    if named and found is None:
        raise InvalidSpec("engine option trl={!r} must be a release, as in trl=0.24", named[:40])
    release = transformers_version(job)
    newest = CONTEMPORARY_TRL[0][1]
    if found is not None and found[: len(newest)] > newest:
        raise InvalidSpec(
            "engine option trl={} is newer than {}, the newest that is known", named, version_text(newest)
        )
    if found is not None:
        return last_release(found, parts=len(newest), newest=newest)
    return next(trl for since, trl in CONTEMPORARY_TRL if release >= since)


def is_trl(job: Job) -> bool:
    """Whether one of TRL's trainers runs a job: its objective says so; without one the Trainer runs it."""
    return job.engine == "huggingface" and job.workload.objective in TRAINERS


def beta_of(job: Job) -> float:
    """The weight of the KL term of GRPO."""
    if "beta" in job.engine_options:
        return float(job.engine_options["beta"])
    if job.workload.objective == "rloo":
        return RLOO_BETA
    if job.engine == "unsloth" and (job.engine_version or UNSLOTH_BETA_SINCE) >= UNSLOTH_BETA_SINCE:
        return UNSLOTH_BETA
    version = trl_version(job)
    return next(beta for since, beta in BETAS if version >= since)


def generated_at_once(job: Job) -> int:
    """Micro-batches whose completions are generated together: unasked, where TRL does it, those of a step."""
    ahead = job.engine in ("huggingface", "unsloth") and trl_version(job) >= GENERATES_AHEAD_SINCE
    usual = job.workload.grad_accum if ahead and job.workload.objective in ("grpo", "rloo") else 1
    return int(job.engine_options.get("steps_per_generation", usual))


def loads_fp32(job: Job) -> bool:
    """Whether a frozen network is loaded in float32, and so is what bitsandbytes leaves of it, under autocast."""
    peft = job.plan.peft
    if job.engine != "huggingface" or peft is None or peft.base not in ("full", *IN_MEMORY):
        return False
    sharded = job.plan.shards is Shards.EVERYTHING and job.replicas > 1
    if job.plan.precision not in (Precision.AMP_BF16, Precision.AMP_FP16) or (sharded and peft.base in IN_MEMORY):
        return False
    if "dtype" in job.engine_options:
        return bool(job.engine_options["dtype"] == "float32")
    return is_trl(job) and trl_version(job) >= LOADS_FP32_SINCE


def prepared_weights(job: Job) -> Prepared:
    """What becomes fp32 before training begins: of a base that bitsandbytes packs, whole on every rank."""
    how, base = str(job.engine_options.get("prepare_kbit", "trl")), job.plan.peft.base if job.plan.peft else "full"
    sharded = job.plan.shards is Shards.EVERYTHING and job.replicas > 1
    if base not in IN_MEMORY or sharded or how == "none":
        return "nothing"
    if how in ("peft", "norms"):
        return "all" if how == "peft" else "norms"
    version = trl_version(job)
    found: Prepared = next((what for since, what in PREPARES if version >= since), "nothing")
    casts_back = job.plan.precision is Precision.AMP_BF16 and base != "int8"
    return "norms" if found == "all" and casts_back else found


def narrows_adapters(job: Job) -> bool:
    """Whether a trainer of TRL makes the adapters beside a packed base bf16."""
    peft = job.plan.peft
    if not is_trl(job) or peft is None or peft.base not in IN_MEMORY:
        return False
    version = trl_version(job)
    if version < KEEPS_ADAPTERS:
        return peft.base != "int8" and job.plan.precision is Precision.AMP_BF16
    return version >= NARROWS_ADAPTERS[str(job.workload.objective)]


def prepared(recipe: Recipe, job: Job) -> tuple[Recipe, tuple[str, ...]]:
    """The recipe of a model so prepared, and what there is to say.

    A norm whose weight is fp32 answers in fp32, packed layers in the type of their input: so does the residual stream,
    and with it every checkpoint. Gemma's norms answer in the type of what they read.
    """
    what, sizes = prepared_weights(job), recipe.sizes
    said = (_said(what, job),) if what != "nothing" else ()
    if job.plan.peft is not None and job.plan.peft.base in IN_MEMORY and loads_fp32(job):
        what = "all"
    if what == "nothing":
        return recipe, ()
    compute = sizes.numerics.compute
    if what == "all":
        numerics = Numerics(FP32, compute, FP32, FP32)
    else:
        follows = sizes.norm == "gemma" and recipe.model.main.layers[0].norm is Norm.RMS
        numerics = sizes.numerics if follows else replace(sizes.numerics, residual=FP32)
    sizes = replace(sizes, numerics=numerics, norm_weights=FP32)
    return replace(recipe, sizes=sizes), said


def reference_sentences(job: Job) -> tuple[str, ...]:
    """Whether GRPO has a reference model, and why."""
    if job.workload.objective not in ("grpo", "rloo"):
        return ()
    beta = beta_of(job)
    if job.workload.objective == "rloo":
        return () if not beta else (Note("RLOO with beta={:g}: a reference model is asked, too", beta),)
    if beta:
        return (Note("GRPO with beta={:g}: a reference model is asked, too", beta),)
    return ("GRPO with beta=0, TRL's default since 0.19: no reference model; --engine-option beta=0.04 for one",)


def forces_reentrant(job: Job) -> bool:
    """Whether a trainer of TRL makes checkpoints the older kind where DeepSpeed shards: of adapters under ZeRO-3."""
    return (
        is_trl(job) and job.plan.peft is not None and job.plan.shards is Shards.EVERYTHING
        and trl_version(job) >= REENTRANT_SINCE[str(job.workload.objective)]
    )


def chunks_loss(job: Job) -> bool:
    """Whether SFTTrainer makes head and loss in chunks: unasked, where nothing else makes them."""
    plan = job.plan
    if not is_trl(job) or job.workload.objective != "sft" or plan.loss is not None or plan.compile:
        return False
    adapted = plan.peft is not None and HEAD in plan.peft.targets  # TRL refuses to: loss_type=nll
    fits = job.model.head is Head.LM and not adapted and not liger_kernels(job)
    return fits and trl_version(job) >= CHUNKS_LOSS_SINCE


def _said(what: Prepared, job: Job) -> str:
    if job.engine_options.get("prepare_kbit") == "peft":
        return "prepare_model_for_kbit_training: what is not packed is fp32, and so are hidden states"
    if job.engine_options.get("prepare_kbit") == "norms":
        return "norms beside a packed base are fp32, and so are hidden states"
    version = version_text(trl_version(job))
    if what == "all":
        return Note("TRL {} prepares packed models: what is not packed is fp32, and so are hidden states", version)
    return Note("TRL {} prepares packed models: norms are fp32, and so are hidden states", version)


def reentrant(job: Job) -> bool:
    """Whether checkpoints are of the older kind."""
    default = job.engine == "huggingface" and software(job).transformers < NON_REENTRANT_SINCE
    default = default and not (is_trl(job) and trl_version(job) >= TRL_NON_REENTRANT_SINCE)
    if forces_reentrant(job) and sharder(job) == "deepspeed":
        return True
    return bool(job.engine_options.get("reentrant", default))


def with_unasked(job: Job, named: Container[str]) -> Job:
    """The job with what its tool does where the question does not say otherwise, and a sentence for each.

    Args:
        named: options that it names
    """
    plan, said = job.plan, list(job.assumed)
    if "recompute" not in named and (tool := recomputing(job)):
        plan = replace(plan, recompute=Recompute.FULL)
        said.append(Note("layers are recomputed, as {} does unasked; --recompute none switches that off", tool))
    if "adapter-dtype" not in named and plan.peft is not None and narrows_adapters(job):
        plan = replace(plan, peft=replace(plan.peft, adapter_dtype="bf16"))
        said.append("adapters of a packed base are bf16, as TRL makes them unasked; --adapter-dtype fp32 for others")
    return replace(job, plan=plan, assumed=tuple(said))


def recomputing(job: Job) -> str:
    """The tool of a job, where that recomputes layers unasked; else nothing.

    Unsloth's embedding models are of another class, which does not [unsloth sentence_transformer.py].
    """
    if job.engine == "unsloth":
        return "Unsloth" if job.model.head is Head.LM else ""
    return "TRL" if is_trl(job) and trl_version(job) >= RECOMPUTES_SINCE else ""


def uncounted(job: Job) -> Iterator[str]:
    """What TRL's trainers do unasked that the program of a job is without."""
    if chunks_loss(job) and sharder(job) is not None:
        yield (
            "the loss in chunks of 256 tokens that TRL's SFTTrainer makes since 1.7 (loss_type=chunked_nll): counted "
            "is that of all logits, as loss_type=nll and the Trainer itself make it"
        )
