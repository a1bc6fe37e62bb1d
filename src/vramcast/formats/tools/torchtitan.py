"""A torchtitan command, and the registry function or the TOML file that it names.

[titan] torchtitan 0.3.0 config/configs.py, config/manager.py: `--module MODULE --config FUNCTION --section.name value`;
what a command does not say stands in the function
"""


from __future__ import annotations

import math
import re
from typing import Any, Final, NamedTuple

from vramcast.domain.job import Job, Loss, Precision, Recompute, Shards
from vramcast.errors import Note, Unsupported
from vramcast.formats.files import File, Order, Part, hub_id
from vramcast.formats.launch import RUN, run_script
from vramcast.formats.lines import Line, Table, when
from vramcast.formats.reading import (
    Command,
    Config,
    Reading,
    arguments,
    command_of,
    plain,
    shown,
    together,
    written,
)
from vramcast.formats.table import Row, read_options
from vramcast.formats.tools import torchtitan_registry
from vramcast.formats.tools.deepspeed import LEARNING_RATE
from vramcast.formats.tools.megatron_bridge import parse_python
from vramcast.formats.unread import options_of_environment, ranks_of, unread_environment
from vramcast.formats.watched import Known, Watched
from vramcast.units import ceil_div

ROWS: Final = (
    Row("tp", "parallelism.tensor_parallel_degree", why="ranks that divide every layer"),
    Row("pp", "parallelism.pipeline_parallel_degree", why="stages, one after the other"),
    Row("cp", "parallelism.context_parallel_degree", why="ranks that divide every sequence"),
    Row("ep", "parallelism.expert_parallel_degree", why="ranks that divide the experts"),
    Row("seq_len", "training.seq_len", why="positions of a sample"),
    Row("micro_batch", "training.local_batch_size", why="samples of one data-parallel rank per forward and backward"),
    Row("precision", "training.dtype", words={"float32": None, "bfloat16": "bf16"}),  # of weights, gradients, states
    Row("global_batch", "training.global_batch_size"),
)

ASKED: Final = {"training.seq_len": "seq-len", "training.local_batch_size": "micro-batch",
                "activation_checkpoint.mode": "recompute"}
"""What stands in the function where a command does not say it, and the option that says it instead."""

RECOMPUTE: Final = {"none": "none", "selective": "selective", "full": "full"}

SCHEDULES: Final[dict[str, dict[str, Any]]] = {
    "1F1B": {}, "GPipe": {"schedule": "gpipe"}, "Interleaved1F1B": {"virtual-stages": 2, "schedule": "interleaved"},
}
"""Schedule -> options; the chunks a rank has at least [titan distributed/pipeline_parallel.py]."""

USUAL: Final[dict[str, tuple[Any, ...]]] = {
    "parallelism.enable_sequence_parallel": (True,),
    "training.mixed_precision_param": ("bfloat16",), "training.mixed_precision_reduce": ("float32",),
    "training.disable_cuda_graphs": (True,), "compile.enable_async_tensor_parallel": (False,),
    "optimizer.implementation": ("fused",), "parallelism.pipeline_parallel_microbatch_size": (1,),
    "compile.backend": ("inductor",), "comm.mode": ("default",),
    "debug.deterministic": (False,), "debug.moe_force_load_balance": (False, True),
    "optimizer.name": ("AdamW",),
}
"""Names that change nothing with these values, and are not modelled with others."""

HARMLESS: Final = Known("torchtitan", "other")

POLICIES: Final = {"SelectiveAC": "selective", "FullAC": "full", "None": "none"}


def read(config: Config) -> Reading:
    """Options of the command, of the function, or of the TOML that versions before 0.3 had.

    Raises: SourceError for what is no TOML
    """
    if config.name.endswith(".toml"):
        return _toml(config)
    if config.name.endswith(".py"):
        return _registry(config)
    command = command_of(config, lambda words: sum(word.startswith("--") and "." in word for word in words))
    given = arguments(command.words)
    said = torchtitan_registry.in_samples(torchtitan_registry.last_names(given))
    values = Watched(said, undecided=command.undecided)
    options = {"engine": "torchtitan", "shards": "everything"} | _walk(values, whole=False)
    options |= options_of_environment(command.variables)
    file = values.text("job.config_file") or command.variables.get("CONFIG_FILE", "")
    function = values.text("config") or file or command.variables.get("CONFIG", "") or "function"
    values.get("module")
    for name, option in ASKED.items():
        if option not in options:
            why = Note("stands in {}, a file of its own; give it with another --from, or --{}", function[:60], option)
            values.cannot(name, why, option=option)
    unread = [one for one in values.unread() if not _is_harmless(one.name)]
    gpus, nodes = values.count("nproc_per_node") or _cards(command), values.count("nnodes")
    weak = {}
    if file.endswith(".toml"):  # which tells the version, too
        weak = {"engine": f"torchtitan@{torchtitan_registry.day_of(given)}"}
        del options["engine"]
    return Reading(
        "torchtitan", options, weak,
        unread=(*command.unread, *unread, *unread_environment(command.variables)),
        notes=command.notes, ranks=_mesh(values) or ranks_of(gpus, nodes, command.variables),
    )


def _cards(command: Command) -> int | None:
    """Processes of run_train.sh."""
    named = plain(command.variables.get("NGPU", ""))
    return named if isinstance(named, int) and named > 0 else None


def _toml(config: Config) -> Reading:
    values, day = torchtitan_registry.values_of_toml(config)
    options = {"shards": "everything"} | _walk(values, whole=True)
    unread = tuple(one for one in values.unread() if not _is_harmless(one.name))
    note = Note("its names are torchtitan's until {}, which is assumed; --engine torchtitan@VERSION says another", day)
    engine = {"engine": f"torchtitan@{day}"}
    return Reading("torchtitan", engine, options, unread=unread, notes=(note,), ranks=_mesh(values))


def _walk(values: Watched, *, whole: bool) -> dict[str, Any]:
    """What names with a section say, in a file or behind a command."""
    one_a_step = values.get("training.global_batch_size") == -1
    options = read_options(ROWS[:-1] if one_a_step else ROWS, values)
    if mode := values.one_of("activation_checkpoint.mode", RECOMPUTE, option="recompute"):
        options["recompute"] = mode
    parts = (_switches(values), _sharding(values), _pipeline(values))
    options = together(options, *parts, torchtitan_registry.read_older(values, whole=whole))
    if (captured := values.flag("cuda_graphs")) is not None:
        options = together(options, {"engine-option": (f"cuda_graphs={str(captured).lower()}",)})
    for name, usual in USUAL.items():
        values.only(name, *usual)
    return options


def _mesh(values: Watched) -> int | None:
    """Processes that the degrees make together; None where those that share a copy are left to the run
    [titan distributed/parallel_dims.py `_validate`]."""
    names = (f"parallelism.{name}_degree" for name in (
        "data_parallel_replicate", "data_parallel_shard", "context_parallel", "tensor_parallel", "pipeline_parallel"))
    sizes = [values.get(name, -1 if "shard" in name else 1) for name in names]
    return math.prod(sizes) if all(isinstance(size, int) and size > 0 for size in sizes) else None


def _is_harmless(name: str) -> bool:
    section, point, inner = name.partition(".")
    if not point:
        return Known("torchrun", "arguments").is_harmless(name)
    return Known("torchtitan", section).is_harmless(inner) or HARMLESS.is_harmless(section)


def _switches(values: Watched) -> dict[str, Any]:
    found: dict[str, Any] = {}
    parts = values.get("compile.components") or ["model", "loss"]
    parts = parts if isinstance(parts, list) else [parts]
    if values.flag("compile.enable"):
        if unknown := [part for part in parts if part not in ("model", "loss")]:
            values.cannot("compile.components", "{} is neither model nor loss", shown(unknown[0]))
        found |= {"compile": True} if "model" in parts else {"loss": "compiled"}
        if "loss" not in parts:
            found["loss"] = "eager"
    if values.flag("training.enable_cpu_offload"):
        found |= {"offload-optimizer": "cpu", "offload-parameters": "cpu"}
    return found


def _sharding(values: Watched) -> dict[str, Any]:
    """Copies and what shares one; whether gathered weights are freed."""
    found: dict[str, Any] = {}
    p = "parallelism.data_parallel_"
    if (copies := values.count(f"{p}replicate_degree") or 1) > 1:
        shard = values.count(f"{p}shard_degree")
        if shard is None:
            values.cannot(f"{p}shard_degree", "is left to the run beside {} copies; give --shard-group", copies,
                          option="shard-group")
        else:
            found["shard-group"] = shard * (values.count("parallelism.context_parallel_degree") or 1)
    else:
        values.get(f"{p}shard_degree")
    reshard = values.one_of("parallelism.fsdp_reshard_after_forward",
                            {"default": None, "always": "always", "never": "never"}, option="reshard-after-forward")
    if reshard == "never":
        found["reshard-after-forward"] = False
    elif reshard == "always":
        found["engine-option"] = ("reshard=always",)
    return found


def _pipeline(values: Watched) -> dict[str, Any]:
    p = "parallelism.pipeline_parallel_"
    asked = values.one_of(f"{p}schedule", SCHEDULES, option="schedule") or {}
    return dict(asked) if (values.count(f"{p}degree") or 1) > 1 else {}


def _registry(config: Config) -> Reading:
    """What a registry function says; a command beside it says more, or otherwise."""
    values, said, others = torchtitan_registry.values_of(config, parse_python(config))
    options = together(_walk(values, whole=False), said) if values else {}
    unread = tuple(one for one in values.unread()
                   if not (_is_harmless(one.name) or HARMLESS.is_harmless(one.name)))
    return Reading("torchtitan", {"engine": "torchtitan", "shards": "everything"}, options, unread=(*others, *unread),
                   ranks=_mesh(values))


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

ROW: Final = {row.field: row for row in ROWS}

SCHEDULE_NAMES: Final = {options.get("schedule", "1f1b"): name for name, options in SCHEDULES.items()}


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
        "torchtitan has no flavour for {}; use llama-3.1-8b, qwen3-32b, deepseek-v3, gpt-oss-20b and their kin, or "
        "--format accelerate-fsdp2", order.job.model.name
    )


def write(order: Order) -> tuple[File, ...]:
    """The registry function and the command.

    Raises: Unsupported for networks and settings that torchtitan does not have
    """
    options = _options(order)
    registry = _registry_text(order)
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
    return Line(name, USUAL[name][0], why)


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
    devices = {ask("offload_optimizer"), ask("offload_parameters")}
    if "nvme" in devices:
        raise Unsupported("torchtitan offloads to the host only; use --offload-optimizer cpu")
    return (
        ROW["micro_batch"].line(micro),
        ROW["global_batch"].line(total, f"{micro} x {job.workload.grad_accum} x {ranks} ranks"),
        ROW["seq_len"].line(ask("seq_len")),
        *_precision(order),
        _usual("training.disable_cuda_graphs", "graphs keep a pool of their own that was not computed"),
        *when("cpu" in devices,
              Line("training.enable_cpu_offload", True, "weights, gradients and states wait on the host")),
    )


def _precision(order: Order) -> list[Line]:
    precision = Precision(order.ask("precision"))
    if precision not in (Precision.MIXED_BF16, Precision.AMP_BF16, Precision.BF16, Precision.FP8):
        raise Unsupported("torchtitan plans are computed in mixed-bf16, bf16 or fp8, not in {}", precision.value)
    held = "bfloat16" if precision is Precision.BF16 else "float32"
    return [
        Line("training.dtype", held, f"{precision.value}: type of weights and states"),
        _usual("training.mixed_precision_param", "gathered weights and activations"),
        _usual("training.mixed_precision_reduce", "gradients are added in fp32"),
    ]


def _parallelism(order: Order) -> Table:
    ask, job = order.ask, order.job
    if Shards(ask("shards")) is not Shards.EVERYTHING:
        raise Unsupported("torchtitan shards everything, not {}; use --shards everything", job.plan.shards.value)
    shard, copies = _groups(order)
    p = "parallelism."
    lines = [
        Line(p + "data_parallel_shard_degree", shard, "ranks that share one copy of the weights"),
        Line(p + "data_parallel_replicate_degree", copies, "copies"),
        Line(p + "fsdp_reshard_after_forward", _reshard(order), "whether gathered weights are freed after forward"),
        ROW["tp"].line(ask("tp")),
        _usual(p + "enable_sequence_parallel", "norms and residuals are divided over them too"),
        ROW["cp"].line(ask("cp")),
        ROW["ep"].line(ask("ep")),
    ]
    ask.also("cp_kind")
    if ask("sequence_parallel") is False:
        raise Unsupported("torchtitan plans are computed with sequence parallelism; leave --no-sequence-parallel out")
    if ask("etp") not in (None, 1):
        raise Unsupported("torchtitan has no tensor parallelism inside experts; use --etp 1, not {}", job.plan.etp)
    return (*lines, *_pipeline_lines(order))


def _groups(order: Order) -> tuple[int, int]:
    """Ranks that share a copy, context parallelism apart, and copies."""
    job: Job = order.job
    group, cp, ranks = order.ask("shard_group"), job.plan.cp, job.data_parallel
    if group is None or group >= ranks * cp:
        return ranks, 1
    if group % cp:
        raise Unsupported("shard-group={} must be a multiple of cp={}: torchtitan shards over both together", group, cp)
    return group // cp, ranks * cp // group


def _reshard(order: Order) -> str:
    given = order.ask("option.reshard")
    return str(given) if given else "default" if order.ask("reshard_after_forward") else "never"


def _pipeline_lines(order: Order) -> Table:
    ask, job = order.ask, order.job
    pp, chunks = ask("pp"), ask("virtual_stages")
    p = "parallelism.pipeline_parallel_"
    asked = ask("schedule")
    schedule = "interleaved" if asked == "1f1b" and chunks > 1 else asked
    size = ask("option.pipeline_microbatch_size", 1)
    return (ROW["pp"].line(pp), *((
        Line(p + "schedule", SCHEDULE_NAMES[schedule], "as planned"),
        Line(p + "microbatch_size", size, "samples that travel together"),
        *_stages(job, pp * chunks),
    ) if pp > 1 else ()))


def _stages(job: Job, stages: int) -> Table:
    """One stage per rank, and two of interleaved schedules, are torchtitan's own choice; more must be said."""
    if job.plan.virtual_stages <= 2:
        return ()
    work = job.model.num_layers + 2  # embedding and head count as a layer each
    per_stage = ceil_div(work, stages)
    if ceil_div(work, per_stage) != stages:
        raise Unsupported(
            "torchtitan divides {} layers and ends by layers per stage, which never gives {} stages; use "
            "--virtual-stages 1 or 2", work, stages
        )
    why = f"{work} layers and ends over {stages} stages"
    return (Line("parallelism.pipeline_parallel_layers_per_stage", per_stage, why),)


def _compile(order: Order) -> Table:
    if not order.ask("compile"):
        return ()
    if order.job.plan.loss is Loss.EAGER:
        return Line("compile.enable", True, "the model"), Line("compile.components", "model", "not the loss")
    return (Line("compile.enable", True, "model and loss"),)


def _registry_text(order: Order) -> str:
    ask, flavour = order.ask, flavour_of(order)
    recompute = Recompute(ask("recompute"))
    policy = written(POLICIES)[recompute]
    if ask("optimizer") not in ("adamw", "adam"):
        raise Unsupported("torchtitan has no optimizer {}; use adamw or adam", order.job.plan.optimizer)
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
        raise Unsupported("torchtitan has no loss={}; use --loss chunked, or --loss eager", loss)
    return loss in (None, Loss.CHUNKED, Loss.FUSED_LINEAR)


def _attention(order: Order) -> str:
    """Context parallelism runs over FlexAttention only."""
    return "flex" if order.job.plan.cp > 1 else "varlen"


def _notes(order: Order) -> tuple[str, ...]:
    found = []
    version = order.job.engine_options.get("version")
    if version:
        found.append(Note(
            "{}: the plan was computed for torchtitan of {}; these names are those of 0.3.0", RUN, version
        ))
    if order.job.engine_options.get("trainer") == "graph":
        found.append(Note(
            "{}: the graph trainer runs as --module graph_trainer.llama3; the plan was computed for it", RUN
        ))
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
