"""Rules that every engine's plans obey: what a degree must divide. Checked once, before any engine runs.

What training engines are told by `--engine-option`: names, and what they may be.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from math import gcd
from typing import Annotated, Final, Literal, get_args, get_origin, get_type_hints

import msgspec
from msgspec import Meta

from vramcast import engines, estimate
from vramcast.blocks.lengths import check_lengths, reads_images
from vramcast.blocks.parameters.targets import check_targets
from vramcast.domain.job import ANSWERS, GENERATES, WITHOUT_TARGETS, Job, Plan, Precision, Recompute, Shards
from vramcast.domain.model import MLP, Attention, Head, Layer, MoE, MultiLatentAttention, Noun
from vramcast.engines.eager.releases import ZERO_OPTIONS, runs_deepspeed, sharder
from vramcast.engines.training import FLATTENS, UNUSED_BY_SHARDER, engine_of
from vramcast.errors import InvalidSpec, Note, UnknownName, Unsupported, listed
from vramcast.states.optimizers import optimizer
from vramcast.states.storage import refuse_bitsandbytes

LARGEST_SUGGESTED = 128

DEFAULT_PLAN: Final = Plan()

NEEDS: Final[dict[str, tuple[Callable[[Plan], bool], str]]] = {
    "recompute_modules": (lambda plan: plan.recompute is Recompute.SELECTIVE, "recompute=selective"),
    "recompute_layers": (lambda plan: plan.recompute is Recompute.FULL, "recompute=full"),
    "virtual_stages": (lambda plan: plan.pp > 1, "pp above 1"),
    "schedule": (lambda plan: plan.pp > 1, "pp above 1"),
    "first_stage_layers": (lambda plan: plan.pp > 1, "pp above 1"),
    "last_stage_layers": (lambda plan: plan.pp > 1, "pp above 1"),
    "cp_kind": (lambda plan: plan.cp > 1, "cp above 1"),
    "shard_group": (lambda plan: plan.shards is Shards.EVERYTHING, "shards=everything"),
}
"""Field of the plan -> what it says something about, and how that is asked for. Without it, it is refused."""

BITSANDBYTES_BASES: Final = ("nf4", "nf4-dq", "int8")
"""Frozen weights that bitsandbytes stores."""

OF_SHARDERS: Final = {**dict.fromkeys(("deepspeed", *ZERO_OPTIONS), "deepspeed"), "backward_prefetch": "fsdp1"}
"""Engine option -> the sharder that reads it."""

Sizes = Iterator[tuple[str, int]]
Rule = Callable[[int], bool]


def check(job: Job) -> None:
    """Raise InvalidSpec when a degree does not divide what it splits, naming the degrees that would."""
    if job.engine_options:
        estimate.checks.check_options(job)
    refuse_ignored(job)
    if job.engine_options and engine_of(job).leaves_sharding:
        _check_sharders_options(job)
    plan, model = job.plan, job.model
    if plan.peft is not None and plan.peft.method not in WITHOUT_TARGETS:
        check_targets(model, plan.peft.targets)
    check_lengths(model, job.workload)
    _refuse_two_mixers(job)
    layers = [run.layer for run in model.main.runs]
    _divides("tp", plan.tp, list(_tensor_parallel_sizes(layers)), model.name)
    key_values = [layer.mixer.num_kv_heads for layer in layers if isinstance(layer.mixer, Attention)]
    for size in key_values:
        _fits("tp", plan.tp, f"num_kv_heads={size} of {model.name}", _shares_evenly(size))
    experts = [layer.channel for layer in layers if isinstance(layer.channel, MoE)]
    if plan.ep > 1 and not experts:
        raise InvalidSpec("ep={}: {} has no experts to divide; use ep=1", plan.ep, model.name)
    for moe in experts:
        _fits("ep", plan.ep, f"num_experts={moe.num_experts} of {model.name}", _divisor_of(moe.num_experts))
    length = job.workload.seq_len
    if job.engine != "huggingface":  # whose trainers pad samples
        _fits("cp", plan.cp, f"seq-len={length}", _divisor_of(length))
    if experts:
        _check_expert_group(job)
    if plan.pp * plan.virtual_stages > model.num_layers and not job.engine_options.get("stage_layers"):
        raise InvalidSpec(
            "pp={} x virtual-stages={} are more stages than the {} layers of {}; use at most {}",
            plan.pp, plan.virtual_stages, model.num_layers, model.name, model.num_layers
        )
    ranks = job.data_parallel * plan.cp
    if plan.shard_group is not None and ranks % plan.shard_group:
        _fits("shard-group", plan.shard_group, f"the {ranks} data-parallel ranks", _divisor_of(ranks))


TWO_MIXERS: Final = ("deepspeed", "huggingface", "pytorch")
"""Engines whose layers run both mixers of one norm."""


def _refuse_two_mixers(job: Job) -> None:
    """Raise Unsupported where the second mixer of a layer would be left out."""
    if not any(run.layer.beside for run in job.model.main.runs):
        return
    if job.engine not in TWO_MIXERS:
        raise Unsupported(
            "layers with attention beside Mamba, as {} has them, are not modelled for engine {}; use engine "
            "huggingface", job.model.name, job.engine
        )
    if job.workload.objective in GENERATES or max(job.plan.tp, job.plan.cp, job.plan.pp) > 1:
        raise Unsupported(
            "layers with attention beside Mamba, as {} has them, are modelled on data-parallel ranks that generate "
            "nothing; use tp=pp=cp=1 and objective=sft", job.model.name
        )


def _check_expert_group(job: Job) -> None:
    """Experts lie on ranks of one pipeline stage [Megatron-LM core/parallel_state.py, torchtitan parallel_dims.py]."""
    plan = job.plan
    stage = job.cluster.count // plan.pp
    group = plan.ep * (plan.etp or 1)
    if stage % group:
        inner = f" x etp={plan.etp}" if plan.etp else ""
        raise InvalidSpec(
            "ep={}{} = {} does not divide the {} GPUs of a pipeline stage; use a divisor of {}, or more GPUs",
            plan.ep, inner, group, stage, stage
        )


def refuse_ignored(job: Job) -> None:
    """Raise Unsupported for a choice that the job's engine would not look at: nothing is ignored in silence."""
    plan, workload, model = job.plan, job.workload, job.model
    for name, (there, asked) in NEEDS.items():
        if getattr(plan, name) != getattr(DEFAULT_PLAN, name) and not there(plan):
            value, option = getattr(plan, name), name.replace("_", "-")
            shown = ",".join(value) if isinstance(value, tuple) else value
            raise InvalidSpec("{}={} says nothing without {}; add that, or leave {} out", option, shown, asked, option)
    if plan.schedule == "interleaved" and plan.virtual_stages == 1:
        raise InvalidSpec("schedule=interleaved says nothing without virtual-stages above 1; add that, or leave it out")
    if plan.schedule == "gpipe" and plan.virtual_stages > 1:
        raise InvalidSpec("schedule=gpipe has one stage on a rank, not virtual-stages={}; use 1", plan.virtual_stages)
    _check_sharder(job)
    _check_optimizer(job)
    engine = engine_of(job)
    who = sharder(job) if engine.leaves_sharding else None
    for name in UNUSED_BY_SHARDER.get(who, ()) if engine.leaves_sharding else engine.unused:
        if (asked := getattr(plan, name)) != getattr(DEFAULT_PLAN, name):
            option = name.replace("_", "-")
            if who is None:
                raise Unsupported("{}={} is not modelled for engine {}; leave it out", option, asked, job.engine)
            raise Unsupported(
                "{}={} is not modelled for engine {} sharded by {}; leave it out", option, asked, job.engine, who
            )
    if engine.one_model and workload.objective not in ("pretrain", "sft", *engine.objectives):
        raise Unsupported(
            "objective={} is not modelled for engine {}; use engine huggingface", workload.objective, job.engine
        )
    if workload.objective in ("kto", "rloo") and job.engine not in ("huggingface", "megatron"):
        raise Unsupported("objective={} is counted as TRL runs it; use --engine huggingface", workload.objective)
    if workload.objective == "gkd" and job.engine not in ("huggingface", "deepspeed", "torchtune"):
        raise Unsupported("objective=gkd is counted as TRL, ms-swift and torchtune run it; use --engine huggingface")
    if workload.objective in ANSWERS and model.head is not Head.LM:
        raise InvalidSpec(
            "objective={} compares answers, and {} writes none; use pretrain", workload.objective, model.name
        )
    labels = workload.objective in engine.objectives and model.head is Head.CLASSIFIER
    if engine.one_model and model.head not in (Head.LM, Head.MLM) and not labels:
        raise Unsupported(
            "{} trains language models, and {} predicts no tokens; use --engine pytorch", job.engine, model.name
        )
    shorter = workload.min_seq_len is not None and workload.min_seq_len < workload.seq_len
    if job.engine == "torchtitan" and plan.pp > 1 and shorter:  # [torch distributed/pipelining/stage.py] checks inputs
        raise Unsupported(
            "torchtitan's pipelines receive samples of one length; leave --min-seq-len out, or use --pp 1"
        )
    if job.engine == "litgpt" and plan.precision is not Precision.BF16:
        raise Unsupported("precision={} is not modelled for engine litgpt; use bf16 (bf16-true)", plan.precision)
    if runs_deepspeed(job) and plan.offload_parameters != "none" and plan.shards is not Shards.EVERYTHING:
        raise InvalidSpec("offload-parameters needs ZeRO-3; add --zero 3")
    whole = plan.shards is Shards.NOTHING and (job.data_parallel > 1 or job.engine_options.get("zero") is False)
    if runs_deepspeed(job) and job.engine != "deepspeed" and whole and not job.engine_options.get("torch_adam"):
        raise Unsupported("DeepSpeed without ZeRO is modelled for --engine deepspeed; use that, or --zero 1, 2 or 3")
    gpu = job.cluster.gpu
    if gpu.unmodelled:
        raise Unsupported("{} does not run on {}: {}; use another card", job.engine, gpu.name, gpu.unmodelled)
    if (plan.precision is Precision.FP8 or job.engine_options.get("float8") is True) and not gpu.has_fp8:
        halves = "mixed-bf16" if gpu.has_bf16 else "mixed-fp16"
        raise InvalidSpec("{} has no fp8; use precision {}, or Ada, Hopper or newer", gpu.name, halves)
    if plan.peft is not None and plan.peft.base in BITSANDBYTES_BASES:
        refuse_bitsandbytes(plan.peft.base, gpu)
    if optimizer(plan.optimizer).source == "[bnb]":
        refuse_bitsandbytes(plan.optimizer, gpu)
    if plan.etp is not None and not any(isinstance(run.layer.channel, MoE) for run in model.main.runs):
        raise InvalidSpec("etp={}: {} has no experts; leave etp out", plan.etp, model.name)
    if not reads_images(model) and (workload.image_size is not None or workload.images != 1):
        raise InvalidSpec("{} reads no images; leave image-size and images out", model.name)
    if not workload.images and model.main.vision is not None:
        raise InvalidSpec("{} reads nothing but images; use images=1 or more", model.name)
    if workload.decoder_seq_len is not None and len(model.stacks) == 1:
        raise InvalidSpec("{} has no encoder beside its decoder; leave decoder-seq-len out", model.name)
    if workload.objective in GENERATES and not workload.completion_len:
        raise InvalidSpec(
            "objective={} learns from answers that it generates; give their tokens, --completion-len",
            workload.objective
        )
    if workload.completion_len and workload.objective not in (*GENERATES, "gkd"):
        raise InvalidSpec("completion-len needs objective ppo, grpo, rloo or gkd, not {}", workload.objective)


def _check_optimizer(job: Job) -> None:
    """Raises Unsupported where an engine cannot step as the optimizer does."""
    name, engine = job.plan.optimizer, job.engine
    rule = optimizer(name)
    who = sharded_by(job)
    alone = job.data_parallel == 1 and who is None
    if rule.gradients_in_backward and engine == "huggingface" and not alone and "-layerwise" in name:
        # [HF trainer_optimizer.py] raises NotImplementedError under DDP
        raise InvalidSpec("optimizer={} on {} ranks: the Trainer stops at layer-wise optimizers on more than one; use "
                          "--gpus with one card, or {}", name, job.data_parallel, name.replace("-layerwise", ""))
    if rule.gradients_in_backward and not (engine in ("pytorch", "huggingface") and alone):
        raise Unsupported(
            "optimizer={} updates weights inside backward, which is modelled for one GPU with engine pytorch or "
            "huggingface; use adafactor", name
        )
    if rule.compressed and (engine != "deepspeed" or job.plan.shards is not Shards.NOTHING):
        raise Unsupported("optimizer={} is DeepSpeed's without ZeRO; use --engine deepspeed --zero 0", name)
    if rule.gradients_in_backward and job.workload.grad_accum > 1:
        raise InvalidSpec("optimizer={} updates weights inside backward; use --grad-accum 1", name)
    if who in FLATTENS and rule.matrix_rule and not (rule.orthogonalises and who == "deepspeed"):
        raise Unsupported(
            "optimizer={} needs the shapes of weights, which {} flattens into partitions; use adamw, or engine "
            "pytorch with --sharded-by fsdp2", name, who
        )


def sharded_by(job: Job) -> str | None:
    """What shards the job's weights; None: nobody, or the engine in its own way."""
    engine = engine_of(job)
    if engine.leaves_sharding:
        return sharder(job)
    if engine.is_flat:
        return job.engine
    sharded = job.plan.shards is not Shards.NOTHING and job.data_parallel > 1
    return engine.sharders[0] if sharded and engine.sharders else None


def _check_sharder(job: Job) -> None:
    asked, known = job.plan.sharded_by, engine_of(job).sharders
    if asked is None:
        return
    if not known:
        raise Unsupported("sharded-by={} is not modelled for engine {}; leave it out", asked, job.engine)
    if asked not in known:
        raise Unsupported("sharded-by={} is not how engine {} shards; use {}", asked, job.engine, ", ".join(known))
    if job.plan.shards is Shards.NOTHING:
        raise InvalidSpec("sharded-by={} says who shards, and nothing is sharded; add --shards everything", asked)


def _check_sharders_options(job: Job) -> None:
    """Raise InvalidSpec for an engine option that is of another sharder than the job's."""
    who = sharder(job)
    for name, owner in OF_SHARDERS.items():
        if job.engine_options.get(name) and who != owner:
            raise InvalidSpec("engine option {} is for --sharded-by {}; leave it out", name, owner)


def _tensor_parallel_sizes(layers: list[Layer]) -> Sizes:
    for layer in layers:
        if isinstance(layer.mixer, (Attention, MultiLatentAttention)):
            yield "num_heads", layer.mixer.num_heads
        if isinstance(layer.channel, MLP):
            yield "ffn", layer.channel.width


def _divides(name: str, degree: int, sizes: list[tuple[str, int]], model: str) -> None:
    for what, size in sizes:
        common = gcd(*(other for _, other in sizes))
        _fits(name, degree, Note("{}={} of {}", what, size, model), _divisor_of(size), _divisor_of(common))


def _divisor_of(size: int) -> Rule:
    return lambda n: size % n == 0


def _shares_evenly(size: int) -> Rule:
    """Heads are divided, or each is copied to the same number of ranks."""
    return lambda n: size % n == 0 or n % size == 0


def _fits(
    name: str, degree: int, what: str, rule: Rule, suggest: Rule | None = None
) -> None:
    if rule(degree):
        return
    good = [str(n) for n in range(1, LARGEST_SUGGESTED + 1) if (suggest or rule)(n)][:8]
    raise InvalidSpec("{}={} does not divide {}; use {}", name, degree, what, listed(good))


Release = Annotated[str, Meta(pattern=r"^(\d{1,4}(\.\d{1,4}){1,3})?$")]
Major = Annotated[int, Meta(ge=0, le=1000)]
Date = Annotated[str, Meta(pattern=r"^(\d{4}-\d{2}(-\d{2})?)?$")]
Elements = Annotated[int, Meta(ge=1, le=1 << 62)]
Size = Annotated[int, Meta(ge=0, le=1 << 62)]
Automatic = Literal["auto"]


class Eager(Noun, frozen=True):
    """Engines that run PyTorch's operators one by one."""

    reentrant: bool = False  # checkpoints of the older kind
    padded: bool = False  # batches with an attention mask
    shifted_loss: bool = False  # model code that shifts its logits
    second_loss: bool = False  # of returned logits, beside one of the model code that nobody uses
    eval_batch: Annotated[int, Meta(ge=0, le=1 << 20)] = 0  # samples of an evaluation's forward; 0: as a step's
    qat: Literal["int4", "int8-int4", "int8-int4-affine", "mxfp4"] = "int4"  # what linear layers round to and back
    qat_group: Annotated[int, Meta(ge=2, le=1 << 16)] = 128  # elements of a weight that share a scale
    gradient_as_bucket_view: bool = False  # DDP's buckets are the gradients
    beta: Annotated[float, Meta(ge=0, le=1000)] = 0.0  # weight of GRPO's KL term; without it there is no reference
    steps_per_generation: Annotated[int, Meta(ge=0, le=1 << 20)] = 1  # GRPO: micro-batches made at once; 0: by a server


class Unsloth(Eager, frozen=True):
    """Unsloth."""

    offload_checkpoints: bool = True  # inputs of recomputed layers wait on the host


class PyTorch(Eager, frozen=True):
    """A plain loop."""

    model_loss: bool = False  # transformers' model code computes the loss
    backward_prefetch: Literal["pre", "none"] = "pre"  # of FSDP1
    defers_sync: bool = True  # FSDP: gradients of micro-batches before the last add up unsharded
    reduce_dtype: Literal["param", "float32"] = "param"  # FSDP2: of gradients while they are reduced or add up
    frozen_towers: Literal["layers", "root"] = "layers"  # FSDP2: units of towers of which nothing learns
    float8_all_gather: bool = False  # FSDP2: torchao's linear layers
    liger: bool | str = False  # Liger's kernels: all, or those named, rope+rms_norm


class Zero(Eager, frozen=True):
    """DeepSpeed's `zero_optimization`, sizes in elements."""

    # of preferences: TRL's and ms-swift's, ORPO's and CPO's, LLaMA-Factory's, DeepSpeed-Chat's
    log_probs: Literal["samples", "rows", "rows+nll", "whole", "outputs", "behind", "whole+nll", "asft"] = "samples"
    reduce_bucket_size: Elements | Automatic = 1
    stage3_prefetch_bucket_size: Size | Automatic = 0
    stage3_param_persistence_threshold: Size | Automatic = 0
    sub_group_size: Size | Automatic = 1
    stage3_max_reuse_distance: Size | Automatic = 0
    overlap_comm: bool = True
    auto: bool = False  # the Trainer's sizes from the width of the model
    grad_accum_dtype: Literal["fp32", "fp16", "bf16"] = "bf16"
    zero: bool = True  # false: stage 0 on one GPU
    torch_autocast: bool = False  # over weights of 16 bits
    torch_adam: bool = False  # PyTorch's own step instead of DeepSpeed's
    rest_learns: bool = False  # all that adapters do not stand beside


class HuggingFace(Zero, frozen=True):
    """The Trainer, with or without DeepSpeed."""

    deepspeed: bool = False
    torch: Release | Major = ""  # 2.8
    accelerate: Release | Major = ""  # 1.10
    liger: bool | str = False  # Liger's kernels: all, or those named, rope+rms_norm
    cut_cross_entropy: bool = False  # Apple's loss over hidden states, beside --loss fused_linear
    autocast: bool = False  # bf16 or fp16 of the Trainer over weights of 16 bits
    fsdp_units: Literal["layers", "experts"] = "layers"  # what FSDP1 wraps
    masked_diffusion: bool = False  # axolotl's trainer of networks that fill in masked tokens
    fp32_modules: bool = False  # norms, embedding and head, beside layers of 16 bits
    backward_prefetch: Literal["pre", "none"] = "pre"  # of FSDP1
    defers_sync: bool = True  # FSDP: gradients of micro-batches before the last add up unsharded
    trl: Release | Major = ""  # 0.24
    dtype: Literal["float32", "bfloat16", "float16"] = "bfloat16"  # that a frozen network is loaded in
    prepare_kbit: Literal["trl", "peft", "norms", "none"] = "trl"  # who prepares a packed base for training
    follows_inputs: bool = False  # what a frozen tower's embedding puts out needs gradients, whatever PEFT asks for
    learns_beside: Literal["", "projector"] = ""  # what learns in its place beside adapters
    whole_towers: bool = False  # in float32 beside a packed language model
    frozen_halves: bool = False  # --freeze's parts are in 16 bits beside weights of 32 that learn
    tower_rank: Annotated[int, Meta(ge=0, le=1 << 20)] = 0  # of adapters of towers; 0: --lora-rank
    float8_all_gather: bool = False  # FSDP2: torchao's linear layers
    quant_storage: Literal["float", "uint8"] = "float"  # type that numbers of a packed base are kept as
    loads_on_host: bool = False  # a packed base that FSDP shards, whatever transformers does
    pack_experts: bool = False  # stacked experts of a packed base, too, as axolotl's quantize_moe_experts
    linear_experts: bool = False  # every expert is three linear layers, as axolotl's llama4_linearized_experts
    experts_without_dropout: bool = False  # adapters of stacked ones leave it out, where PEFT stops
    precompute_ref_log_probs: bool = False  # the reference of DPO or KTO is asked before the run
    teacher_dtype: Literal["compute", "float32"] = "compute"  # that GKD's teacher is loaded in beside autocast
    generation_batch_size: Elements = 1  # instead: answers that all processes write together
    converts_outputs: bool = True  # Accelerate makes what forward returns fp32
    experts: Literal["transformers", "scattermoe", "fms"] = "transformers"  # whose products of routed experts
    value_head: bool = False  # of TRL beside the language head, for rewards
    gptq_kernel: Literal["cuda_old", "tritonv2"] = "cuda_old"  # AutoGPTQ's QuantLinear


class Colossal(Eager, frozen=True):
    """ColossalChat."""

    trainer: str = "sft"


class Torchtitan(Noun, frozen=True):
    """torchtitan."""

    version: Date = ""  # of the checkout, 2025-02-06
    trainer: Literal["eager", "graph"] = "eager"
    reshard: Literal["default", "always", "last", "blocks", "never"] = "default"
    float8: bool = False
    float8_all_gather: bool = False
    pipeline_microbatch_size: Elements = 1
    defers_sync: bool = False  # gradients of micro-batches before the last add up unsharded
    whole_experts: bool = False  # experts that no two ranks share stand outside FSDP
    kernel: Literal["fused", "foreach", "loop"] = "fused"  # of the optimizer
    frozen_towers: Literal["layers", "root"] = "layers"  # who holds towers of which nothing learns, beside experts
    scaled_rank: bool = False  # adapters of experts have the rank divided by the experts that a token meets
    expandable: bool = True  # the allocator's segments, as its own script sets them
    ends_count: bool = True  # embedding and head as a layer each, where layers are divided over stages
    keeps_outputs: bool = False  # the last stage keeps the logits of all micro-batches
    keeps_router: bool = False  # of a layer that is recomputed whole: what its router chose
    cuda_graphs: bool = False  # forward and backward are replayed: gradients stay between steps


class Torchtune(Eager, frozen=True):
    """torchtune."""

    split_root: bool = False  # embedding and head are gathered apart: custom_sharded_layers names both
    optimizer_in_backward: bool = False  # every weight is stepped as soon as its gradient is there
    recompute_every: Annotated[int, Meta(ge=2, le=1 << 20)] | None = None  # only each so manieth layer: ac_option


class Litgpt(Noun, frozen=True):
    """litgpt."""

    version: Date = ""  # of the checkout
    adapter_version: Literal[1, 2] = 1
    tie_embeddings: bool = False


OPTIONS: Final[dict[str, type[Noun]]] = {
    "pytorch": PyTorch, "huggingface": HuggingFace, "unsloth": Unsloth, "deepspeed": Zero, "colossalai": Colossal,
    "torchtitan": Torchtitan, "torchtune": Torchtune, "litgpt": Litgpt,
}
"""Engine -> its options, none where it does not stand here; the defaults are not read, the engines have their own."""


def options_of(engine: str) -> type[Noun]:
    """What an engine can be told; Megatron's module is read only where it is asked."""
    return engines.megatron.options.Options if engine == "megatron" else OPTIONS.get(engine, Noun)


def check_options(job: Job) -> None:
    """Raise UnknownName for a name that the job's engine does not have, InvalidSpec for a value it cannot be."""
    if not job.engine_options:
        return
    known = options_of(job.engine)
    for name in job.engine_options:
        if not known.__struct_fields__:
            raise InvalidSpec("{} has no engine options; leave {} out", job.engine, name[:80])
        if name not in known.__struct_fields__:
            raise UnknownName.of(Note("engine option of {}", job.engine), name, known.__struct_fields__)
    try:
        msgspec.convert(job.engine_options, known, strict=False)  # 0.04 is a version to some, a number to others
    except msgspec.ValidationError as error:
        raise _unfitting(job, known, error) from error
    if job.engine_options.get("log_probs") == "asft" and job.workload.objective != "gkd":
        raise InvalidSpec("log_probs=asft is a loss of a reference, which --objective {} does not ask; use --objective "
                          "gkd --teacher itself", job.workload.objective)


def _unfitting(job: Job, known: type[Noun], error: msgspec.ValidationError) -> InvalidSpec:
    """What is said of a value that an engine option cannot be: the words it has, where it has words."""
    hints = get_type_hints(known)
    for name, value in job.engine_options.items():
        words = get_args(hints[name]) if get_origin(hints[name]) is Literal else ()
        if words and value not in words:
            return InvalidSpec("engine option of {}: {}={} is none of {}", job.engine, name, str(value)[:80],
                               ", ".join(map(str, words)))
    return InvalidSpec("engine option of {}: {}", job.engine, error)
