"""Ways to save memory, one row each: what it changes in a job, what it costs, when to use it and what it needs.

A plan that does not fit is offered those that apply (`estimate.changes`); the table of techniques of a case
(`search.techniques`) computes all of them.

A job with something changed, and the options that say so.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Final, Literal

from msgspec import Struct
from msgspec.structs import asdict, replace

from vramcast.blocks.parameters.targets import usual_targets
from vramcast.domain.device import Gpu
from vramcast.domain.job import (
    WITHOUT_TARGETS,
    AttentionKernel,
    Job,
    Loss,
    Peft,
    Plan,
    Precision,
    Recompute,
    Shards,
    Workload,
)
from vramcast.engines.eager.releases import precision_word
from vramcast.engines.eager.trl import narrows_adapters, recomputing
from vramcast.engines.training import TRAINING
from vramcast.units import ceil_div

FULL_PRECISION: Final = (Precision.FP64, Precision.FP32, Precision.TF32)

BF16_RECIPES: Final = (Precision.AMP_BF16, Precision.MIXED_BF16, Precision.BF16)

FP16_RECIPES: Final = (Precision.AMP_FP16, Precision.MIXED_FP16, Precision.FP16)

PEFT_OPTIONS: Final = {
    "method": "peft", "rank": "lora-rank", "targets": "lora-targets", "dropout": "lora-dropout", "base": "base-weights",
}
"""Field of `Peft` -> option, where the names differ."""


def with_plan(job: Job, **changes: Any) -> Job:
    """The job with fields of its plan changed."""
    return replace(job, plan=replace(job.plan, **changes))


def of_plain_layers(job: Job) -> Job:
    """The job whose adapters have as many weights in all: Megatron's ranks share them, PyTorch's layers hold them."""
    if job.engine != "megatron":
        return job
    return replace(job, engine="pytorch", engine_options={}, plan=Plan(peft=job.plan.peft))


def with_new_adapters(job: Job, base: Literal["full", "nf4-dq"]) -> Job:
    """The job with LoRA of rank 16 on what is adapted where nobody says, in the dtype that its tool makes unasked."""
    peft = Peft(rank=16, base=base, targets=usual_targets(job.model))
    return with_plan(job, peft=replace(peft, adapter_dtype=_unasked_dtype(with_plan(job, peft=peft))))


def _unasked_dtype(job: Job) -> str:
    return "bf16" if narrows_adapters(job) else Peft().adapter_dtype


def with_workload(job: Job, **changes: Any) -> Job:
    """The job with fields of its workload changed."""
    return replace(job, workload=replace(job.workload, **changes))


def sixteen_bits(engine: str, gpu: Gpu) -> Precision:
    """What an engine computes in 16 bits with: bf16, or fp16 with a loss scale on cards without it."""
    known = TRAINING[engine]
    return known.sixteen_bits if gpu.has_bf16 else known.in_fp16 or known.sixteen_bits


def recipes(asked: Iterable[Precision | None], engine: str, gpu: Gpu) -> tuple[Precision, ...]:
    """The precisions of an axis on one card; those in bf16 are left out where it has none and there are others.

    Args:
        asked: None stands for the engine's own 16 bits
        engine: the framework
        gpu: the card
    """
    found = dict.fromkeys(precision or sixteen_bits(engine, gpu) for precision in asked)
    native = tuple(precision for precision in found if gpu.has_bf16 or precision not in BF16_RECIPES)
    return native or tuple(found)


def rebatched(job: Job) -> Job | None:
    """The job with as many micro-batches as its question's global batch takes; None where that does not divide."""
    if job.global_batch is None:
        return job
    grad_accum, rest = divmod(job.global_batch, job.data_parallel * job.workload.micro_batch)
    return None if rest else with_workload(job, grad_accum=grad_accum)


def on_engine(job: Job, engine: str) -> Job:
    """The same question to another engine, in that engine's own 16-bit recipe; several cards share what they must."""
    if engine == job.engine:
        return job
    full = job.plan.precision in FULL_PRECISION
    precision = job.plan.precision if full else sixteen_bits(engine, job.cluster.gpu)
    copied = job.plan.shards is Shards.NOTHING and job.data_parallel > 1
    least = Shards.OPTIMIZER if engine == "deepspeed" else Shards.NOTHING  # `estimate.checks`: no copies of everything
    shards = least if copied else job.plan.shards
    there = with_plan(job, precision=precision, shards=shards, sharded_by=None)
    return replace(there, engine=engine, engine_version=None, engine_options={})


def options_between(before: Job, after: Job) -> str:
    """The options that turn one job into another, as the command line writes them.

    Another engine's own 16-bit recipe is its default, and not written where the first engine's own was asked for; nor
    are micro-batches that follow from the global batch of the question. What an engine does unasked and the job does
    not is written, whatever the first job does.
    """
    words, derived = [], ("peft",) if after.global_batch is None else ("peft", "grad_accum")
    unasked = bool(recomputing(after))
    differs = (unasked or recomputing(before)) and unasked is (after.plan.recompute is Recompute.NONE)
    otherwise = ("recompute",) if differs else ()
    if after.cluster.name != before.cluster.name:
        words.append(f"--gpus {after.cluster.name}")
    if after.engine != before.engine:
        words.append(f"--engine {after.engine}")
        if not all(job.plan.precision is sixteen_bits(job.engine, job.cluster.gpu) for job in (before, after)):
            words.append(_option("precision", precision_word(after)))
        before = with_plan(before, precision=after.plan.precision)
    for old, new, usual in ((before.plan, after.plan, Plan()), (before.workload, after.workload, Workload())):
        was, default = asdict(old), asdict(usual)
        said = {field: default[field] if value is None else value for field, value in asdict(new).items()}
        said |= {"precision": precision_word(after)}
        words += [
            _option(field, said[field]) for field, value in asdict(new).items()
            if field not in derived and (value != was[field] or field in otherwise)
        ]
    if after.plan.peft != before.plan.peft:
        words += _peft_options(after)
    if after.alloc_conf != before.alloc_conf:
        words.append(_option("alloc_conf", after.alloc_conf))
    return " ".join(filter(None, words))


def _peft_options(job: Job) -> list[str]:
    """The method, what is adapted, which depends on the model where nobody says, and what differs from the usual."""
    peft = job.plan.peft
    if peft is None:
        return []
    usual = asdict(Peft()) | {"adapter_dtype": _unasked_dtype(job)}
    return [
        _option(PEFT_OPTIONS.get(field, field), value)
        for field, value in asdict(peft).items()
        if field == "method" or value != usual[field] or (field == "targets" and peft.method not in WITHOUT_TARGETS)
    ]


def _option(field: str, value: object) -> str:
    """One option; nothing for a value that is said by leaving it out."""
    name = field.replace("_", "-")
    if isinstance(value, bool):
        return f"--{name}" if value else f"--no-{name}"
    if isinstance(value, tuple):
        value = ",".join(map(str, value))
    return "" if value in (None, "") else f"--{name} {value}"


Apply = Callable[[Job], Job | None]
"""The job with something changed, or as it is where it is so already; None where it does not apply."""


class Technique(Struct, frozen=True):
    """One row of the table."""

    name: str
    apply: Apply
    cost: str  # in time or quality
    when: str
    needs: str
    without: Apply | None = None  # what a job that has it is compared with; None: the job without it
    engines: tuple[str, ...] = ()  # others that have it, in order of preference
    against_asked: bool = False  # compared with the job as asked, even where another engine has it
    offered: bool = True  # to a plan that does not fit
    usually: str = ""  # what it costs in time where no step time is known


def _set(**changes: Any) -> Apply:
    return lambda job: with_plan(job, **changes)


def _recompute(kind: Recompute) -> Apply:
    """Of all layers: a question that named fewer is told a number, as no option takes its own back."""

    def apply(job: Job) -> Job:
        plan = job.plan
        is_even = plan.first_stage_layers is None and plan.last_stage_layers is None
        most = ceil_div(job.model.num_layers, plan.pp) if is_even else job.model.num_layers  # of a stage
        return with_plan(job, recompute=kind, recompute_layers=None if plan.recompute_layers is None else most)

    return apply


def _flash_for_eager(job: Job) -> Job | None:
    known = (None, AttentionKernel.EAGER, AttentionKernel.FLASH)
    return with_plan(job, attention=AttentionKernel.FLASH) if job.plan.attention in known else None


def _stage(shards: Shards) -> Apply:
    """That much sharding, where there is somebody to share with and less is shared so far."""

    def apply(job: Job) -> Job | None:
        order, alone = list(Shards), job.data_parallel * job.plan.cp == 1
        return None if alone or order.index(job.plan.shards) > order.index(shards) else with_plan(job, shards=shards)

    return apply


def _fsdp(job: Job) -> Job | None:
    alone = job.data_parallel * job.plan.cp == 1
    return None if alone or job.engine != "torchtitan" else with_plan(job, shards=Shards.EVERYTHING)


def _hsdp(job: Job) -> Job | None:
    """Sharded inside each machine, copied between machines."""
    group = job.cluster.gpus_per_node
    if job.engine != "torchtitan" or job.cluster.num_nodes == 1 or group == 1 or job.data_parallel % group:
        return None
    return with_plan(job, shards=Shards.EVERYTHING, shard_group=group)


def _sixteen_bits(job: Job) -> Job | None:
    recipe = sixteen_bits(job.engine, job.cluster.gpu)
    if job.plan.precision in FULL_PRECISION:
        return with_plan(job, precision=recipe)
    return job if job.plan.precision is recipe else None


def _pure_bf16(job: Job) -> Job | None:
    """Where the card has bf16; Colossal-AI keeps an fp32 copy whatever it is told."""
    keeps = job.engine == "colossalai" or not job.cluster.gpu.has_bf16
    return None if keeps else with_plan(job, precision=Precision.BF16)


def _fp8(job: Job) -> Job | None:
    return with_plan(job, precision=Precision.FP8) if job.cluster.gpu.has_fp8 else None


def _fused_loss(job: Job) -> Job | None:
    best = Loss.FUSED if job.engine == "megatron" else Loss.FUSED_LINEAR
    return with_plan(job, loss=best)


def _optimizer(name: str) -> Apply:
    return lambda job: with_plan(job, optimizer=name) if job.plan.optimizer in ("adam", "adamw") else None


def _offload(place: str) -> Apply:
    return lambda job: with_plan(job, offload_optimizer=place) if job.plan.offload_optimizer == "none" else None


def _micro_batch(smaller: Callable[[int], int]) -> Apply:
    def apply(job: Job) -> Job | None:
        batch = job.workload.micro_batch
        if batch == 1:
            return None
        fewer = smaller(batch)
        return with_workload(job, micro_batch=fewer, grad_accum=job.workload.grad_accum * batch // fewer)

    return apply


def _divided(job: Job, **degrees: Any) -> Job:
    """The model over more ranks; where that leaves no copies there is nobody to share states with."""
    divided = with_plan(job, **degrees)
    return with_plan(divided, shards=Shards.NOTHING) if divided.data_parallel * divided.plan.cp == 1 else divided


def _double(name: str) -> Apply:
    def apply(job: Job) -> Job | None:
        degree = getattr(job.plan, name) * 2
        if job.data_parallel % 2 or degree > job.cluster.count:
            return None
        return _divided(job, **{name: degree})

    return apply


def _whole_machine(job: Job) -> Job | None:
    """Tensor parallelism over every card of a machine, where that is more than twice what there is."""
    degree = job.cluster.gpus_per_node
    if degree <= 2 * job.plan.tp or job.data_parallel * job.plan.tp % degree:
        return None
    return _divided(job, tp=degree)


def _sequence_parallel(job: Job) -> Job | None:
    if job.plan.tp == 1 and job.data_parallel % 2:
        return None
    return _divided(job, tp=max(2, job.plan.tp), sequence_parallel=True)


def _adapted(job: Job, base: Literal["full", "nf4-dq"]) -> Job:
    """Adapters on frozen weights; a plain loop on one card would keep those in fp32, so the Trainer is asked."""
    plain = job.engine == "pytorch" and job.cluster.count == 1
    return with_new_adapters(on_engine(job, "huggingface") if plain else job, base)


def _lora(job: Job) -> Job | None:
    return None if job.plan.peft else _adapted(job, "full")


def _qlora(job: Job) -> Job | None:
    """Adapters on frozen weights in 4 bits; those that are there already keep their rank and targets."""
    peft = job.plan.peft
    if peft is None:
        return _adapted(job, "nf4-dq")
    return with_plan(job, peft=replace(peft, base="nf4-dq")) if peft.base == "full" else None


def _expandable(job: Job) -> Job | None:
    return None if job.alloc_conf else replace(job, alloc_conf="expandable_segments:True")


def _half_sequence(job: Job) -> Job | None:
    workload = job.workload
    shorter = workload.seq_len // 2
    return with_workload(job, seq_len=shorter) if shorter >= max(1024, workload.min_seq_len or 0) else None


TECHNIQUES: Final[tuple[Technique, ...]] = (
    Technique(
        "flash attention", _flash_for_eager, "none; it is faster",
        "always; the longer the sequence the more", "Ampere or newer for FlashAttention 2; older cards have other "
        "kernels that store no scores",
        without=_set(attention=AttentionKernel.EAGER),
    ),
    Technique(
        "mixed precision", _sixteen_bits, "none on tensor cores; fp16 needs a loss scale",
        "always, unless a loss is known to need fp32", "bf16: Ampere or newer; fp16 elsewhere",
        without=_set(precision=Precision.FP32), offered=False,
    ),
    Technique(
        "expandable segments", _expandable, "about none",
        "reserved memory is much larger than allocated", "PyTorch 2.1 or newer", offered=False,
    ),
    Technique(
        "ZeRO 1", _stage(Shards.OPTIMIZER), "more communication per step",
        "the optimizer states are what does not fit; first choice on several cards", "several data-parallel ranks",
        engines=("deepspeed",), against_asked=True,
    ),
    Technique(
        "ZeRO 2", _stage(Shards.OPTIMIZER_AND_GRADIENTS), "more communication per step",
        "gradients are too large as well; little gained under accumulation in some engines",
        "several data-parallel ranks", engines=("deepspeed",), against_asked=True,
    ),
    Technique(
        "ZeRO 3", _stage(Shards.EVERYTHING), "gathers the weights in forward and backward",
        "the weights alone do not fit one card", "fast links: every layer is gathered twice a micro-batch",
        engines=("deepspeed",), against_asked=True,
    ),
    Technique(
        "FSDP", _fsdp, "gathers the weights in forward and backward",
        "as ZeRO 3, inside PyTorch itself", "fast links: every layer is gathered twice a micro-batch",
        engines=("torchtitan",), against_asked=True,
    ),
    Technique(
        "HSDP", _hsdp, "copies of the weights in every machine",
        "several machines with a slow network between them", "one machine holds the whole model",
        engines=("torchtitan",), against_asked=True, offered=False,
    ),
    Technique(
        "fused cross entropy", _fused_loss, "about none",
        "large vocabularies, long sequences: logits are the largest tensor",
        "Liger, cut cross entropy or an engine's own kernel",
    ),
    Technique(
        "half the micro-batch", _micro_batch(lambda batch: batch // 2), "smaller matrix products",
        "activations are what does not fit", "gradient accumulation keeps the batch as it is",
    ),
    Technique(
        "micro-batch of one", _micro_batch(lambda batch: 1), "the smallest matrix products",
        "activations are what does not fit", "gradient accumulation keeps the batch as it is", offered=False,
    ),
    Technique(
        "selective recomputation", _recompute(Recompute.SELECTIVE),
        "computes again what is cheap to compute",
        "activations are a little too large", "an engine that knows what is cheap to compute again",
        engines=("torchtitan", "megatron"), usually="a few per cent more time",
    ),
    Technique(
        "full recomputation", _recompute(Recompute.FULL),
        "one more forward", "activations are much too large", "nothing",
        without=_set(recompute=Recompute.NONE), usually="about a third more time",
    ),
    Technique(
        "tensor parallelism", _double("tp"), "communication in every layer",
        "a layer or its activations are too large for one card", "NVLink: it stays inside one machine",
        engines=("megatron", "torchtitan"),
    ),
    Technique(
        "tensor parallelism over the machine", _whole_machine, "communication in every layer",
        "the model is too large for pipeline stages alone", "NVLink, and heads that divide",
        engines=("megatron", "torchtitan"), offered=False,
    ),
    Technique(
        "sequence parallelism", _sequence_parallel, "none beside tensor parallelism",
        "always with tensor parallelism", "tensor parallelism",
        without=_set(sequence_parallel=False), engines=("megatron",), offered=False,
    ),
    Technique(
        "pipeline parallelism", _double("pp"), "pipeline bubbles",
        "the model is too large for one machine, or links are slow", "many micro-batches per step",
        engines=("megatron", "torchtitan"),
    ),
    Technique(
        "context parallelism", _double("cp"), "exchanges keys and values",
        "long sequences", "a sequence that divides", engines=("megatron", "torchtitan"),
    ),
    Technique(
        "fp8", _fp8, "faster; needs care with scales",
        "large matrix products on new cards", "Ada, Hopper or newer; torchao or TransformerEngine",
        engines=("megatron", "torchtitan"), offered=False,
    ),
    Technique(
        "compile", _set(compile=True), "faster after a minute of compiling",
        "pointwise operators take memory and time", "static shapes; a model torch.compile can trace", offered=False,
        engines=("torchtitan",),
    ),
    Technique(
        "8-bit optimizer", _optimizer("adamw-8bit"), "8-bit states",
        "the optimizer states are what does not fit, on one or few cards", "bitsandbytes or torchao",
        engines=("huggingface",),
    ),
    Technique(
        "pure bf16", _pure_bf16, "updates are rounded to bf16: a worse loss without stochastic rounding",
        "fine-tuning where nothing else fits", "Ampere or newer", engines=("pytorch", "torchtune"), offered=False,
    ),
    Technique(
        "optimizer on the CPU", _offload("cpu"), "the step runs at PCIe and CPU speed",
        "states fit nowhere on the cards, and steps are long",
        "main memory: 12 bytes a parameter, over all machines", engines=("deepspeed",),
    ),
    Technique(
        "optimizer on NVMe", _offload("nvme"), "the step runs at the disks' speed",
        "main memory is too small as well", "local disks: 12 bytes a parameter", engines=("deepspeed",), offered=False,
    ),
    Technique(
        "weights and optimizer on the CPU",
        _set(shards=Shards.EVERYTHING, offload_optimizer="cpu", offload_parameters="cpu"),
        "weights and states cross PCIe every step", "the last resort on few cards",
        "main memory: 14 to 16 bytes a parameter, over all machines", engines=("deepspeed",), offered=False,
    ),
    Technique(
        "activations on the CPU", _set(offload_activations=True), "activations cross PCIe twice",
        "long sequences, with recomputation", "pinned main memory, PCIe 4 or better", offered=False,
    ),
    Technique(
        "LoRA", _lora, "trains adapters instead of the weights",
        "fine-tuning", "a model that is good already", engines=("huggingface",),
    ),
    Technique(
        "QLoRA", _qlora, "frozen weights in 4 bits: slower products, a little quality",
        "fine-tuning on one small card", "bitsandbytes", engines=("huggingface",),
    ),
    Technique(
        "half the sequence", _half_sequence, "shorter context",
        "the data allows it", "documents that fit",
    ),
)
"""In order of what a user gives up, least first."""
