"""torchtitan: a registry function for the model, and a command line for the rest. It has no TOML any more.

[titan] torchtitan 0.3.0 config/manager.py `ConfigManager`: `--module MODULE --config FUNCTION`, then
`--section.name value`; distributed/pipeline_parallel.py for what a stage holds
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

from vramcast.domain.job import Job, Loss, Precision, Recompute, Shards
from vramcast.emit.deepspeed import LEARNING_RATE
from vramcast.emit.files import File, Order, Part, hub_id
from vramcast.emit.launch import RUN, run_script
from vramcast.emit.lines import Line, Table
from vramcast.errors import Unsupported
from vramcast.question.configs import torchtitan as reader
from vramcast.question.configs.reading import written
from vramcast.units import ceil_div

REGISTRY: Final = "vramcast_plan.py"


class Flavour(NamedTuple):
    """One network that torchtitan has."""

    module: str  # folder of torchtitan/models
    name: str  # key of its model_registry


MODELS: Final[tuple[tuple[str, str, str], ...]] = (
    (r"llama-3(?:\.[123])?-(1b|3b|8b|70b|405b)(?:-instruct)?", "llama3", "{upper}"),
    (r"qwen3-(0\.6b|1\.7b|4b|8b|14b|32b|30b-a3b|235b-a22b)", "qwen3", "{upper}"),
    (r"deepseek-v2-lite", "deepseek_v3", "16B"),
    (r"deepseek-v3(?:\.1)?|deepseek-r1", "deepseek_v3", "671B"),
    (r"gpt-oss-(20b|120b)", "gpt_oss", "{lower}"),
    (r"moonlight-16b-a3b", "kimi_k2_7", "moonlight-16B-A3B"),
)
"""Our name -> folder and flavour [titan models/*/__init__.py]."""

NAMES: Final = written(reader.NAMES)

SCHEDULES: Final = {options.get("schedule", "1f1b"): name for name, options in reader.SCHEDULES.items()}


def flavour_of(order: Order) -> Flavour:
    """The network in torchtitan's terms.

    Raises: Unsupported for a network it does not have
    """
    name = order.job.model.name.lower()
    for pattern, module, flavour in MODELS:
        match = re.fullmatch(pattern, name)
        if match is not None:
            size = match[1] if match.groups() and match[1] else ""
            return Flavour(module, flavour.format(upper=size.upper(), lower=size))
    raise Unsupported(
        f"torchtitan has no flavour for {order.job.model.name}; use llama-3.1-8b, qwen3-32b, deepseek-v3, gpt-oss-20b "
        "and their kin, or --format accelerate-fsdp2"
    )


def write(order: Order) -> tuple[File, ...]:
    """The registry function and the command.

    Raises: Unsupported for networks and settings that torchtitan does not have
    """
    options = _options(order)
    registry = _registry(order)
    compile(registry, REGISTRY, "exec")
    run = run_script(order, "-m torchtitan.train", options)
    sections = dict.fromkeys(line.name.partition(".")[0] for line in options if "." in line.name)
    parts = tuple(Part("torchtitan", section, (section,)) for section in sections)
    return (
        order.file(REGISTRY, registry, notes=_notes(order)),
        order.file(RUN, run, parts, executable=True),
    )


def _usual(name: str, why: str) -> Line:
    """A name with the value that is modelled."""
    return Line(name, reader.USUAL[name][0], why)


def _options(order: Order) -> Table:
    return (
        Line("module", REGISTRY.removesuffix(".py"), f"the registry function in {REGISTRY}"),
        Line("config", "planned"),
        *_training(order),
        *_parallelism(order),
        *_compile(order),
        _usual("optimizer.implementation", "torchtitan's default, as computed"),
    )


def _training(order: Order) -> Table:
    ask, job = order.ask, order.job
    micro, ranks = ask("micro_batch"), job.data_parallel
    total = micro * ask("grad_accum") * ranks
    lines = [
        Line(NAMES["micro-batch"], micro, "samples of one data-parallel rank per forward and backward"),
        Line(NAMES["global-batch"], total, f"{micro} x {job.workload.grad_accum} x {ranks} ranks"),
        Line(NAMES["seq-len"], ask("seq_len"), "positions of a sample"),
        *_precision(order),
        _usual("training.disable_cuda_graphs", "graphs keep a pool of their own that was not computed"),
    ]
    devices = {ask("offload_optimizer"), ask("offload_parameters")}
    if "nvme" in devices:
        raise Unsupported("torchtitan offloads to the host only; use --offload-optimizer cpu")
    if "cpu" in devices:
        lines.append(Line("training.enable_cpu_offload", True, "weights, gradients and states wait on the host"))
    return tuple(lines)


def _precision(order: Order) -> list[Line]:
    precision = Precision(order.ask("precision"))
    if precision not in (Precision.MIXED_BF16, Precision.AMP_BF16, Precision.FP8):
        raise Unsupported(f"torchtitan plans are computed in mixed-bf16 or fp8, not in {precision.value}")
    return [
        _usual("training.dtype", f"{precision.value}: weights and states in fp32"),
        _usual("training.mixed_precision_param", "gathered weights and activations"),
        _usual("training.mixed_precision_reduce", "gradients are added in fp32"),
    ]


def _parallelism(order: Order) -> Table:
    ask, job = order.ask, order.job
    if Shards(ask("shards")) is not Shards.EVERYTHING:
        raise Unsupported(f"torchtitan shards everything, not {job.plan.shards.value}; use --shards everything")
    shard, copies = _groups(order)
    p = "parallelism."
    lines = [
        Line(p + "data_parallel_shard_degree", shard, "ranks that share one copy of the weights"),
        Line(p + "data_parallel_replicate_degree", copies, "copies"),
        Line(p + "fsdp_reshard_after_forward", _reshard(order), "whether gathered weights are freed after forward"),
        Line(NAMES["tp"], ask("tp"), "ranks that divide every layer"),
        _usual(p + "enable_sequence_parallel", "norms and residuals are divided over them too"),
        Line(NAMES["cp"], ask("cp"), "ranks that divide every sequence"),
        Line(NAMES["ep"], ask("ep"), "ranks that divide the experts"),
    ]
    ask.also("cp_kind")
    if ask("sequence_parallel") is False:
        raise Unsupported("torchtitan plans are computed with sequence parallelism; leave --no-sequence-parallel out")
    if ask("etp") not in (None, 1):
        raise Unsupported(f"torchtitan has no tensor parallelism inside experts; use --etp 1, not {job.plan.etp}")
    return (*lines, *_pipeline(order))


def _groups(order: Order) -> tuple[int, int]:
    """Ranks that share a copy, context parallelism apart, and copies."""
    job: Job = order.job
    group, cp, ranks = order.ask("shard_group"), job.plan.cp, job.data_parallel
    if group is None or group >= ranks * cp:
        return ranks, 1
    if group % cp:
        raise Unsupported(f"shard-group={group} must be a multiple of cp={cp}: torchtitan shards over both together")
    return group // cp, ranks * cp // group


def _reshard(order: Order) -> str:
    given = order.ask("option.reshard")
    return str(given) if given else "default" if order.ask("reshard_after_forward") else "never"


def _pipeline(order: Order) -> Table:
    ask, job = order.ask, order.job
    pp, chunks = ask("pp"), ask("virtual_stages")
    p = "parallelism.pipeline_parallel_"
    lines = [Line(NAMES["pp"], pp, "stages, one after the other")]
    asked = ask("schedule")
    schedule = "interleaved" if asked == "1f1b" and chunks > 1 else asked
    size = ask("option.pipeline_microbatch_size", 1)
    if pp > 1:
        lines += [
            Line(p + "schedule", SCHEDULES[schedule], "as planned"),
            Line(p + "microbatch_size", size, "samples that travel together"),
            *_stages(job, pp * chunks),
        ]
    return tuple(lines)


def _stages(job: Job, stages: int) -> Table:
    """One stage per rank, and two of interleaved schedules, are torchtitan's own choice; more must be said."""
    if job.plan.virtual_stages <= 2:
        return ()
    work = job.model.num_layers + 2  # embedding and head count as a layer each
    per_stage = ceil_div(work, stages)
    if ceil_div(work, per_stage) != stages:
        raise Unsupported(
            f"torchtitan divides {work} layers and ends by layers per stage, which never gives {stages} stages; use "
            "--virtual-stages 1 or 2"
        )
    why = f"{work} layers and ends over {stages} stages"
    return (Line("parallelism.pipeline_parallel_layers_per_stage", per_stage, why),)


def _compile(order: Order) -> Table:
    if not order.ask("compile"):
        return ()
    if order.job.plan.loss is Loss.EAGER:
        return Line("compile.enable", True, "the model"), Line("compile.components", "model", "not the loss")
    return (Line("compile.enable", True, "model and loss"),)


def _registry(order: Order) -> str:
    ask, flavour = order.ask, flavour_of(order)
    recompute = Recompute(ask("recompute"))
    policy = written(reader.POLICIES)[recompute]
    if ask("optimizer") not in ("adamw", "adam"):
        raise Unsupported(f"torchtitan has no optimizer {order.job.plan.optimizer}; use adamw or adam")
    ask.also("attention", "objective", "option.version", "option.trainer")
    converters = ""
    if Precision(ask("precision")) is Precision.FP8 or ask("option.float8"):
        ask.also("option.float8")
        compiled = bool(order.job.plan.compile)
        kept = '"lm_head", "router.gate"'  # as models/deepseek_v3/config_registry.py has it
        converters = (
            f", converters=[Float8LinearConverter.Config(filter_fqns=[{kept}], model_compile_enabled={compiled})]"
        )
    chunked = _chunked(order)
    cross_entropy = "CrossEntropyLoss.Config(global_vocab_size=vocab)"
    return TEXT.format(
        title=f"{order.job.model.name} as planned for {order.job.cluster.name}",
        module=flavour.module, flavour=flavour.name, backend=_attention(order), converters=converters,
        assets=hub_id(order.job.model).rpartition("/")[2], rate=LEARNING_RATE,
        policy=policy if recompute is Recompute.NONE else f"{policy}.Config()",
        recompute=recompute.value, name="AdamW" if order.job.plan.optimizer == "adamw" else "Adam",
        loss=f"ChunkedLossWrapper.Config(loss_fn={cross_entropy})" if chunked else cross_entropy,
        loss_why="the head runs chunk by chunk" if chunked else "all logits exist at once",
        extra="from torchtitan.components.quantization import Float8LinearConverter\n" if converters else "",
    )


def _chunked(order: Order) -> bool:
    loss = order.ask("loss")
    if loss in (Loss.COMPILED, Loss.FUSED):
        raise Unsupported(f"torchtitan has no loss={loss}; use --loss chunked, or --loss eager")
    return loss in (None, Loss.CHUNKED, Loss.FUSED_LINEAR)


def _attention(order: Order) -> str:
    """Context parallelism runs over FlexAttention only."""
    return "flex" if order.job.plan.cp > 1 else "varlen"


def _notes(order: Order) -> tuple[str, ...]:
    found = []
    version = order.job.engine_options.get("version")
    if version:
        found.append(f"{RUN}: the plan was computed for torchtitan of {version}; these names are those of 0.3.0")
    if order.job.engine_options.get("trainer") == "graph":
        found.append(f"{RUN}: the graph trainer runs as --module graph_trainer.llama3; the plan was computed for it")
    return tuple(found)


TEXT: Final = '''\
"""{title}: `--module vramcast_plan --config planned`."""

from torchtitan.components.loss import ChunkedLossWrapper, CrossEntropyLoss
from torchtitan.components.optimizer import LRSchedulersContainer, OptimizersContainer, ParamGroupConfig
{extra}from torchtitan.distributed.activation_checkpoint import FullAC, SelectiveAC
from torchtitan.hf_datasets.text_datasets import HuggingFaceTextDataLoader
from torchtitan.models.common.config_utils import decoder_vocab_size
from torchtitan.models.{module} import model_registry
from torchtitan.trainer import Trainer


def planned() -> Trainer.Config:
    """Network, loss, optimizer and recomputation; batch and degrees stand in run.sh."""
    model_spec = model_registry("{flavour}", attn_backend="{backend}"{converters})
    vocab = decoder_vocab_size(model_spec)
    learning = {{"lr": {rate}, "betas": (0.9, 0.95), "eps": 1e-8, "weight_decay": 0.1}}  # not part of the plan
    return Trainer.Config(
        model_spec=model_spec,
        # tokenizer and weights, as torchtitan's scripts/download_hf_assets.py puts them
        hf_assets_path="./assets/hf/{assets}",
        # {loss_why}
        loss={loss},
        optimizer=OptimizersContainer.Config(
            param_groups=[ParamGroupConfig(pattern=r".*", optimizer_name="{name}", optimizer_kwargs=learning)]
        ),
        lr_scheduler=LRSchedulersContainer.Config(warmup_steps=200),
        dataloader=HuggingFaceTextDataLoader.Config(dataset="c4"),
        # recomputation: {recompute}
        activation_checkpoint={policy},
    )
'''
