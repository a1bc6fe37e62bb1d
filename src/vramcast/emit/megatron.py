"""Megatron-LM: a script with every argument, the network's included.

[mlm] Megatron-LM megatron/training/arguments.py at d98e8a64, names as in its snapshot
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from vramcast.blocks.parameters import count_parameters
from vramcast.domain.job import AttentionKernel, Job, Precision, Recompute, Shards
from vramcast.domain.model import Model, MoE
from vramcast.emit.files import File, Order, Part, hub_id
from vramcast.emit.launch import RUN, run_script
from vramcast.emit.lines import Line, Table
from vramcast.emit.megatron_model import entry_script, is_hybrid, lines_of, model_arguments, unsaid_features
from vramcast.engines.megatron.chunk import stage_layers
from vramcast.engines.megatron.options import Context, Options, options_of
from vramcast.errors import Unsupported
from vramcast.question.configs import megatron
from vramcast.question.configs import megatron_model as reader
from vramcast.question.configs.reading import written

SAME: Final = 0.01
"""Of the parameters: by so little the network of the arguments may differ, in biases and norms."""

SIZES: Final = {option: name.removeprefix("--") for option, name in written(megatron.SIZES).items()}

STRATEGIES: Final = written(reader.STRATEGIES)

EXCHANGES: Final = {"ring": "p2p", "ulysses": "a2a", "allgather": "all_gather"}


def write(order: Order) -> tuple[File, ...]:
    """The script.

    Raises: Unsupported for networks and settings that have no argument
    """
    job: Job = order.job
    options = options_of(job)
    network = model_arguments(job.model, seq_len=job.workload.seq_len)
    order.ask.also(*(f"option.{name}" for name in Options.__struct_fields__), "objective", "attention", "loss")
    table = (
        *network, *_batch(order), *_precision(order, options), *_parallel(order, options), *_optimizer(order, options),
        *_recompute(order, options), *_moe(job, options), *_options(options), *_run(order),
    )
    program = f'"${{MEGATRON:-.}}/{entry_script(job.model)}"'
    text = run_script(order, program, table, variables=_variables(job))
    notes = [f"{RUN}: {job.model.name} has {text}, for which there is no argument here"
             for text in unsaid_features(job.model)]
    notes += _other_network(job.model, network)
    if job.workload.objective == "sft":
        notes.append(f"{RUN}: pre-training and fine-tuning take the same memory; name your own data")
    return (order.file(RUN, text, (Part("megatron", "arguments"),), tuple(notes), executable=True),)


def _other_network(model: Model, network: Table) -> Iterator[str]:
    """What is to be said where the arguments make another number of parameters than the plan counts.

    Raises: Unsupported where that is another network
    """
    read = reader.model_of({f"--{line.name}": line.value for line in network}, "hybrid" if is_hybrid(model) else "gpt")
    made, counted = count_parameters(read).total, count_parameters(model).total
    if abs(made - counted) > SAME * counted:
        raise Unsupported(
            f"{model.name}: Megatron's arguments describe {made:,} parameters of its {counted:,}; use --engine "
            "huggingface"
        )
    if made != counted:
        yield f"{RUN}: its arguments make {made:,} parameters, the plan counts the {counted:,} of {model.name}"


def _variables(job: Job) -> Table:
    """What Megatron-LM insists on [mlm `validate_args`]: FSDP wants several connections, splits inside a layer one."""
    if job.plan.tp * job.plan.cp == 1 or job.engine_options.get("fsdp") or job.plan.shards is Shards.EVERYTHING:
        return ()
    why = "with tp or cp kernels must start in the order they are queued, before Blackwell"
    return (Line("CUDA_DEVICE_MAX_CONNECTIONS", 1, why),)


def _batch(order: Order) -> Table:
    ask, ranks = order.ask, order.job.data_parallel
    micro, steps = ask("micro_batch"), ask("grad_accum")
    return (
        Line(SIZES["seq-len"], ask("seq_len"), "positions of a sample"),
        Line(SIZES["micro-batch"], micro, "samples per forward on one data-parallel rank"),
        Line(SIZES["global-batch"], micro * steps * ranks, f"{micro} x {steps} micro-batches x {ranks} ranks"),
    )


def _precision(order: Order, options: Options) -> Table:
    precision = Precision(order.ask("precision"))
    lines = {
        Precision.FP32: [],
        Precision.MIXED_FP16: [Line("fp16", True, "16-bit weights, fp32 copy in the optimizer")],
        Precision.MIXED_BF16: [Line("bf16", True, "16-bit weights, fp32 copy in the optimizer")],
        Precision.FP8: [Line("bf16", True, "what is not a product"), Line("fp8-format", "hybrid", "products")],
    }[precision]
    if precision is Precision.FP8:
        lines += lines_of((reader.FP8_RECIPE,), options)
        lines += [Line("fp8-param-gather", True, "weights are gathered in fp8")] if options.fp8_param_gather else []
    if precision is Precision.MIXED_FP16 and options.accumulate_in_fp32:
        lines.append(Line("accumulate-allreduce-grads-in-fp32", True, "gradients add up in fp32"))
    return tuple(lines)


def _parallel(order: Order, options: Options) -> Table:
    ask, job = order.ask, order.job
    ask.also("tp", "pp", "ep", "etp")
    cp, split = ask("cp"), ask("sequence_parallel")
    lines = lines_of(reader.DEGREES, job.plan)
    if cp > 1:
        kind = "a2a" if options.cp_a2a else EXCHANGES[ask("cp_kind")]
        lines.append(Line("cp-comm-type", kind, "how keys and values travel"))
    lines += lines_of(reader.DEGREES_OF_EXPERTS if job.plan.ep > 1 else reader.DEGREES_OF_EXPERTS[1:], job.plan)
    if job.plan.tp > 1 and split is not False:
        lines.append(Line("sequence-parallel", True, "norms and residuals are divided over tp too"))
    return (*lines, *_stages(order, options), *_sharding(order, options))


def _stages(order: Order, options: Options) -> Table:
    ask, job = order.ask, order.job
    pp, chunks = ask("pp"), ask("virtual_stages")
    ask.also("schedule", "first_stage_layers", "last_stage_layers")
    if pp == 1:
        return ()
    if is_hybrid(job.model):
        raise Unsupported(f"{job.model.name}: stages of hybrid patterns are not written here; use --pp 1")
    lines = []
    if options.stage_layers:
        lines.append(Line("pipeline-model-parallel-layout", _layout(job), "layers of every stage"))
    else:
        if chunks > 1:
            lines.append(Line("num-virtual-stages-per-pipeline-rank", chunks, "chunks of a rank: smaller bubbles"))
        lines += lines_of(reader.ENDS, job.plan)
    return (*lines, *lines_of((reader.INTERLEAVED,), options))


def _layout(job: Job) -> str:
    """'Ett|ttt|ttL': E embedding, t layer, m multi-token prediction, L loss."""
    stages = ["t" * count for count in stage_layers(Context(job))]
    stages[0] = "E" + stages[0]
    stages[-1] += "m" * bool(job.model.mtp_layers) + "L"
    return "|".join(stages)


def _sharding(order: Order, options: Options) -> Table:
    shards = Shards(order.ask("shards"))
    ranks = order.job.data_parallel * order.job.plan.cp
    order.ask("shard_group")
    if options.fsdp or shards is Shards.EVERYTHING:
        return (
            Line("use-distributed-optimizer", True, "Megatron's FSDP builds on it"),
            Line("use-megatron-fsdp", True),
            Line("data-parallel-sharding-strategy", STRATEGIES[shards], f"{shards.value} over {ranks} ranks"),
            Line("ckpt-format", "fsdp_dtensor", "the one its FSDP writes"),
        )
    if shards is Shards.NOTHING:
        return ()
    lines = [Line("use-distributed-optimizer", True, f"optimizer states are split over {ranks} ranks")]
    if options.optimizer_instances > 1:
        lines += lines_of((reader.INSTANCES,), options)
    return tuple(lines)


def _optimizer(order: Order, options: Options) -> Table:
    ask = order.ask
    ask.also("optimizer")
    device = ask("offload_optimizer")
    if device == "nvme":
        raise Unsupported("Megatron offloads optimizer states to the host only; use --offload-optimizer cpu")
    lines = []
    if options.precision_aware or device == "cpu":
        lines.append(Line("use-precision-aware-optimizer", True, "states in the dtypes named here"))
        lines += [Line("exp-avg-dtype", options.moments), Line("exp-avg-sq-dtype", options.moments)]
    if device == "cpu":
        lines += [Line("optimizer-cpu-offload", True, "states wait on the host"),
                  Line("optimizer-offload-fraction", 1.0)]
    if options.optimizer == "sgd":
        lines.append(Line("sgd-momentum", 0.9))
    if not options.clip_grad:
        lines.append(Line("clip-grad", 0.0, "no norm of the gradients is taken"))
    return tuple(lines)


def _recompute(order: Order, options: Options) -> Table:
    ask, job = order.ask, order.job
    kind, layers, modules = Recompute(ask("recompute")), ask("recompute_layers"), ask("recompute_modules")
    if kind is Recompute.NONE:
        return ()
    if kind is Recompute.SELECTIVE:
        return (
            Line("recompute-granularity", "selective", "cheap parts run again in backward"),
            Line("recompute-modules", list(modules or ("core_attn",)), "the parts"),
        )
    whole = 1 if options.recompute_method == "uniform" else max(stage_layers(Context(job)))
    return (
        Line("recompute-granularity", "full", "layers keep only their input"),
        *lines_of((reader.RECOMPUTE_METHOD,), options),
        Line("recompute-num-layers", whole if layers is None else layers,
             "layers of a stage" if options.recompute_method == "block" else "layers of a unit"),
    )


def _moe(job: Job, options: Options) -> Table:
    if not any(isinstance(run.layer.channel, MoE) for run in job.model.main.runs):
        return ()
    lines = [*lines_of((reader.DISPATCHER,), options), *_switches(reader.SWITCHES_OF_EXPERTS, options)]
    if options.router_fp32:
        lines.append(Line("moe-router-dtype", "fp32"))
    if options.sinkhorn:
        lines.append(Line("moe-router-load-balancing-type", "sinkhorn"))
    if options.capacity_factor is not None:
        lines.append(Line("moe-expert-capacity-factor", options.capacity_factor, "tokens beyond it are dropped"))
    return tuple(lines)


def _switches(table: tuple[reader.Switch, ...], options: Options) -> Table:
    return tuple(Line(name, True) for field, value, name in table if getattr(options, field) is value)


def _options(options: Options) -> Table:
    lines = [*_switches(reader.SWITCHES, options), *lines_of((reader.IMPLEMENTATION, *reader.VALUES), options)]
    if options.cross_entropy == "te":
        raise Unsupported(
            "Megatron-LM has switched off TransformerEngine's fused cross entropy; use --engine-option "
            "cross_entropy=native, or --loss eager"
        )
    if options.cross_entropy != "unfused":
        lines += [Line("cross-entropy-loss-fusion", True), Line("cross-entropy-fusion-impl", options.cross_entropy)]
    if options.defer_embedding_wgrad:
        lines += [Line("defer-embedding-wgrad-compute", True),
                  Line("wgrad-deferral-limit", options.defer_embedding_wgrad)]
    return tuple(lines)


def _run(order: Order) -> Table:
    model = order.job.model
    if order.job.plan.attention is AttentionKernel.EFFICIENT:
        raise Unsupported("Megatron has no attention kernel efficient; use flash, cudnn or eager")
    return (
        Line("hidden-dropout", model.hidden_dropout),
        Line("attention-dropout", model.attention_dropout),
        Line("tokenizer-type", "HuggingFaceTokenizer"),
        Line("tokenizer-model", hub_id(model)),
        Line("mock-data", True, "in place of it: --data-path and --split"),
        Line("train-iters", 100, "not part of the plan"),
        Line("lr", 1e-4, "not part of the plan"),
    )
