"""Accelerate's launch configuration: how ranks share the work [accelerate commands/config/config_args.py]."""

from __future__ import annotations

from typing import Any, Final

from vramcast.question.configs.deepspeed import PLACES
from vramcast.question.configs.reading import ELSEWHERE, NO_GPU, Config, Reading
from vramcast.question.configs.sharding import fsdp_options
from vramcast.question.configs.watched import Known, Watched

CONFIG: Final = Known("accelerate", "config")

MIXED: Final = {"bf16": "amp-bf16", "fp16": "amp-fp16", "fp8": "fp8", "no": "fp32", "false": "fp32"}
"""`mixed_precision`; YAML reads the word no as false."""

KINDS: Final = ("FSDP", "DEEPSPEED", "NO", "MULTI_GPU")

TABLES: Final = {"FSDP": "fsdp_config", "DEEPSPEED": "deepspeed_config", "MEGATRON_LM": "megatron_lm_config"}
"""Kind -> its table; those of the others say nothing [accelerate commands/launch.py]."""

DEGREES: Final = {"tp_size": "tp", "cp_size": "cp"}

EXCHANGES: Final = {"allgather": "allgather", "alltoall": "ulysses"}
"""`parallelism_config_cp_comm_strategy`: how keys and values travel."""


def is_accelerate(config: Config) -> bool:
    """Whether a table is what `accelerate config` writes."""
    return config.table is not None and ("distributed_type" in config.table or "compute_environment" in config.table)


def read(config: Config) -> Reading:
    """Launch configuration: how ranks share the work."""
    values = Watched(config.table or {}, CONFIG)
    kind = str(values.get("distributed_type", "NO")).upper()
    if kind not in KINDS:
        values.cannot("distributed_type", f"{kind[:40]} is not modelled; {', '.join(KINDS)} are")
    if values.flag("use_cpu"):
        values.cannot("use_cpu", NO_GPU)
    mixed = values.one_of("mixed_precision", MIXED, lower=True, option="precision") or "fp32"
    options: dict[str, Any] = {"engine": "huggingface"}
    for other, name in TABLES.items():
        if other != kind:
            values.get(name)
    batch: dict[str, int] = {}
    if kind == "FSDP":
        options |= fsdp_options(values.section("fsdp_config", Known("accelerate", "fsdp_config")), wrap="NO_WRAP")
    elif kind == "DEEPSPEED":
        found, batch = _zero(values.section("deepspeed_config", Known("accelerate", "deepspeed_config")))
        options |= found
    else:
        options |= {"shards": "nothing"}
    options |= _mesh(values) | _compile(values)
    if dict.get(values, "fp8_config") is None or mixed != "fp8":
        values.get("fp8_config")
    machines, processes = values.count("num_machines"), values.count("num_processes")
    values.get("main_process_ip")
    return Reading(
        "accelerate", options, {"precision": mixed}, batch, tuple(values.unread()),
        ranks=processes if kind != "NO" else machines,
    )


def _zero(zero: Watched) -> tuple[dict[str, Any], dict[str, int]]:
    """Options and batch of DeepSpeed's few names here; a file of its own says everything."""
    found: dict[str, Any] = {"engine": "deepspeed"}
    if "deepspeed_config_file" in zero:
        zero.cannot("deepspeed_config_file", ELSEWHERE, file="deepspeed")
        for name in zero:
            zero.get(name)
        return found, {}
    stage = str(zero.get("zero_stage", 2))
    if stage not in ("1", "2", "3"):
        zero.refuse("zero_stage", "1, 2 or 3", option="zero")
    found["zero"] = stage
    for name, option in (
        ("offload_optimizer_device", "offload-optimizer"), ("offload_param_device", "offload-parameters"),
    ):
        if (place := zero.one_of(name, PLACES, option=option)) is not None:
            found[option] = place
    accumulation = zero.count("gradient_accumulation_steps")
    return found, {} if accumulation is None else {"accumulation": accumulation}


def _mesh(values: Watched) -> dict[str, Any]:
    """Degrees beside FSDP: copies, tensor and context parallelism."""
    mesh = values.section("parallelism_config", Known("accelerate", "parallelism_config"))
    size = {name: mesh.count(f"parallelism_config_{name}") or 1 for name in (
        "dp_replicate_size", "dp_shard_size", "tp_size", "cp_size", "sp_size")}
    found: dict[str, Any] = {option: size[name] for name, option in DEGREES.items() if size[name] > 1}
    if size["dp_replicate_size"] > 1:
        found["shard-group"] = size["dp_shard_size"] * size["cp_size"]
    if size["sp_size"] > 1:
        mesh.cannot("parallelism_config_sp_size")
    if size["cp_size"] > 1:
        kind = mesh.one_of("parallelism_config_cp_comm_strategy", EXCHANGES)
        found["cp-kind"] = kind or "allgather"
    else:
        for name in mesh:
            if "_cp_" in name or "_sp_" in name:
                mesh.get(name)
    return found


def _compile(values: Watched) -> dict[str, Any]:
    dynamo = values.section("dynamo_config", Known("accelerate", "dynamo_config"))
    backend = str(dynamo.get("dynamo_backend", "no")).lower()
    if backend in ("no", "false", "none"):
        for name in dynamo:
            dynamo.get(name)
        return {}
    if backend != "inductor":
        dynamo.refuse("dynamo_backend", "inductor", option="compile")
    dynamo.only("dynamo_use_fullgraph", True, False)
    return {"compile": True}
