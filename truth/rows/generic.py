"""Rows of groups without an adapter of their own: free text mapped to a job, or refused with what is missing.

What a row does not say is taken from the defaults of the framework it names, never from its measured value.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

from truth.contract import Prediction, Refused, traits_at
from truth.rows.adapters import peft_of
from truth.rows.huggingface import highest
from truth.rows.megatron_bridge import COMMON as MEGATRON_RECIPES
from truth.rows.names import card_of, model_of
from vramcast.domain.answer import Answer
from vramcast.domain.device import Cluster
from vramcast.domain.job import (
    LARGEST_COUNT,
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
from vramcast.domain.version import Version, read_version
from vramcast.engines.training import TRAINING, Sharder
from vramcast.errors import UnknownName
from vramcast.estimate.training import answer
from vramcast.states.optimizers import optimizer
from vramcast.units import GB, GIB

Row = dict[str, Any]


class Framework(NamedTuple):
    """What a word in `framework` stands for."""

    engine: str
    half: Precision = Precision.AMP_BF16  # what "bf16" means for full fine-tuning


FRAMEWORKS: Final[tuple[tuple[str, Framework], ...]] = (
    ("unsloth", Framework("unsloth", Precision.BF16)),
    ("torchtune", Framework("torchtune", Precision.BF16)),
    ("torchtitan", Framework("torchtitan")),
    ("litgpt", Framework("litgpt", Precision.BF16)),
    ("lit-gpt", Framework("litgpt", Precision.BF16)),
    ("megatron-deepspeed", Framework("deepspeed", Precision.MIXED_BF16)),
    ("megatron", Framework("megatron", Precision.MIXED_BF16)),
    ("automodel", Framework("huggingface", Precision.BF16)),  # FSDP2 around Hugging Face models, without Megatron
    ("nemo", Framework("megatron", Precision.MIXED_BF16)),
    ("colossal", Framework("colossalai", Precision.MIXED_BF16)),
    ("axolotl", Framework("huggingface", Precision.BF16)),  # load_model: torch_dtype of the config
    ("swift", Framework("huggingface", Precision.BF16)),  # torch_dtype of the checkpoint
    ("trl", Framework("huggingface", Precision.BF16)),  # examples: --dtype bfloat16
    ("llama-factory", Framework("huggingface")),  # upcasts trainable parameters unless pure_bf16
    ("llama factory", Framework("huggingface")),
    ("llamafactory", Framework("huggingface")),
    ("transformers", Framework("huggingface")),
    ("accelerate", Framework("huggingface")),
    ("trainer", Framework("huggingface")),
    ("hugging", Framework("huggingface")),
    ("peft", Framework("huggingface")),
    ("hf", Framework("huggingface")),
    ("deepspeed", Framework("deepspeed", Precision.MIXED_BF16)),
    ("fsdp", Framework("pytorch")),
    ("lightning", Framework("pytorch")),
    ("fabric", Framework("pytorch")),
    ("torch", Framework("pytorch")),
)
"""First match wins: a framework comes before the library it is built on."""

OPTIMIZERS: Final[tuple[tuple[str, str], ...]] = (
    ("lion 8", "lion-8bit"), ("lion-8", "lion-8bit"), ("lion8", "lion-8bit"), ("4bit", "adamw-4bit"),
    ("4-bit", "adamw-4bit"), ("8bit", "adamw-8bit"), ("8-bit", "adamw-8bit"), ("adafactor", "adafactor"),
    ("adalomo", "adalomo"), ("lomo", "lomo"), ("galore", "galore"), ("apollo", "apollo"), ("lion", "lion"),
    ("muon", "muon"), ("shampoo", "shampoo"), ("soap", "soap"), ("momentum", "sgd-momentum"), ("sgd", "sgd"),
    ("adam", "adamw"), ("default", "adamw"),
)

ZERO: Final[dict[str, Shards]] = {
    "3": Shards.EVERYTHING, "2": Shards.OPTIMIZER_AND_GRADIENTS, "1": Shards.OPTIMIZER, "0": Shards.NOTHING,
}

OBJECTIVES: Final = ("grpo", "dpo", "ppo", "reward")
WITHOUT_AUTOCAST: Final = re.compile(r"true|pure|weights|no.?amp|use_amp=false|load")
OLD_TRANSFORMERS: Final = re.compile(r"transformers[ =v]*[34]\.|torch[ =v]*(?:1\.|2\.[0-3]\b)")
OLD_RELEASE: Final[Version] = (4, 45)
"""What stands for any of them: reentrant checkpoints, and a loss over shifted copies of the logits."""

BESIDE: Final = {"measured_reserved_gib": "reserved", "memory_allocated_gib": "allocated"}
"""Fields with the same run's peak at a second level."""


def predict(row: Row) -> Iterator[Prediction]:
    """The row's peak at the level its metric names, and at a second one where it states that too."""
    measured = row.get("measured_gib")
    if not isinstance(measured, (int, float)) or measured <= 0:
        raise Refused("the row does not state measured_gib")
    job, found = answered(row)
    gpus = number(row, "n_gpus", 1) if row.get("total_over_gpus") else 1
    values = {level_of(str(row.get("metric", "")).lower()): float(measured)}
    for field, level in BESIDE.items():
        if isinstance(row.get(field), (int, float)):
            values.setdefault(level, float(row[field]))
    for level, gib in values.items():
        predicted = gpus * highest(found, level)
        yield Prediction(
            level, predicted, gib * GIB, gib * GB if says_gb(row) else None, traits_at(level, job, found.fullest.peak)
        )


def answered(row: Row) -> tuple[Job, Answer]:
    """The row's question and its answer.

    Replicas that do not fit their card cannot have run: a row that names several cards and no sharding was sharded.
    """
    job = job_of(row)
    found = answer(job)
    silent = not row.get("zero") and not row.get("fsdp")
    if not found.fits and silent and job.cluster.count > 1 and job.engine in ("huggingface", "pytorch"):
        job = job_of(row | {"zero": "ZeRO-3"})
        found = answer(job)
    return job, found


def says_gb(row: Row) -> bool:
    """Whether the source prints "GB" without saying which."""
    text = f"{row.get('measured_raw', '')} {row.get('metric', '')}".lower()
    return not re.search(r"gib|mib|bytes|1e9|2\*\*30|1024", text)


def level_of(metric: str) -> str:
    """Allocated or reserved where the metric says so, else what nvidia-smi shows.

    >>> level_of("torch.cuda.max_memory_allocated"), level_of("peak reserved"), level_of("nvidia-smi")
    ('allocated', 'reserved', 'device')
    """
    if "reserved" in metric:
        return "reserved"
    return "allocated" if "alloc" in metric or "active" in metric else "device"


def number(row: Row, field: str, default: int | None = None) -> int:
    """A positive whole number of the row.

    Raises: Refused where it is missing and there is no default
    """
    value = row.get(field)
    if isinstance(value, (int, float)) and 1 <= value <= LARGEST_COUNT:
        return int(value)
    if default is None:
        raise Refused(f"the row does not state {field}")
    return default


def job_of(row: Row) -> Job:
    """The question of a row, from its free text.

    Raises: Refused with the field that is missing or not understood
    """
    text = str(row.get("framework", "")).lower()
    framework = next((found for word, found in FRAMEWORKS if word in text), None)
    if framework is None:
        raise Refused(f"framework {str(row.get('framework'))[:60]!r} is not modelled")
    degrees = degrees_of(row)
    gpus = number(row, "n_gpus", degrees["tp"] * degrees["pp"] * degrees["cp"] * degrees["dp"])
    seq_len, batch = number(row, "seq_len"), number(row, "micro_batch")
    stated = row.get("params_b")
    model = model_of(str(row.get("model", "")), stated if isinstance(stated, (int, float)) and stated > 0 else None)
    peft, (shards, offload), half = peft_of(row, model), shards_of(row), precision_of(row, framework)
    by = sharder_of(row, framework.engine)
    engine = engine_of(framework.engine, shards, by, gpus)
    data = max(1, gpus // (degrees["tp"] * degrees["pp"] * degrees["cp"]))
    plan = Plan(
        tp=degrees["tp"], pp=degrees["pp"], cp=degrees["cp"], ep=degrees["ep"], virtual_stages=degrees["vpp"],
        sequence_parallel=bool(row["parallelism"]["sp"]) if degrees["sp"] else None,
        shards=engine_shards(engine, shards, data * degrees["cp"]),
        precision=engine_precision(engine, half), optimizer=optimizer_of(row), recompute=recompute_of(row, engine),
        sharded_by=(
            by if by != "deepspeed" and shards is not Shards.NOTHING and TRAINING[engine].leaves_sharding else None
        ),
        attention=attention_of(row, engine), loss=loss_of(row, engine), compile="compile" in text,
        offload_optimizer="cpu" if offload else "none",
        offload_parameters="cpu" if offload and shards is Shards.EVERYTHING and engine == "deepspeed" else "none",
        peft=peft,
    )
    accumulated = number(row, "grad_accum", max(1, number(row, "global_batch", 1) // (batch * data)))
    objective = objective_of(row, peft, engine)
    workload = Workload(seq_len=seq_len, micro_batch=batch, grad_accum=accumulated, objective=objective)
    options = options_of(row, engine, shards)
    return Job(
        model=model, plan=plan, cluster=cluster_of(row, gpus), engine=engine, workload=workload,
        engine_version=release_of(row) if engine == "huggingface" else None, engine_options=options,
    )


def degrees_of(row: Row) -> dict[str, int]:
    """Parallel degrees by name, 1 where the row does not say; "sp" is 1 where it says anything."""
    given = row.get("parallelism")
    given = given if isinstance(given, dict) else {}
    found = {name: number(given, name, 1) for name in ("tp", "pp", "cp", "ep", "dp", "vpp")}
    return found | {"sp": int(given.get("sp") is not None)}


def cluster_of(row: Row, gpus: int) -> Cluster:
    """The row's cards, in machines of eight where they are more."""
    per_node = 8 if gpus > 8 and gpus % 8 == 0 else gpus
    return Cluster(gpu=card_of(row.get("gpu")), gpus_per_node=per_node, num_nodes=gpus // per_node)


def sharder_of(row: Row, engine: str) -> Sharder | None:
    """Who shards, where the row says it."""
    text = " ".join(str(row.get(field) or "") for field in ("framework", "zero", "fsdp", "notes")).lower()
    if re.search(r"fsdp ?v?2|fully_shard|automodel", text):
        return "fsdp2"
    if "fsdp" in text:
        return "fsdp1" if re.search(r"fsdp ?v?1\b|flat|fullysharded", text) else None
    return "deepspeed" if re.search(r"deepspeed|zero", text) or engine == "deepspeed" else None


def release_of(row: Row) -> Version | None:
    """The release of transformers, where the row says it or when PyTorch's tells it."""
    text = " ".join(str(row.get(field) or "") for field in ("framework", "notes")).lower()
    named = re.search(r"transformers[ =v]*(\d+\.\d+)", text)
    if named is not None:
        return read_version(named[1])
    return OLD_RELEASE if OLD_TRANSFORMERS.search(text) else None


def engine_of(engine: str, shards: Shards, by: Sharder | None, gpus: int) -> str:
    """The engine that has what the framework was asked for."""
    if gpus == 1 and engine in ("torchtitan", "torchtune"):
        return "pytorch"
    if TRAINING[engine].leaves_sharding and shards is not Shards.NOTHING and gpus > 1 and by == "deepspeed":
        return "deepspeed"
    return engine


def engine_shards(engine: str, shards: Shards, ranks: int) -> Shards:
    """What the engine shards where the row does not say."""
    if shards is Shards.NOTHING and ranks > 1:
        defaults = {"torchtitan": Shards.EVERYTHING, "torchtune": Shards.EVERYTHING, "litgpt": Shards.EVERYTHING,
                    "deepspeed": Shards.OPTIMIZER_AND_GRADIENTS, "colossalai": Shards.OPTIMIZER_AND_GRADIENTS}
        return defaults.get(engine, shards)
    return shards


def shards_of(row: Row) -> tuple[Shards, bool]:
    """What data-parallel ranks split, and whether the host holds the optimizer."""
    text = " ".join(str(row.get(field) or "") for field in ("zero", "fsdp", "framework", "optimizer")).lower()
    offload = re.search(r"cpu|offload|nvme", text) is not None and "no offload" not in text
    stage = re.search(r"(?:zero|stage)[-_ ]*(?:stage[-_ ]*)?(?:dp[-_ ]*)?([0123])", text)
    if stage:
        return ZERO[stage[1]], offload
    if "distributed optimizer" in text or "grad_op" in text:
        return Shards.OPTIMIZER if "distributed" in text else Shards.OPTIMIZER_AND_GRADIENTS, offload
    said = str(row.get("fsdp") or "none").lower() not in ("none", "false", "no", "off", "no_shard", "ddp")
    return (Shards.EVERYTHING if said or "fsdp" in text else Shards.NOTHING), offload


def precision_of(row: Row, framework: Framework) -> Precision:
    """The recipe of the row's words, before the engine's own form of it."""
    text = str(row.get("precision") or "").lower()
    if re.search(r"fp8|float8|mxfp8", text):
        return Precision.FP8
    if "fp4" in text and "nvfp4" in text:
        raise Refused("training in NVFP4 is not modelled")
    fp16 = re.search(r"fp16|float16|half", text) is not None and "bfloat16" not in text
    if re.search(r"mixed|amp\b|autocast", text) and not WITHOUT_AUTOCAST.search(text):
        return Precision.AMP_FP16 if fp16 else Precision.AMP_BF16
    if "16" in text or not text:
        pure = WITHOUT_AUTOCAST.search(text) or framework.half is Precision.BF16
        if fp16:
            return Precision.FP16 if pure else Precision.AMP_FP16
        return Precision.BF16 if pure else framework.half
    if "32" in text:
        return Precision.TF32 if "tf32" in text else Precision.FP32
    raise Refused(f"precision {text[:60]!r} is not understood")


def engine_precision(engine: str, precision: Precision) -> Precision:
    """The form of a recipe that the engine has."""
    half = "fp16" in precision
    if precision in (Precision.FP32, Precision.TF32):
        return precision
    match engine:
        case "megatron" if precision is Precision.FP8:
            return precision
        case "torchtitan":
            return Precision.FP8 if precision is Precision.FP8 else Precision.AMP_BF16
        case "megatron" | "deepspeed" | "colossalai":
            return Precision.MIXED_FP16 if half else Precision.MIXED_BF16
        case "litgpt" | "torchtune":
            return Precision.BF16
        case _ if precision in (Precision.MIXED_BF16, Precision.MIXED_FP16):
            return Precision.AMP_FP16 if half else Precision.AMP_BF16
        case _:
            return precision


def optimizer_of(row: Row) -> str:
    """The optimizer's name in the table of rules."""
    text = str(row.get("optimizer") or "adamw").lower()
    for word, name in OPTIMIZERS:
        if word in text:
            return f"paged-{name}" if "paged" in text else name
    try:
        optimizer(text)
    except UnknownName:
        raise Refused(f"optimizer {text[:60]!r} is not modelled") from None
    return text


def recompute_of(row: Row, engine: str) -> Recompute:
    """Which activations are computed again; torchtitan's own default is its selection."""
    said = row.get("recompute")
    text = str(said or "none").lower()
    if engine == "litgpt" or (said is None and engine != "torchtitan"):
        return Recompute.NONE
    if said is None or re.search(r"selective|sac\b|selected", text):
        return Recompute.SELECTIVE if engine in ("torchtitan", "megatron") else Recompute.FULL
    return Recompute.NONE if re.match(r"none|false|no\b|off|disabled|without", text) else Recompute.FULL


def attention_of(row: Row, engine: str) -> AttentionKernel:
    """Flash attention unless the row names another kernel; Megatron's fused kernels are its own choice."""
    text = str(row.get("attention_impl") or "").lower()
    if engine in ("torchtitan", "torchtune", "litgpt"):
        return AttentionKernel.FLASH
    if re.search(r"eager|unfused|naive|\bmath\b", text):
        return AttentionKernel.EAGER
    return AttentionKernel.EFFICIENT if re.search(r"xformers|memory.efficient", text) else AttentionKernel.FLASH


def loss_of(row: Row, engine: str) -> Loss | None:
    """A fused loss where the row names one that the engine knows."""
    text = f"{row.get('framework', '')} {row.get('notes', '')} {row.get('attention_impl', '')}".lower()
    if engine in ("litgpt", "colossalai"):
        return None
    if engine == "megatron":
        return Loss.FUSED if re.search(r"cross.entropy.(?:loss.)?fusion|nemo|bridge", text) else None
    return Loss.FUSED_LINEAR if re.search(r"liger|cut[ _-]cross[ _-]entropy|\bcce\b", text) else None


def objective_of(row: Row, peft: Peft | None, engine: str) -> Any:
    """What is learned: several models where a row names DPO, PPO, GRPO or a reward model.

    Of the Trainer's engine "sft" would name TRL's SFTTrainer, of a release that no row says.
    """
    text = f"{row.get('framework', '')} {row.get('model', '')}".lower()
    text += str(row.get("notes", "")).lower() if row.get("domain") == "rlhf" else ""
    named = next((name for name in OBJECTIVES if re.search(rf"\b{name}", text)), None)
    return named or ("sft" if peft and engine != "huggingface" else "pretrain")


def options_of(row: Row, engine: str, shards: Shards) -> dict[str, str | int | float | bool]:
    """The engine's own settings, from the framework's name and version."""
    text = " ".join(str(row.get(field) or "") for field in ("framework", "notes", "recompute")).lower()
    precision = str(row.get("precision") or "").lower()
    match engine:
        case "torchtitan":
            date = re.search(r"20\d\d-\d\d(?:-\d\d)?", text) if "torchtitan" in text else None
            return {
                "version": date[0] if date else "", "float8": re.search(r"float8|fp8", precision) is not None,
                "float8_all_gather": "fp8 all-gather" in precision and "no fp8" not in precision,
                "trainer": "graph" if re.search(r"simplefsdp|graph", text) else "eager",
            }
        case "megatron":
            return MEGATRON_RECIPES if re.search(r"nemo|bridge", text) else {}
        case "colossalai":
            kinds = (name for name in ("simpo", "orpo", "dpo", "kto") if name in text)
            return {"trainer": next(kinds, "sft")}
        case "deepspeed" if re.search(r"trainer|transformers|hf|swift|axolotl|trl|factory", text):
            return {"auto": shards is Shards.EVERYTHING}
        case _:
            return {}
