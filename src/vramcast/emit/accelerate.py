"""Accelerate's YAML: FSDP2, FSDP1, DeepSpeed, or plain data parallelism.

[Accelerate] accelerate commands/config/config_args.py `ClusterConfig`; nested names are the options of `accelerate
launch`, as utils/launch.py turns them into environment variables
"""

from __future__ import annotations

from typing import Final

from vramcast.domain.job import Precision, Shards
from vramcast.emit import deepspeed
from vramcast.emit.files import File, Order, Part
from vramcast.emit.launch import head_of
from vramcast.emit.lines import Line, Table, yaml_text
from vramcast.engines.eager.releases import runs_deepspeed, sharder
from vramcast.errors import Unsupported
from vramcast.question.configs import accelerate as reader
from vramcast.question.configs.reading import written

NAME: Final = "accelerate.yaml"

MIXED: Final = {
    Precision.AMP_BF16: "bf16", Precision.MIXED_BF16: "bf16", Precision.AMP_FP16: "fp16",
    Precision.MIXED_FP16: "fp16", Precision.FP8: "fp8",
}
"""What autocast or FSDP's policy computes in; pure recipes compute in the weights' own dtype."""

OVER_NARROW: Final = {**MIXED, Precision.BF16: "bf16", Precision.FP16: "fp16"}
"""The same of a Trainer that is told bf16 or fp16 over weights of 16 bits."""

FSDP1_STRATEGIES: Final = written(reader.STRATEGIES)

PREFETCHED: Final = written(reader.PREFETCHES)

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
            raise Unsupported(f"Accelerate's file has no {name}; use {name}=1, or --format megatron or torchtitan")
    if kind != "FSDP" and plan.tp * plan.cp > 1:
        raise Unsupported("Accelerate splits by tp and cp beside FSDP2 only; use --shards everything")
    table = (*_machines(order, kind), *nested, *_compile(order))
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
    if precision in MIXED or precision is Precision.FP32:
        order.ask("precision")  # otherwise the script says what weights are loaded in
    why = f"{precision.value}: " + ("computed in 16 bits over fp32 weights" if precision in MIXED else
                                    "the weights' own dtype computes")
    computed = OVER_NARROW if order.ask.settings.get("option.autocast", False) else MIXED
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
        raise Unsupported(f"FSDP2 shards weights, gradients and states together, not {plan.shards} only; use --shards "
                          "everything")
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
    return (Line("fsdp_config", tuple(lines)), *_mesh(order))


def _mesh(order: Order) -> Table:
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
        comm = written(reader.EXCHANGES).get(job.plan.cp_kind, "allgather")
        lines.append(Line(p + "cp_comm_strategy", comm, "how keys and values travel"))
    return (Line("parallelism_config", tuple(lines)),)


def _fsdp1(order: Order) -> Table:
    ask, plan = order.ask, order.job.plan
    ask.also("sharded_by")
    strategy = FSDP1_STRATEGIES.get(Shards(ask("shards")))
    if strategy == "FULL_SHARD" and not ask("reshard_after_forward"):
        strategy = "SHARD_GRAD_OP"
    if strategy is None or plan.tp * plan.cp > 1:
        raise Unsupported(f"FSDP1 has no shards={plan.shards} with tp={plan.tp}, cp={plan.cp}; use --shards everything "
                          "with tp=cp=1")
    if ask("shard_group") is not None:
        if plan.shard_group != order.job.cluster.gpus_per_node or strategy != "FULL_SHARD":
            raise Unsupported(
                f"FSDP1's HYBRID_SHARD shares a copy inside a machine; use --shard-group "
                f"{order.job.cluster.gpus_per_node} with --shards everything, or --format accelerate-fsdp2"
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


def _compile(order: Order) -> Table:
    if not order.ask("compile"):
        return ()
    return (Line("dynamo_config", (Line("dynamo_backend", "inductor", "torch.compile, as planned"),)),)
