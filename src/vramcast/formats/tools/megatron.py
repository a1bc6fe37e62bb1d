"""Megatron-LM's arguments in a shell script or a text [Megatron-LM megatron/training/arguments.py]."""


from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

import msgspec.structs

from vramcast.blocks.parameters.model import count_parameters
from vramcast.catalogue.formats import load_format, problems
from vramcast.domain.job import AttentionKernel, Job, Plan, Precision, Shards
from vramcast.domain.model import Model
from vramcast.engines.megatron.chunk import stage_layers
from vramcast.engines.megatron.options import Context, Options, options_of
from vramcast.errors import Note, Unsupported
from vramcast.formats.files import File, Order, Part, hub_id
from vramcast.formats.launch import RUN, run_script
from vramcast.formats.lines import Line, Table, when
from vramcast.formats.reading import Command, Config, Reading, Unread, arguments, command_of, shown, written
from vramcast.formats.table import lines_of
from vramcast.formats.tools import megatron_files
from vramcast.formats.tools import megatron_model as reader
from vramcast.formats.tools.megatron_files import dashed, family_of, given_by_table, notes_of, read_environment
from vramcast.formats.tools.megatron_model import (
    BY_TOKENIZER,
    DEFAULT_TOKENIZERS,
    count_vocabulary,
    engine_options_of,
    expert_arguments,
    first_batch,
    optimizer_arguments,
    option_arguments,
    plan_of,
    recompute_arguments,
    vocabulary_of,
)
from vramcast.formats.tools.megatron_network import entry_script, is_hybrid, model_arguments, model_of, unsaid_features
from vramcast.formats.unread import options_of_environment, ranks_of
from vramcast.formats.watched import Known, Watched
from vramcast.question.options import OPTIONS

ARGUMENTS: Final = Known("megatron", "arguments", (Known("torchrun", "arguments"),))

LISTS: Final = ("--recompute-modules", "--spec", "--step-batch-size-schedule")

SCRIPTS: Final = {
    "pretrain_gpt.py": "gpt", "pretrain_mamba.py": "hybrid", "pretrain_hybrid.py": "hybrid", "pretrain_bert.py": "bert",
    "pretrain_t5.py": "t5",
}
"""Entry script -> family of its network; others build networks of their own."""

SIZES: Final = {"--seq-length": "seq-len", "--micro-batch-size": "micro-batch", "--global-batch-size": "global-batch"}

OF_ENCODERS: Final = {"--encoder-seq-length": "seq-len", "--decoder-seq-length": "decoder-seq-len"}
"""Sizes of networks with an encoder and a decoder."""

NEEDED: Final = ("--seq-length", "--micro-batch-size")
"""Sizes that Megatron-LM has no default for [arguments.py `validate_args`]."""

ENDS_COUNTED: Final = ("--account-for-embedding-in-pipeline-split", "--account-for-loss-in-pipeline-split")
"""What counts the embedding or the head as a layer of its stage."""

OF_EXPERTS: Final = ("dispatcher", "grouped_gemm", "permute_fusion", "router_fp32", "sinkhorn", "overlap_moe_comm")
"""Engine options that say nothing of a dense network."""

DESCRIBES: Final = ("--hidden-size", "--num-attention-heads", "--max-position-embeddings")
"""What a network needs, beside its layers."""

OF_NETWORK: Final = re.compile(
    r"--(?:experimental-attention|dsa-|linear-|softmax-type|window-|attention-output|qk-|mtp-|heterogeneous|enable-mhc|"
    r"mhc-|moe-(?:ffn|latent|layer-freq|shared-expert-(?:gate|inter|glu)|use-upcycling|mlp-glu)|num-|hybrid|mamba-|gdp-|"
    r"is-hybrid|multi|kv-|q-lora|v-head|img-|vision|encoder|decoder-num|ict|biencoder|spec|padded-vocab|vocab|"
    r"tokenizer-type|activation-func|quick-geglu|openai-gelu|onnx|squared|swiglu|normalization|no-rope-freq|"
    r"group-query|ffn-hidden|attention-dropout|rotary|use-rotary|"
    r"use-checkpoint-args|yaml-cfg|fp32-residual|apply-residual|add-qkv|disable-bias|untie|position|max-position|hidden)"
)
"""Arguments that say what the network is."""

USUAL: Final[dict[str, tuple[Any, ...]]] = {
    "--use-flash-attn": (True,), "--attention-softmax-in-fp32": (True,), "--cuda-graph-impl": ("none",),
    "--main-grads-dtype": ("fp32",),
    "--activation-offload-fraction": (1, 1.0), "--megatron-fsdp-main-params-dtype": ("fp32",),
    "--megatron-fsdp-main-grads-dtype": ("fp32",), "--megatron-fsdp-grad-comm-dtype": ("fp32",),
}
"""Arguments that change nothing with these values, where TransformerEngine's layers run."""

OF_LOCAL: Final = ("--use-flash-attn", "--attention-softmax-in-fp32")
"""Those of them that matter to Megatron's own layers."""


STARTERS: Final = re.compile(r"(?:.*/)?(?:torchrun|python[\d.]*)")
"""What starts a program behind `srun` and its options."""


def _score(words: tuple[str, ...]) -> int:
    """Arguments of Megatron in a command; one alone may be anybody's."""
    known = load_format("megatron").sections["arguments"]
    found = sum(word.startswith("--") and word[2:].partition("=")[0].replace("_", "-") in known for word in words)
    return found if found > 1 else 0


def read(config: Config) -> Reading:
    """Model, plan and batch of the arguments."""
    command, typed = _given(config)
    patched = megatron_files.is_patched(typed)
    given = {name: _typed(name, value) for name, value in typed.items()}
    unread: list[Unread] = []
    notes = list(command.notes)
    if patched:
        given, unread, filled = megatron_files.translated(given)
        notes += filled
    values = Watched(
        {name: value for name, value in given.items() if value is not False and value is not None}, ARGUMENTS,
        undecided=command.undecided,
    )
    megatron_files.exact_vocabulary(values)
    unread += _mistaken(values)
    meant, unread_variables = read_environment(command.variables, values)
    dict.update(values, meant)
    family, entry = _family(command, values, SCRIPTS | megatron_files.SCRIPTS if patched else SCRIPTS)
    if values.get("--main-grads-dtype") == "bf16" and values.get("--grad-reduce-in-bf16"):
        dict.pop(values, "--main-grads-dtype")  # as they are reduced
    values.get("--use-fused-weighted-squared-relu")  # as they are counted
    for name, usual in USUAL.items():
        local = name in OF_LOCAL and values.get("--transformer-impl") == "local"
        values.only(name, *(() if local else usual))
    values.only("--exp-avg-sq-dtype", _moments(values))
    if "--use-precision-aware-optimizer" not in values:
        values.only("--main-params-dtype", "fp32")
    options: dict[str, Any] = {"engine": "megatron", **plan_options(plan_of(values)), **_engine_options(values, family)}
    for name in ENDS_COUNTED:
        if "--num-layers" not in values and values.get(name):
            values.cannot(name, "counts layers, and --num-layers is not given")
    values.get("--expert-tensor-parallel-size")
    options |= _sizes(values, family)
    network: dict[str, Any] = {}
    notes += _assumed_script(command, family)
    try:
        network, assumed = _network(values, family, config.name)
        notes += assumed
    except Unsupported as reason:
        unread.append(Unread("the network", str(reason), "model", of_network=True))
    options |= network | options_of_environment(command.variables)
    gpus, machines = values.count("--nproc-per-node"), values.count("--nnodes")
    notes += notes_of(command.variables, values)
    unread += [*entry, *command.unread, *unread_variables, *values.unread()]
    return Reading(
        "megatron", options, unread=tuple(map(_about_network, unread)), notes=tuple(notes),
        ranks=ranks_of(gpus, machines, command.variables), nodes=machines or 1, parts={"etp": "experts"},
    )


def _about_network(one: Unread) -> Unread:
    """What says what the network is: a model that is named settles it."""
    of_network = one.of_network or OF_NETWORK.match(one.name) is not None
    return one._replace(of_network=of_network, option=one.option or ("model" if of_network else ""))


def _sizes(values: Watched, family: str) -> dict[str, Any]:
    """What one step takes; where batches grow, what they grow to."""
    sizes = SIZES | OF_ENCODERS if family == "t5" else SIZES
    found = {option: size for name, option in sizes.items() if (size := values.count(name)) is not None}
    if (last := first_batch(values)) is not None:
        if found.get("global-batch", last) != last:
            values.cannot("--step-batch-size-schedule", "ends at another batch than --global-batch-size; keep one")
        found["global-batch"] = last
    for name in NEEDED:
        instead = "--encoder-seq-length" if family == "t5" else name
        if SIZES[name] not in found and instead not in values:
            values.cannot(name, "is not given, and Megatron-LM has no default", option=SIZES[name])
    return found


def _given(config: Config) -> tuple[Command, dict[str, Any]]:
    """The command, and its arguments: `--name` -> value."""
    if config.table is not None:
        return given_by_table(config.table)
    command = command_of(config, _score)
    command = command._replace(words=_behind_srun(command.words))
    return command, {  # "none" is a word of several arguments
        dashed(name): "none" if value is None else value for name, value in arguments(command.words).items()
    }


def _behind_srun(words: tuple[str, ...]) -> tuple[str, ...]:
    """A command without Slurm's launcher and its options, which are none of the program's."""
    srun = next((place for place, word in enumerate(words) if word.rpartition("/")[2] == "srun"), len(words))
    starts = (place for place in range(srun + 1, len(words)) if STARTERS.fullmatch(words[place]))
    return words[next(starts, 0):]


def _moments(values: Watched) -> Any:
    """The dtype of both moments: one is modelled, that of the first [optimizer_config.py `exp_avg_dtype`]."""
    return values.get("--exp-avg-dtype", "fp32") if "--use-precision-aware-optimizer" in values else "fp32"


def _family(command: Command, values: Watched, scripts: Mapping[str, str]) -> tuple[str, list[Unread]]:
    """What the entry script builds, or where none is named what the arguments are for."""
    script = next((word.rpartition("/")[2] for word in command.words if word.endswith(".py")), "")
    if not script:
        return family_of(values), []
    if script not in scripts:
        why = megatron_files.OLDER if scripts is not SCRIPTS and "_megatron_" in script else (
            Note("builds a network or a run of its own; {} are modelled", ", ".join(SCRIPTS)))
        return "gpt", [Unread(script[:60], why, of_network=True)]
    return scripts[script], []


def _assumed_script(command: Command, family: str) -> Iterator[str]:
    """What is said where nothing names the entry script, and another than GPT's is taken."""
    if family != "gpt" and not any(word.endswith(".py") for word in command.words):
        script = next(name for name, builds in reversed(SCRIPTS.items()) if builds == family)
        yield Note("names no entry script: {} is assumed, by its arguments", script)


def _engine_options(values: Watched, family: str) -> dict[str, Any]:
    defaults = msgspec.structs.asdict(Options())
    pairs = engine_options_of(values, family)
    pairs["stage_layers"] = str(pairs["stage_layers"]).replace(",", "-")
    dense = "--num-experts" not in values
    changed = tuple(
        f"{name}={_text(value)}" for name, value in pairs.items()
        if value != defaults.get(name) and not (dense and name in OF_EXPERTS)
    )
    return {"engine-option": changed} if changed else {}


def _network(values: Watched, family: str, name: str) -> tuple[dict[str, Any], tuple[str, ...]]:
    """The network that the arguments describe; none where they only say how one is trained."""
    missing = [each for each in DESCRIBES if each not in values]
    layers = "--num-layers" in values or "--hybrid-layer-pattern" in values or "--encoder-num-layers" in values
    if len(missing) == len(DESCRIBES) and not layers:
        return {}, ()
    if missing or not layers:
        what = ", ".join(missing) or "--num-layers"
        values.cannot("the network", "{} is missing; name the model beside --from", what, option="model")
        values.ignore(*filter(OF_NETWORK.match, tuple(values)))  # one sentence is enough
        return {}, ()
    assumed = _unsaid_vocabulary(values, family)
    found = msgspec.structs.replace(model_of(values, family), name=name)
    if values.get("--use-checkpoint-args"):
        assumed += ("--use-checkpoint-args: the network of the checkpoint is taken to be the one that is described",)
    for unused, instead in UNUSED.items():
        if instead in values:
            values.get(unused)
    return {"model": found}, assumed


def _unsaid_vocabulary(values: Watched, family: str) -> tuple[str, ...]:
    """What is assumed where the vocabulary is the tokenizer's."""
    if "--vocab-size" in values or "--padded-vocab-size" in values:
        return ()
    tokenizer = str(values.get("--tokenizer-type", DEFAULT_TOKENIZERS.get(family, "")))
    model = str(dict.get(values, "--tokenizer-model", ""))  # its place is left to the run, its name may say enough
    if tokenizer in BY_TOKENIZER or vocabulary_of(model):
        named = model if vocabulary_of(model) else tokenizer
        size = values["--vocab-size"] = vocabulary_of(model) or count_vocabulary(values, family)
        return (Note("--vocab-size is not given: the {:,} words of {} are taken", size, shown(named)),)
    why = Note("is not given, and the vocabulary of {} is not known here; add it, or name the model", tokenizer[:40])
    values.cannot("--vocab-size", why, option="model")
    return ()


UNUSED: Final = {
    "--ffn-hidden-size": "--moe-ffn-hidden-size", "--kv-channels": "--multi-latent-attention",
    "--qk-layernorm": "--multi-latent-attention", "--num-query-groups": "--multi-latent-attention",
    "--group-query-attention": "--multi-latent-attention",
    "--num-layers": "--hybrid-layer-pattern", "--num-attention-heads": "--hybrid-layer-pattern",
    "--disable-bias-linear": "--hybrid-layer-pattern",
}
"""Argument -> the one that takes its place: latent attention has widths and norms of its own; a pattern without
attention has no heads and no linear layers with a bias."""


def _mistaken(values: Watched) -> Iterator[Unread]:
    """Names that take numbers, or one of few words, and have something else."""
    snapshot = load_format("megatron")
    for name in list(values):
        entry = ARGUMENTS.entry(name)
        value = dict.get(values, name)
        if entry is None or not (entry.choices or entry.kind in ("int", "number")) or values.is_open(name):
            continue
        spellings = (name[2:], name[2:].replace("-", "_"))
        plain = next((each for each in spellings if each in snapshot.sections["arguments"]), "")
        value = [value] if entry.kind == "list" and not isinstance(value, list) else value
        if plain and (text := next(problems(snapshot, "arguments", {plain: value}), None)):
            dict.pop(values, name)
            yield Unread(name, text.partition(": ")[2])


def _typed(name: str, value: Any) -> Any:
    """A value as its name takes it: a flag none, most one; what follows belongs to the script."""
    known = load_format("megatron").find("arguments", name[2:])
    if name in LISTS:
        return value if isinstance(value, list) else [value]
    if known is not None and known.kind == "flag":
        return value is not False
    several = known is not None and known.kind == "list"
    return value[0] if isinstance(value, list) and value and (not several or len(value) == 1) else value


def plan_options(plan: Plan) -> dict[str, Any]:
    """Where a plan is not the default one, as options."""
    default, found = Plan(), {}
    for name, option in OPTIONS.items():
        if option.section != "plan" or name == "zero":
            continue
        value = getattr(plan, option.field)
        if value != getattr(default, option.field) or name in ("shards", "precision", "sequence-parallel"):
            found[name] = ",".join(value) if isinstance(value, tuple) else value
    return {name: str(value) if not isinstance(value, (bool, int)) else value for name, value in found.items()}


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


SAME: Final = 0.01
"""Of the parameters: by so little the network of the arguments may differ, in biases and norms."""

SIZE_ARGUMENTS: Final = {option: name.removeprefix("--") for option, name in written(SIZES).items()}

STRATEGIES: Final = written(reader.STRATEGIES)

EXCHANGES: Final = {"ring": "p2p", "ulysses": "a2a", "allgather": "all_gather"}


def write(order: Order) -> tuple[File, ...]:
    """The script.

    Raises: Unsupported for networks and settings that have no argument
    """
    job: Job = order.job
    options = options_of(job)
    model = msgspec.structs.replace(job.model, mtp_layers=Context(job).predictions)  # those that are counted
    network = model_arguments(model, seq_len=job.workload.seq_len)
    order.ask.also(*(f"option.{name}" for name in Options.__struct_fields__), "objective", "attention", "loss")
    table = (
        *network, *_batch(order), *_precision(order, options), *_parallel(order, options),
        *optimizer_arguments(order, options), *recompute_arguments(order, options), *expert_arguments(job, options),
        *option_arguments(options), *_run(order),
    )
    program = f'"${{MEGATRON:-.}}/{entry_script(job.model)}"'
    text = run_script(order, program, table, variables=_variables(job))
    notes: list[str] = [
        Note("{}: {} has {}, for which there is no argument here", RUN, job.model.name, text)
        for text in unsaid_features(job.model)
    ]
    notes += _other_network(model, network)
    if job.workload.objective == "sft":
        notes.append(Note("{}: pre-training and fine-tuning take the same memory; name your own data", RUN))
    return (order.file(RUN, text, (Part("megatron", "arguments"),), tuple(notes), executable=True),)


def _other_network(model: Model, network: Table) -> Iterator[str]:
    """What is to be said where the arguments make another number of parameters than the plan counts.

    Raises: Unsupported where that is another network
    """
    read = model_of({f"--{line.name}": line.value for line in network}, "hybrid" if is_hybrid(model) else "gpt")
    made, counted = count_parameters(read).total, count_parameters(model).total
    if abs(made - counted) > SAME * counted:
        raise Unsupported(
            "{}: Megatron's arguments describe {:,} parameters of its {:,}; use --engine huggingface",
            model.name, made, counted
        )
    if made != counted:
        yield Note(
            "{}: its arguments make {:,} parameters, the plan counts the {:,} of {}", RUN, made, counted, model.name
        )


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
        Line(SIZE_ARGUMENTS["seq-len"], ask("seq_len"), "positions of a sample"),
        Line(SIZE_ARGUMENTS["micro-batch"], micro, "samples per forward on one data-parallel rank"),
        Line(SIZE_ARGUMENTS["global-batch"], micro * steps * ranks, f"{micro} x {steps} micro-batches x {ranks} ranks"),
    )


def _precision(order: Order, options: Options) -> Table:
    precision = Precision(order.ask("precision"))
    if precision is not Precision.FP8:
        width = {Precision.MIXED_FP16: "fp16", Precision.MIXED_BF16: "bf16"}.get(precision, "")
        return (
            *when(width, Line(width, True, "16-bit weights, fp32 copy in the optimizer")),
            *when(width == "fp16" and options.accumulate_in_fp32,
                  Line("accumulate-allreduce-grads-in-fp32", True, "gradients add up in fp32")),
        )
    return (
        Line("bf16", True, "what is not a product"), Line("fp8-format", "hybrid", "products"),
        *lines_of((reader.FP8_RECIPE,), options),
        *when(options.bf16_at_start or options.bf16_at_end,
              Line("first-last-layers-bf16", True, "the network's ends in bf16"),
              *(row.line(getattr(options, row.field)) for row in reader.IN_BF16)),
        *when(options.fp8_param_gather, Line("fp8-param-gather", True, "weights are gathered in fp8")),
    )


def _parallel(order: Order, options: Options) -> Table:
    ask, job = order.ask, order.job
    ask.also("tp", "pp", "ep", "etp")
    cp, split = ask("cp"), ask("sequence_parallel")
    kind = "a2a" if options.cp_a2a else EXCHANGES[ask("cp_kind")] if cp > 1 else ""
    return (
        *lines_of(reader.DEGREES, job.plan),
        *when(cp > 1, Line("cp-comm-type", kind, "how keys and values travel")),
        *lines_of(reader.DEGREES_OF_EXPERTS if job.plan.ep > 1 else reader.DEGREES_OF_EXPERTS[1:], job.plan),
        *when(job.plan.tp > 1 and split is not False,
              Line("sequence-parallel", True, "norms and residuals are divided over tp too")),
        *_stages(order, options), *_sharding(order, options),
    )


def _stages(order: Order, options: Options) -> Table:
    ask, job = order.ask, order.job
    pp, chunks = ask("pp"), ask("virtual_stages")
    ask.also("schedule", "first_stage_layers", "last_stage_layers")
    if pp == 1:
        return ()
    if is_hybrid(job.model):
        raise Unsupported("{}: stages of hybrid patterns are not written here; use --pp 1", job.model.name)
    if options.stage_layers:
        own: Table = (Line("pipeline-model-parallel-layout", _layout(job), "layers of every stage"),)
    else:
        smaller = Line("num-virtual-stages-per-pipeline-rank", chunks, "chunks of a rank: smaller bubbles")
        own = (*when(chunks > 1, smaller), *lines_of(reader.ENDS, job.plan))
    return (*own, *lines_of((reader.INTERLEAVED,), options))


def _layout(job: Job) -> str:
    """'Ett|ttt|ttL': E embedding, t layer, m multi-token prediction, L loss."""
    stages = ["t" * count for count in stage_layers(Context(job))]
    stages[0] = "E" + stages[0]
    stages[-1] += "m" * options_of(job).mtp_layers + "L"
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
    return (Line("use-distributed-optimizer", True, f"optimizer states are split over {ranks} ranks"),
            *(lines_of((reader.INSTANCES,), options) if options.optimizer_instances > 1 else ()))


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
