"""Accelerate's launch configuration: how ranks share the work; and its names of FSDP, which the Trainer takes too.

[acc] accelerate commands/config/config_args.py, utils/dataclasses.py `FullyShardedDataParallelPlugin`
[HF] transformers training_args.py `_process_fsdp_args`: the same names of FSDP without "fsdp_"
"""

from __future__ import annotations

import re
from typing import Any, Final

from vramcast.question.configs.deepspeed import PLACES
from vramcast.question.configs.reading import ELSEWHERE, NO_GPU, Config, Reading
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


STRATEGIES: Final = {
    "FULL_SHARD": "everything", "SHARD_GRAD_OP": "optimizer+gradients", "NO_SHARD": "nothing",
    "1": "everything", "2": "optimizer+gradients", "3": "nothing",
}
"""FSDP 1's strategies by name and number; the hybrid ones need the ranks of a machine."""

WRAPPED: Final = ("TRANSFORMER_BASED_WRAP",)
"""One unit a layer: what is modelled."""

LAYER: Final = re.compile(r"\w*(?<!Moe)(?<!MoE)(?:Layer|Block)")
"""How Transformers calls one layer of a network; its parts end in MLP, Attention, MoeBlock, Experts ..."""

PREFETCHES: Final = {"backward_pre": "pre", "no_prefetch": "none"}
"""The latter where nothing is said; in any case [acc]."""

OF_ONE: Final = ("use_orig_params", "sync_module_states", "forward_prefetch", "backward_prefetch", "sharding_strategy",
                 "limit_all_gathers")
"""Names that say nothing to FSDP 2."""


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


def fsdp_options(
    fsdp: Watched, *, strategy: str | None = None, offload: bool = False, version: int = 1, wrap: str | None = None,
    prefix: str = "fsdp_",
) -> dict[str, Any]:
    """The options of a table of FSDP.

    Args:
        fsdp: its names
        strategy: as named elsewhere
        offload: whether something else says that weights wait on the host
        version: of FSDP where the table says none
        wrap: the wrapping policy where the table says none
        prefix: of the names
    """

    def key(name: str) -> str:
        return name if prefix == "" and f"fsdp_{name}" not in fsdp else f"fsdp_{name}"

    version = fsdp.count(key("version")) or version
    policy = str(fsdp.get(key("auto_wrap_policy"), wrap)).upper()
    _check_units(fsdp, key("transformer_layer_cls_to_wrap"))
    if policy not in WRAPPED:
        fsdp.cannot(key("auto_wrap_policy"), f"{policy[:40]} is not modelled; {', '.join(WRAPPED)} is")
    fsdp.get(key("min_num_params"))  # of the other policy
    shards = _strategy(fsdp, key("sharding_strategy"), key("reshard_after_forward"), strategy, version)
    found: dict[str, Any] = {"engine": "huggingface", "sharded-by": f"fsdp{version}"} | shards
    if version == 2:
        for name in OF_ONE:
            fsdp.get(key(name))
    else:
        for name, usual in (("forward_prefetch", (False, "false")), ("use_orig_params", (True, "true")),
                            ("limit_all_gathers", (True, "true"))):
            fsdp.only(key(name), *usual)
        prefetch = fsdp.one_of(key("backward_prefetch"), PREFETCHES, lower=True, option="engine-option")
        found |= {"engine-option": (f"backward_prefetch={prefetch or 'none'}",)} if prefetch != "pre" else {}
    if offload or fsdp.flag(key("offload_params")) or fsdp.flag(key("cpu_offload")):
        found |= {"offload-optimizer": "cpu", "offload-parameters": "cpu"}
    if fsdp.flag(key("activation_checkpointing")):
        found["recompute"] = "full"
    if fsdp.flag(key("activation_checkpointing_offload")):
        fsdp.cannot(key("activation_checkpointing_offload"))
    return found if found.get("shards") != "nothing" else {
        name: value for name, value in found.items() if name not in ("sharded-by", "engine-option")
    }


def _check_units(fsdp: Watched, key: str) -> None:
    """Refuse units that are no whole layers."""
    named = fsdp.get(key) or ()
    listed = named if isinstance(named, (list, tuple)) else str(named).split(",")
    if others := [text for name in listed if not LAYER.fullmatch(text := str(name).strip())]:
        fsdp.cannot(key, f"units of {others[0][:60]} are not modelled; units of one layer are")


def _strategy(fsdp: Watched, strategy_key: str, reshard_key: str, given: str | None, version: int) -> dict[str, Any]:
    """What is split, and whether gathered weights are freed after forward."""
    named, reshard = fsdp.get(strategy_key), fsdp.get(reshard_key)
    if version == 2:
        kept = given == "SHARD_GRAD_OP" or str(reshard).lower() == "false"
        if given is not None and given not in ("FULL_SHARD", "SHARD_GRAD_OP"):
            fsdp.cannot(reshard_key, f"{given.lower()} is not modelled for FSDP 2", option="shards")
        if reshard is not None and str(reshard).lower() not in ("true", "false"):
            fsdp.refuse(reshard_key, "true or false", option="reshard-after-forward")
        return {"shards": "everything"} | ({"reshard-after-forward": False} if kept else {})
    text = str(reshard).upper() if isinstance(reshard, str) and str(reshard).lower() not in ("true", "false") else None
    chosen = given or text or (str(named).upper() if named is not None else "FULL_SHARD")
    if chosen not in STRATEGIES:
        fsdp.cannot(strategy_key, f"{chosen[:40]!r} is not one of {', '.join(STRATEGIES)}", option="shards")
        return {}
    return {"shards": STRATEGIES[chosen]}
