"""From options to a job that trains a diffusion pipeline."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, get_args, get_type_hints

import msgspec

from vramcast import catalogue
from vramcast.catalogue.clusters import cluster_of
from vramcast.catalogue.contexts import Kernel, Phase, workspace_share
from vramcast.domain.device import Gpu
from vramcast.domain.job import Peft, Plan, Precision, Workload, require_count
from vramcast.domain.pipeline import DiffusionJob, DiffusionSetting
from vramcast.domain.version import Version, check_version
from vramcast.engines.training import DIFFUSION, PURE
from vramcast.errors import InvalidSpec, UnknownName, joined
from vramcast.question.build import converted, engine_options, market_of, refuse_peft_details, section
from vramcast.question.options import MARKET_OPTIONS, OPTIONS, parse

SAID: Final = frozenset((
    "engine", "micro-batch", "grad-accum", "global-batch", "image-size", "precision", "optimizer", "optimizer-kernel",
    "recompute", "attention", "peft", "lora-rank", "lora-targets", "lora-dropout", "base-weights", "alloc-conf",
    "engine-option", *MARKET_OPTIONS,
))
"""What a question about training a pipeline can say."""


def build_diffusion(options: Mapping[str, object]) -> DiffusionJob:
    """The job that a set of options asks for.

    Raises: InvalidSpec or UnknownName with one sentence.
    """
    given = {name: value for name, value in options.items() if value is not None}
    for name in given:
        if name in ("model", "gpus"):
            continue
        if name not in OPTIONS:
            raise UnknownName.of("option", name, ("model", "gpus", *OPTIONS))
        if name not in SAID:
            raise InvalidSpec("--{} says nothing about training a diffusion pipeline; leave it out", name)
    refuse_peft_details(given)
    values = {name: parse(name, value) for name, value in given.items() if name not in ("model", "gpus")}
    if "gpus" not in given:
        raise InvalidSpec("which GPUs? give --gpus, for example --gpus rtx-4090")
    if "model" not in given:
        raise InvalidSpec("which pipeline? name one, for example flux.1-dev")
    cluster = cluster_of(str(given["gpus"]), market_of(values))
    engine, version = _engine(values.get("engine") or "diffusers")
    precision = Precision.AMP_BF16 if cluster.gpu.has_bf16 else Precision.AMP_FP16
    fields = {"precision": precision, **section(values, "plan")}
    fields["precision"] = PURE.get(fields["precision"], fields["precision"])
    peft = section(values, "peft")
    targets = tuple(peft.pop("targets", ()) or ())
    if "peft" in values:
        if peft.get("method") != "lora":
            raise InvalidSpec("--peft {} is not modelled for diffusion; use lora, or leave it out", peft.get("method"))
        fields["peft"] = converted(Peft, peft)
    workload = converted(Workload, section(values, "workload"))
    if "global-batch" in values:
        batch, step = require_count("global-batch", values["global-batch"]), workload.micro_batch * cluster.count
        if batch % step:
            raise InvalidSpec("global-batch={} is not a multiple of {} = GPUs x micro-batch; use {}", batch, step, step)
        workload = msgspec.structs.replace(workload, grad_accum=batch // step)
    setting = engine_options(values.get("engine-option", ()))
    return DiffusionJob(
        pipeline=catalogue.pipelines.load_pipeline(str(given["model"])), workload=workload,
        plan=converted(Plan, fields), cluster=cluster, engine=engine, engine_version=version,
        setting=_setting(setting, targets), workspaces=_workspaces(cluster.gpu, fields["precision"]),
        alloc_conf=values.get("alloc-conf", ""),
    )


TENSOR_CORES: Final = {2: 70, 4: 80}
"""Bytes of a number -> compute capability since which cuDNN converts it for tensor cores, TF32 being on unasked."""


def _workspaces(gpu: Gpu, precision: str) -> dict[str, float]:
    """Shares that cuDNN's workspaces are of the tensors they move; none on cards whose kernels convert nothing."""
    wide = str(precision) in (Precision.FP32, Precision.TF32)
    if gpu.sm is None or gpu.sm < TENSOR_CORES[4 if wide else 2]:
        return {}
    return {f"{kernel} {phase}": workspace_share(kernel, phase, TORCH)
            for kernel in get_args(Kernel) for phase in get_args(Phase)}


TORCH: Final = (2, 13)
"""Whose cuDNN it is."""


def _engine(text: str) -> tuple[str, Version | None]:
    name, at, version = text.partition("@")
    if name not in DIFFUSION:
        raise InvalidSpec("{} trains language models; use --engine {} for a pipeline", name, joined(" or ", DIFFUSION))
    known = DIFFUSION[name]
    return name, check_version(name, version, oldest=known.oldest, newest=known.newest) if at else None


def _setting(values: Mapping[str, Any], targets: tuple[str, ...]) -> DiffusionSetting:
    known = get_type_hints(DiffusionSetting)
    for name in values:
        if name.replace("-", "_") not in known or name == "targets":
            raise UnknownName.of("engine-option", name, [name for name in known if name != "targets"])
    fields = {name.replace("-", "_"): value for name, value in values.items()}
    for name in ("height", "width", "frames", "tokens", "text_rank", "swapped", "encodes"):
        if name in fields:
            require_count(name, fields[name], least=int(name not in ("swapped", "encodes")))
    return converted(DiffusionSetting, {**fields, "targets": targets})
