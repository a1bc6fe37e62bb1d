"""Rules that every engine's plans obey: what a degree must divide. Checked once, before any engine runs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from math import gcd
from typing import Final

from vramcast import estimate
from vramcast.blocks.lengths import check_lengths, reads_images
from vramcast.blocks.parameters.targets import check_targets
from vramcast.domain.job import ANSWERS, GENERATES, WITHOUT_TARGETS, Job, Plan, Precision, Recompute, Shards
from vramcast.domain.model import MLP, Attention, Head, Layer, MoE, MultiLatentAttention
from vramcast.engines.eager.releases import ZERO_OPTIONS, runs_deepspeed, sharder
from vramcast.engines.training import FLATTENS, UNUSED_BY_SHARDER, engine_of
from vramcast.errors import InvalidSpec, Note, Unsupported, listed
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
        estimate.engine_options.check_options(job)
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
    if plan.pp * plan.virtual_stages > model.num_layers:
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
    if runs_deepspeed(job) and job.engine != "deepspeed" and whole:
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
    if workload.completion_len and workload.objective not in GENERATES:
        raise InvalidSpec("completion-len needs objective ppo, grpo or rloo, not {}", workload.objective)


def _check_optimizer(job: Job) -> None:
    """Raises Unsupported where an engine cannot step as the optimizer does."""
    name, engine = job.plan.optimizer, job.engine
    rule = optimizer(name)
    who = sharded_by(job)
    alone = job.data_parallel == 1 and who is None
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
