"""Rows measured with Hugging Face Transformers: Qwen's fine-tuning script and PEFT's comparison of methods."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any, Final

from truth.contract import STEP_TIME, Prediction, Refused, traits_at
from vramcast.catalogue.gpus import load_gpu
from vramcast.catalogue.models import load_model
from vramcast.domain.answer import Answer
from vramcast.domain.device import Cluster
from vramcast.domain.job import WITHOUT_TARGETS, Job, Peft, Phase, Plan, Precision, Recompute, Shards, Workload
from vramcast.domain.model import Model
from vramcast.errors import UnknownName
from vramcast.estimate.step_time import step_time
from vramcast.estimate.training import answer
from vramcast.families.module_names import targets, usual_words
from vramcast.units import GB, GIB

Row = dict[str, Any]

SAME_MEMORY: Final = {
    "p": "prompt", "multitask-prompt": "prompt", "cpt": "prompt", "trainable-tokens": "prompt", "cartridge": "prefix",
}
"""Methods that hold what another one holds: virtual tokens before the sequence, or cached keys and values."""

OTHER_TARGETS: Final[dict[str, tuple[str, ...]]] = {
    **dict.fromkeys(WITHOUT_TARGETS, Peft().targets), "adaption-prompt": ("attention.out",),
}
"""Methods whose `target_modules` are no linear layers, or are not read, as nobody says them."""

QWEN_TARGETS: Final = ("c_attn", "c_proj", "w1", "w2")
"""finetune.py `LoraArguments.lora_target_modules`."""

QWEN_TRANSFORMERS: Final = (4, 32)
"""requirements.txt: transformers==4.32.0; the README profiles with torch 2.0, as is current with it."""

QWEN_RANK: Final = 64
QWEN_BUCKET: Final = 200_000_000
"""finetune.py `LoraArguments.lora_r`; ds_config_zero2.json `reduce_bucket_size` [elements]."""

SECONDS: Final = re.compile(r"([\d.]+)s/it")

PHASES: Final = (Phase.LOAD, Phase.FIRST_STEP, Phase.STEP)


def predict(row: Row) -> Iterator[Prediction]:
    """Peak of the whole run: `nvidia-smi` where the metric is not named, reserved where it is."""
    match row["group"]:
        case "qwen_readme":
            yield from _qwen(row)
        case "peft_method_comparison":
            yield from _peft(row)
        case group:
            raise Refused(f"{group}: batch, precision and adapter are not all stated")


def cluster(row: Row) -> Cluster:
    """The cards of a row, by the catalogue's name for them."""
    text = str(row["gpu"]).lower().replace("nvidia ", "").strip()
    for name in (text, text.replace("-sxm4", "-sxm"), text.split("-")[0]):
        try:
            return Cluster(gpu=load_gpu(name), gpus_per_node=int(row.get("n_gpus", 1)))
        except UnknownName:
            continue
    raise Refused(f"no such card in the catalogue: {row['gpu']}")


def highest(found: Answer, level: str) -> int:
    """The largest peak over load and steps; evaluation left out [bytes]."""
    peaks = [found.fullest.phases[phase.value] for phase in PHASES if phase.value in found.fullest.phases]
    return max(int(getattr(peak, f"{level}_bytes")) for peak in peaks)


def _qwen(row: Row) -> Iterator[Prediction]:
    """finetune.py at the device level: the numbers are those a user reads off `nvidia-smi`; and seconds of a step.

    A value over several GPUs is their sum. GB and GiB are not told apart.
    """
    seconds = SECONDS.search(str(row.get("measured_raw") or ""))
    if seconds is not None:
        yield Prediction(STEP_TIME, step_time(qwen_job(row)).step_s, float(seconds[1]))
    gpus = int(row["n_gpus"]) if row.get("total_over_gpus") else 1
    job = qwen_job(row)
    found = answer(job)
    measured = float(row["measured_gib"])
    traits = traits_at("device", job, found.fullest.peak)
    yield Prediction("device", gpus * highest(found, "device"), measured * GIB, measured * GB, traits)


def qwen_job(row: Row) -> Job:
    """Trainer with autocast on one GPU; DeepSpeed for Q-LoRA (ZeRO-2), several GPUs (ZeRO-2 for LoRA, 3 for full)."""
    adapted, quantised = str(row["peft"]), "Q-LoRA" in str(row["peft"])
    several, whole = int(row["n_gpus"]) > 1, adapted == "none"
    zero = quantised or several
    options: dict[str, str | int | float | bool] = {}
    everything = row.get("zero") == "ZeRO-3" or (several and whole)
    shards = Shards.NOTHING
    if zero:
        shards = Shards.EVERYTHING if everything else Shards.OPTIMIZER_AND_GRADIENTS
        options |= {"deepspeed": True, "auto": everything}
        if not everything:
            options["reduce_bucket_size"] = QWEN_BUCKET
    peft, model = None, load_model(str(row["model"]).lower())
    if not whole:
        saved = ("embedding", "head") if "embedding" in adapted else ()
        peft = Peft(
            rank=QWEN_RANK, targets=targets(model, QWEN_TARGETS), modules_to_save=saved, dropout=0.05,
            base="gptq-int4" if quantised else "full",
        )
    precision = Precision.MIXED_BF16 if zero else Precision.AMP_BF16
    return Job(
        model=model,
        workload=Workload(seq_len=row["seq_len"], micro_batch=row["micro_batch"], grad_accum=row["grad_accum"]),
        plan=Plan(precision=precision, recompute=Recompute.FULL, shards=shards, peft=peft),
        cluster=cluster(row),
        engine="huggingface",
        engine_version=QWEN_TRANSFORMERS,
        engine_options=options,
    )


def _peft(row: Row) -> Iterator[Prediction]:
    job = peft_job(row)
    found = answer(job)
    traits = traits_at("reserved", job, found.fullest.peak)
    yield Prediction("reserved", highest(found, "reserved"), float(row["measured_gib"]) * GIB, traits=traits)


def peft_job(row: Row) -> Job:
    """A plain loop over padded batches without autocast: bf16 base, fp32 adapters."""
    if not isinstance(row.get("seq_len"), int) or not row.get("peft"):
        raise Refused("sequence length or adapter not stated")
    model = load_model(str(row["model"]).split("/")[-1].lower())
    return Job(
        model=model,
        workload=Workload(seq_len=row["seq_len"], micro_batch=row["micro_batch"], objective="sft"),
        plan=Plan(precision=Precision.BF16, peft=method_of(row, model)),
        cluster=cluster(row),
        engine="pytorch",
        engine_options={"padded": True, "model_loss": True},
    )


def method_of(row: Row, model: Model) -> Peft | None:
    """The adapter a row's JSON describes; None for training everything."""
    if row["peft"] in ("none", "full"):
        return None
    config = json.loads(row["peft"])
    kind = str(config["peft_type"]).lower().replace("_tuning", "").replace("_", "-")
    kind = "dora" if config.get("use_dora") else SAME_MEMORY.get(kind, kind)
    words, paths = config.get("target_modules") or usual_words(model), OTHER_TARGETS.get(kind)
    if paths is None:
        paths = targets(model, [words] if isinstance(words, str) else words)
    return Peft(
        method=kind,
        rank=int(config.get("r") or config.get("rank") or 8),
        targets=paths,
        virtual_tokens=int(config.get("num_virtual_tokens") or 0),
        trainable_parameters=row.get("trainable_params"),
    )
