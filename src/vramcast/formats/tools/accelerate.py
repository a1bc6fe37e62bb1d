"""Accelerate's launch configuration: how ranks share the work; and its names of FSDP, which the Trainer takes too.

[acc] accelerate commands/config/config_args.py, utils/dataclasses.py `FullyShardedDataParallelPlugin`
[HF] transformers training_args.py `_process_fsdp_args`: the same names of FSDP without "fsdp_"
"""


from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from vramcast.domain.job import Precision, Shards
from vramcast.engines.eager.releases import runs_deepspeed, sharder
from vramcast.errors import Unsupported
from vramcast.formats.files import File, Order, Part
from vramcast.formats.launch import head_of
from vramcast.formats.lines import Line, Table, yaml_text
from vramcast.formats.reading import ELSEWHERE, NO_GPU, Config, Reading, together, written
from vramcast.formats.tools import deepspeed
from vramcast.formats.tools.deepspeed import PLACES
from vramcast.formats.watched import Known, Watched

CONFIG: Final = Known("accelerate", "config")

MIXED: Final = {"bf16": "amp-bf16", "fp16": "amp-fp16", "fp8": "fp8", "no": "fp32", "false": "fp32"}
"""`mixed_precision`; YAML reads the word no as false."""

KINDS: Final = ("FSDP", "DEEPSPEED", "NO", "MULTI_GPU")

TABLES: Final = {"FSDP": "fsdp_config", "DEEPSPEED": "deepspeed_config", "MEGATRON_LM": "megatron_lm_config"}
"""Kind -> its table; those of the others say nothing [accelerate commands/launch.py]."""

DEGREES: Final = {"tp_size": "tp", "cp_size": "cp"}

EXCHANGES: Final = {"allgather": "allgather", "alltoall": "ring"}
"""`parallelism_config_cp_comm_strategy`: how keys and values travel, in the second from one rank to the next."""


STRATEGIES: Final = {
    "FULL_SHARD": "everything", "SHARD_GRAD_OP": "optimizer+gradients", "NO_SHARD": "nothing",
    "1": "everything", "2": "optimizer+gradients", "3": "nothing",
}
"""FSDP 1's strategies by name and number; the hybrid ones need the ranks of a machine."""

WRAPPED: Final = ("TRANSFORMER_BASED_WRAP",)
"""One unit a layer: what is modelled."""

LAYER: Final = re.compile(r"\w*(?<!Moe)(?<!MoE)(?:Layer|Block)")
"""How Transformers calls one layer of a network; its parts end in MLP, Attention, MoeBlock, Experts ..."""

EXPERTS: Final = re.compile(r"(?:Mixtral|Qwen3Moe|Olmoe|Phimoe)SparseMoeBlock")
"""Router and experts of a layer, and nothing else."""

PREFETCHES: Final = {"backward_pre": "pre", "no_prefetch": "none"}
"""The latter where nothing is said; in any case [acc]."""

OF_ONE: Final = ("use_orig_params", "sync_module_states", "forward_prefetch", "backward_prefetch", "sharding_strategy",
                 "limit_all_gathers")
"""Names that say nothing to FSDP 2."""


def read(config: Config) -> Reading:
    """Launch configuration: how ranks share the work."""
    values = Watched(config.table or {}, CONFIG)
    kind = str(values.get("distributed_type", "NO")).upper()
    if kind not in KINDS:
        values.cannot("distributed_type", "{} is not modelled; {} are", kind[:40], ", ".join(KINDS))
    values.must_be_off("use_cpu", NO_GPU)
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
        ranks=processes if kind != "NO" else machines, nodes=machines or 1,
    )


def _zero(zero: Watched) -> tuple[dict[str, Any], dict[str, int]]:
    """Options and batch of DeepSpeed's few names here; a file of its own says everything."""
    found: dict[str, Any] = {"engine": "deepspeed"}
    if "deepspeed_config_file" in zero:
        zero.cannot("deepspeed_config_file", ELSEWHERE, file="deepspeed")
        zero.ignore("*")
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
    if size["cp_size"] > 1:
        kind = mesh.one_of("parallelism_config_cp_comm_strategy", EXCHANGES)
        found["cp-kind"] = kind or "allgather"
    elif size["sp_size"] > 1:  # DeepSpeed's Ulysses, which needs flash attention [acc utils/dataclasses.py]
        mesh.only("parallelism_config_sp_backend", "deepspeed")
        found |= {"cp": size["sp_size"], "cp-kind": "ulysses"}
    mesh.ignore(*(name for name in mesh if ("_cp_" in name and "cp" not in found) or "_sp_" in name))
    return found


def _compile(values: Watched) -> dict[str, Any]:
    dynamo = values.section("dynamo_config", Known("accelerate", "dynamo_config"))
    backend = str(dynamo.get("dynamo_backend", "no")).lower()
    if backend in ("no", "false", "none"):
        dynamo.ignore("*")
        return {}
    if backend != "inductor":
        dynamo.refuse("dynamo_backend", "inductor", option="compile")
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
    experts = check_units(fsdp, key("transformer_layer_cls_to_wrap"), experts=version == 1)
    if policy not in WRAPPED:
        fsdp.cannot(key("auto_wrap_policy"), "{} is not modelled; {} is", policy[:40], ", ".join(WRAPPED))
    fsdp.get(key("min_num_params"))  # of the other policy
    shards = _strategy(fsdp, key("sharding_strategy"), key("reshard_after_forward"), strategy, version)
    found: dict[str, Any] = {"engine": "huggingface", "sharded-by": f"fsdp{version}"} | shards
    if version == 2:
        fsdp.ignore(*(key(name) for name in OF_ONE))
    else:
        fsdp.flag(key("use_orig_params"))  # the same bytes as one tensor or as many
        fsdp.only(key("limit_all_gathers"), True, "true")
        prefetch = fsdp.one_of(key("backward_prefetch"), PREFETCHES, lower=True, option="engine-option")
        if prefetch == "pre":  # backward holds two units anyway, beside more than forward does
            fsdp.ignore(key("forward_prefetch"))
        else:
            fsdp.only(key("forward_prefetch"), False, "false")
            found |= {"engine-option": (f"backward_prefetch={prefetch or 'none'}",)}
        if experts:
            found = together(found, {"engine-option": ("fsdp_units=experts",)})
    if offload or fsdp.flag(key("offload_params")) or fsdp.flag(key("cpu_offload")):
        found |= {"offload-optimizer": "cpu", "offload-parameters": "cpu"}
    if fsdp.flag(key("activation_checkpointing")):
        found["recompute"] = "full"
    fsdp.must_be_off(key("activation_checkpointing_offload"))
    return found if found.get("shards") != "nothing" else {
        name: value for name, value in found.items() if name not in ("sharded-by", "engine-option")
    }


def check_units(fsdp: Watched, key: str, *, experts: bool = False) -> bool:
    """Refuse units that are no whole layers.

    Args:
        experts: layers' blocks of experts may be

    Returns: whether these are
    """
    named = fsdp.get(key) or ()
    listed = named if isinstance(named, (list, tuple)) else str(named).split(",")
    if experts and listed and all(EXPERTS.fullmatch(str(name).strip()) for name in listed):
        return True
    if others := [text for name in listed if not LAYER.fullmatch(text := str(name).strip())]:
        fsdp.cannot(key, "units of {} are not modelled; units of one layer are", others[0][:60])
    return False


def _strategy(fsdp: Watched, strategy_key: str, reshard_key: str, given: str | None, version: int) -> dict[str, Any]:
    """What is split, and whether gathered weights are freed after forward."""
    named, reshard = fsdp.get(strategy_key), fsdp.get(reshard_key)
    if version == 2:
        kept = given == "SHARD_GRAD_OP" or str(reshard).lower() == "false"
        if given is not None and given not in ("FULL_SHARD", "SHARD_GRAD_OP"):
            fsdp.cannot(reshard_key, "{} is not modelled for FSDP 2", given.lower(), option="shards")
        if reshard is not None and str(reshard).lower() not in ("true", "false"):
            fsdp.refuse(reshard_key, "true or false", option="reshard-after-forward")
        return {"shards": "everything"} | ({"reshard-after-forward": False} if kept else {})
    text = str(reshard).upper() if isinstance(reshard, str) and str(reshard).lower() not in ("true", "false") else None
    chosen = given or text or (str(named).upper() if named is not None else "FULL_SHARD")
    if chosen not in STRATEGIES:
        fsdp.cannot(strategy_key, "{!r} is not one of {}", chosen[:40], ", ".join(STRATEGIES), option="shards")
        return {}
    return {"shards": STRATEGIES[chosen]}


NAME: Final = "accelerate.yaml"

COMPUTED: Final = {
    Precision.AMP_BF16: "bf16", Precision.MIXED_BF16: "bf16", Precision.AMP_FP16: "fp16",
    Precision.MIXED_FP16: "fp16", Precision.FP8: "fp8",
}
"""What autocast or FSDP's policy computes in; pure recipes compute in the weights' own dtype."""

OVER_NARROW: Final = {**COMPUTED, Precision.BF16: "bf16", Precision.FP16: "fp16"}
"""The same of a Trainer that is told bf16 or fp16 over weights of 16 bits."""

FSDP1_STRATEGIES: Final = written(STRATEGIES)

PREFETCHED: Final = written(PREFETCHES)

WHOLE_MODELS: Final = ("pp", "ep")
"""Degrees that nothing in this file can split by."""


def write(order: Order) -> tuple[File, ...]:
    """The file that the plan's framework asks for."""
    job = order.job
    if runs_deepspeed(job):
        return _written(order, "DEEPSPEED", _deepspeed(order))
    if job.plan.shards is Shards.NOTHING or job.cluster.count == 1:
        return _written(order, "NO" if job.cluster.count == 1 else "MULTI_GPU", ())
    return write_fsdp1(order) if job.engine == "litgpt" or sharder(job) == "fsdp1" else write_fsdp2(order)


def write_fsdp2(order: Order) -> tuple[File, ...]:
    """Fully sharded data parallelism by `fully_shard`, with HSDP, tensor and context parallelism beside it."""
    return _written(order, "FSDP", _fsdp2(order))


def write_fsdp1(order: Order) -> tuple[File, ...]:
    """Fully sharded data parallelism by flat parameters."""
    return _written(order, "FSDP", _fsdp1(order))


def _written(order: Order, kind: str, nested: Table) -> tuple[File, ...]:
    plan = order.job.plan
    for name in WHOLE_MODELS:
        if getattr(plan, name) > 1:
            raise Unsupported("Accelerate's file has no {}; use {}=1, or --format megatron or torchtitan", name, name)
    if kind != "FSDP" and plan.tp * plan.cp > 1:
        raise Unsupported("Accelerate splits by tp and cp beside FSDP2 only; use --shards everything")
    table = (*_machines(order, kind), *nested, *_compile_lines(order))
    parts = (Part("accelerate", "config"),)
    text = yaml_text(table, head=head_of(order, f"accelerate launch --config_file {NAME} YOUR_SCRIPT.py"))
    return (order.file(NAME, text, parts),)


def _machines(order: Order, kind: str) -> Table:
    cluster = order.job.cluster
    lines = [
        Line("compute_environment", "LOCAL_MACHINE"),
        Line("distributed_type", kind, "how the ranks share the work"),
        *_precision(order, kind),
        Line("num_machines", cluster.num_nodes, "machines in the plan"),
        Line("machine_rank", 0, "on the other machines: their number, or --machine_rank"),
        Line("num_processes", cluster.count, f"one for every {cluster.gpu.name}"),
    ]
    if cluster.num_nodes > 1:
        lines += [
            Line("main_process_ip", "MASTER-ADDRESS", "the first machine, or --main_process_ip"),
            Line("main_process_port", 29500),
            Line("same_network", True),
            Line("rdzv_backend", "static"),
        ]
    return (*lines, Line("main_training_function", "main"), Line("use_cpu", False))


def _precision(order: Order, kind: str) -> list[Line]:
    precision = order.job.plan.precision
    if kind == "DEEPSPEED":
        return []  # the DeepSpeed file says it, and Accelerate refuses to hear it twice
    if precision in COMPUTED or precision is Precision.FP32:
        order.ask("precision")  # otherwise the script says what weights are loaded in
    why = f"{precision.value}: " + ("computed in 16 bits over fp32 weights" if precision in COMPUTED else
                                    "the weights' own dtype computes")
    computed = OVER_NARROW if order.ask.settings.get("option.autocast", False) else COMPUTED
    return [Line("mixed_precision", computed.get(precision, "no"), why)]


def _deepspeed(order: Order) -> Table:
    stage3 = order.job.plan.shards is Shards.EVERYTHING
    # what the other file says, this one points at; alone it says nothing of it
    lines = (
        Line("deepspeed_config_file", deepspeed.NAME, "batch, precision, ZeRO and offload stand there"),
        Line("zero3_init_flag", stage3, "weights are split as they load" if stage3 else "weights load whole"),
        Line("deepspeed_multinode_launcher", "standard", "one accelerate launch per machine"),
    )
    return (Line("deepspeed_config", lines),)


def _fsdp2(order: Order) -> Table:
    ask, plan = order.ask, order.job.plan
    if Shards(ask("shards")) not in FSDP1_STRATEGIES:
        raise Unsupported(
            "FSDP2 shards weights, gradients and states together, not {} only; use --shards everything", plan.shards
        )
    reshard = ask("reshard_after_forward") and plan.shards is Shards.EVERYTHING
    ask.also("sharded_by")
    lines = [
        Line("fsdp_version", 2, "fully_shard"),
        Line("fsdp_reshard_after_forward", reshard,
             "gathered weights are freed after forward" if reshard else "gathered weights stay until backward"),
        Line("fsdp_auto_wrap_policy", "TRANSFORMER_BASED_WRAP", "one unit per layer, as computed"),
        *_offload_and_recompute(order),
        Line("fsdp_cpu_ram_efficient_loading", True, "only rank 0 reads the checkpoint"),
        Line("fsdp_state_dict_type", "SHARDED_STATE_DICT", "checkpoints are written in pieces"),
    ]
    return (Line("fsdp_config", tuple(lines)), *_mesh_lines(order))


def _mesh_lines(order: Order) -> Table:
    """Groups beside plain sharding: HSDP, tensor and context parallelism."""
    ask, job = order.ask, order.job
    tp, cp, group = ask("tp"), ask("cp"), ask("shard_group")
    if tp == 1 and cp == 1 and group is None:
        return ()
    ask.also("cp_kind", "sequence_parallel")
    ranks = job.data_parallel
    shard = ranks if group is None else max(1, min(group, ranks * cp) // cp)
    p = "parallelism_config_"
    lines = [
        Line(p + "dp_replicate_size", ranks // shard, "copies of the weights"),
        Line(p + "dp_shard_size", shard, "ranks that share one copy"),
        Line(p + "tp_size", tp, "ranks that divide every layer"),
        Line(p + "cp_size", cp, "ranks that divide every sequence"),
    ]
    if cp > 1:
        comm = written(EXCHANGES).get(job.plan.cp_kind, "alltoall")
        lines.append(Line(p + "cp_comm_strategy", comm, "how keys and values travel"))
    return (Line("parallelism_config", tuple(lines)),)


def _fsdp1(order: Order) -> Table:
    ask, plan = order.ask, order.job.plan
    ask.also("sharded_by")
    strategy = FSDP1_STRATEGIES.get(Shards(ask("shards")))
    if strategy == "FULL_SHARD" and not ask("reshard_after_forward"):
        strategy = "SHARD_GRAD_OP"
    if strategy is None or plan.tp * plan.cp > 1:
        raise Unsupported(
            "FSDP1 has no shards={} with tp={}, cp={}; use --shards everything with tp=cp=1",
            plan.shards, plan.tp, plan.cp
        )
    if ask("shard_group") is not None:
        if plan.shard_group != order.job.cluster.gpus_per_node or strategy != "FULL_SHARD":
            raise Unsupported(
                "FSDP1's HYBRID_SHARD shares a copy inside a machine; use --shard-group {} with --shards everything, "
                "or --format accelerate-fsdp2", order.job.cluster.gpus_per_node
            )
        strategy = "HYBRID_SHARD"
    lines = [
        Line("fsdp_version", 1, "flat parameters"),
        Line("fsdp_sharding_strategy", strategy, f"{plan.shards.value} is split"),
        Line("fsdp_auto_wrap_policy", "TRANSFORMER_BASED_WRAP", "one unit per layer, as computed"),
        Line("fsdp_backward_prefetch", PREFETCHED[ask("option.backward_prefetch", "pre")].upper(),
             "whether the next layer is gathered while this one computes"),
        *_offload_and_recompute(order),
        Line("fsdp_use_orig_params", True, "the optimizer sees every weight"),
        Line("fsdp_sync_module_states", True, "rank 0 sends its weights to the others"),
        Line("fsdp_cpu_ram_efficient_loading", True, "only rank 0 reads the checkpoint"),
        Line("fsdp_state_dict_type", "SHARDED_STATE_DICT", "checkpoints are written in pieces"),
    ]
    return (Line("fsdp_config", tuple(lines)),)


def _offload_and_recompute(order: Order) -> list[Line]:
    ask = order.ask
    devices = {ask("offload_optimizer"), ask("offload_parameters")}
    if "nvme" in devices:
        raise Unsupported("FSDP offloads to the host only; use --offload-optimizer cpu, or --engine deepspeed")
    offload = "cpu" in devices
    # the Trainer's own arguments say it, and it refuses to hear it twice
    recompute = "none" if order.job.engine == "huggingface" else ask("recompute")
    if recompute == "selective":
        raise Unsupported("Accelerate recomputes whole layers only; use --recompute full")
    return [
        Line("fsdp_offload_params", offload,
             "weights, gradients and states wait on the host" if offload else "everything stays on the GPUs"),
        Line("fsdp_activation_checkpointing", recompute == "full",
             "layers keep only their input" if recompute == "full" else "layers keep what backward needs"),
    ]


def _compile_lines(order: Order) -> Table:
    if not order.ask("compile"):
        return ()
    return (Line("dynamo_config", (Line("dynamo_backend", "inductor", "torch.compile, as planned"),)),)


def fsdp_of_trainer(values: Watched, version: int) -> dict[str, Any]:
    """The words of `fsdp` and the table beside it [HF training_args.py `_process_fsdp_args`].

    Names and strategies that FSDP1 alone has are of a release in which it is what the Trainer takes. Where nothing but
    the release decides, it is left to the engine.
    """
    words = values.get("fsdp", "")
    listed = words if isinstance(words, list) else str("full_shard" if words is True else words).split()
    inner = values.section("fsdp_config", Known("accelerate", "fsdp_config")) if isinstance(
        values.get("fsdp_config", {}), Mapping) else None
    if inner is None:
        values.cannot("fsdp_config", ELSEWHERE, file="accelerate")
        return {}
    named = {str(word).lower() for word in listed}
    strategies = [word for word in named if word in ("full_shard", "shard_grad_op", "no_shard", "hybrid_shard",
                                                      "hybrid_shard_zero2")]
    if strange := named - {*strategies, "offload", "auto_wrap", "true"}:
        values.cannot("fsdp", "{!r} is not one of full_shard, shard_grad_op, no_shard, hybrid_shard, offload, "
                      "auto_wrap", sorted(strange)[0][:40], option="shards")
        return {}
    sized = any(inner.number(name) for name in ("min_num_params", "fsdp_min_num_params"))
    layers = "SIZE_BASED_WRAP" if sized else "TRANSFORMER_BASED_WRAP"
    of_one = any(name in inner for one in OF_ONE for name in (one, f"fsdp_{one}"))
    said = [inner.get(name) for name in ("version", "fsdp_version") if name in inner]
    if of_one or not named <= OF_BOTH or "1" in map(str, said):
        version = 1
    found = fsdp_options(inner, strategy=strategies[0].upper() if strategies else None, offload="offload" in named,
                         wrap=layers if named & {"auto_wrap", "true"} or version == 2 else "NO_WRAP", prefix="",
                         version=version)
    decided = version == 1 or said
    plain = found.keys() <= {"engine", "sharded-by", "shards", "recompute"}
    return found if decided or not plain else {name: found[name] for name in found if name != "sharded-by"}


OF_BOTH: Final = {"full_shard", "shard_grad_op", "offload", "auto_wrap", "true"}
"""Words of `fsdp` that FSDP2 knows, too."""
