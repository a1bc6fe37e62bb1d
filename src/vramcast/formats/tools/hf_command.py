"""Command lines that start a script of Hugging Face's Trainer: alone, by torchrun, accelerate or deepspeed.

Who starts it says how many processes there are and how they share the work; the script's name says whose arguments
follow: TRL's, LLaMA-Factory's, fms-hf-tuning's, Transformers' examples' or the Trainer's own.

[acc] accelerate commands/launch.py   [run] torch torch/distributed/run.py   [ds] deepspeed launcher/runner.py
[TRL] huggingface/trl 1.9.0 trl/cli/{accelerate_config,accelerate_launcher}.py, trl/accelerate_configs/*.yaml
[HF] transformers hf_argparser.py `HfArgumentParser`: a switch that is on unasked has another, --no_NAME

Scripts of Transformers' Trainer: the library's examples, and scripts of others that take its arguments.

[ex] huggingface/transformers examples/pytorch/*/run_*.py of 4.57 and 5
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping
from itertools import pairwise
from pathlib import PurePosixPath
from typing import Any, Final, NamedTuple

from vramcast.catalogue.formats import load_format, presets
from vramcast.errors import Note
from vramcast.formats.reading import (
    ELSEWHERE,
    Command,
    Config,
    Reading,
    Unread,
    arguments,
    command_of,
    modules_of,
    plain,
    shown,
    together,
    without_none,
)
from vramcast.formats.tools import accelerate, fms, trl, trl_script
from vramcast.formats.tools.llamafactory import read_factory
from vramcast.formats.tools.transformers import ARGUMENTS, LENGTHS, arguments_of, liger_of, precision_of, recompute_of
from vramcast.formats.tools.trl import LOADED
from vramcast.formats.unread import OF_TRL, SCRIPT, STARTS, options_of_environment, ranks_of, unread_environment
from vramcast.formats.watched import Known, Watched

EXAMPLES: Final = Known("transformers", "examples", (ARGUMENTS,))


class Example(NamedTuple):
    """One script of the library."""

    length: str = ""  # the name that says how long samples are; "": its network's own
    usual: int = 0  # where nobody says it, for networks that take as many
    decoder: str = ""  # the same for what an encoder-decoder answers
    usual_decoder: int = 0
    objective: str = ""  # whose head it trains; "": the one that the network comes with
    samples: int = 1  # forwards of one sample
    model: str = ""  # where nobody names one
    alone: int = 0  # `usual` of the script without the Trainer, where it differs


SCRIPTS: Final[dict[str, Example]] = {
    "run_clm": Example("block_size", 1024),
    "run_mlm": Example("max_seq_length", 512),
    "run_summarization": Example("max_source_length", 1024, "max_target_length", 128),
    "run_translation": Example("max_source_length", 1024, "max_target_length", 128),
    "run_seq2seq_qa": Example("max_seq_length", 384, "max_answer_length", 30),
    **dict.fromkeys(("run_glue", "run_xnli", "run_classification"),
                    Example("max_seq_length", 128, objective="classification")),
    "run_ner": Example("max_seq_length", 512, objective="tagging", alone=128),
    "run_qa": Example("max_seq_length", 384, objective="tagging"),
    "run_swag": Example("max_seq_length", 512, objective="classification", samples=4, alone=128),
    "run_image_classification": Example(objective="classification", model="google/vit-base-patch16-224-in21k"),
    "run_speech_recognition_seq2seq": Example(),
    "run_clip": Example("max_seq_length", 128),
}
"""Those whose networks and heads are modelled; each may have a twin with a loop of its own, NAME_no_trainer."""

LOOPS: Final = ("run_clm", "run_mlm", "run_summarization", "run_translation", "run_glue", "run_ner", "run_qa",
                "run_swag", "run_image_classification")
"""Those that have a twin."""

OTHER: Final = re.compile(
    r"run_\w*(?:glue|qa|swag|ner|plm|fim|classification|segmentation|mae|mim|clip|asr|ctc|speech|xnli|detection|wav2vec2|"
    r"bart|t5|no_trainer)\w*\.py|\w+_no_trainer\.py"
)
"""The library's other scripts."""

EXAMPLE_SCRIPTS: Final = re.compile(
    "|".join((rf"(?:.*/)?(?:{'|'.join(SCRIPTS)})\.py", rf"(?:.*/)?(?:{'|'.join(LOOPS)})_no_trainer\.py"))
)
"""The scripts that are read, as a command names them."""

FROZEN: Final = {"freeze_encoder": "encoder", "freeze_vision_model": "vision", "freeze_text_model": "text"}
"""Switches of scripts -> the part that does not learn."""

OWN_LOOP: Final = "the script's own loop is counted as the Trainer's"


def read_example(given: Mapping[str, Any], program: str, file: str) -> Reading:
    """The arguments of one of the library's scripts."""
    name = program.rpartition("/")[2].removesuffix(".py")
    alone, row = name.endswith("_no_trainer"), SCRIPTS[name.removesuffix("_no_trainer")]
    values = Watched(given, EXAMPLES)
    options, notes = _lengths(values, row, alone=alone)
    if row.objective:
        options["objective"] = row.objective
    frozen = [part for switch, part in FROZEN.items() if values.flag(switch)]
    if frozen:
        options["freeze"] = ",".join(frozen)
    if name == "run_speech_recognition_seq2seq" and values.flag("freeze_feature_encoder") is not False:
        values.cannot("freeze_feature_encoder", "is true unasked, of an encoder with features of its own, which "
                      "Whisper has not; give False")
    values.must_be_unset("config_overrides", "changes the network; give it by its config.json", option="model")
    if alone:
        notes.append(OWN_LOOP)
    elif not values.flag("do_train"):
        if values.flag("do_eval") or values.flag("do_predict"):
            values.cannot("do_train", "is not given, so the script trains nothing")
        notes.append("do_train is not given, without which the script trains nothing")
    if row.model and values.get("model_name_or_path") is None:
        options["model"] = row.model
        notes.append(Note("model_name_or_path is not given: {}, as the script has it", row.model))
    found = _trained(values, options, file, notes)
    if row.samples == 1:
        return found
    micro = found.batch.get("micro")
    return found._replace(
        batch={**found.batch, **({"micro": row.samples * micro} if isinstance(micro, int) else {})},
        notes=(*found.notes, Note("each sample is read {} times, once with each of its answers", row.samples)),
    )


def _lengths(values: Watched, row: Example, *, alone: bool) -> tuple[dict[str, Any], list[str]]:
    """How long samples are, and what is said where nobody says it."""
    if not row.length:
        return {}, []
    notes: list[str] = []
    given = [size for name in (row.length, *LENGTHS) if (size := values.count(name)) is not None]
    usual = row.alone if alone and row.alone else row.usual
    if not given:
        notes.append(Note("{} is not given: {} is assumed", row.length, usual))
    options: dict[str, Any] = {"seq-len": given[0] if given else usual}
    if row.decoder:
        options["decoder-seq-len"] = values.count(row.decoder) or row.usual_decoder
    return options, notes


def read_own(given: Mapping[str, Any], program: str, file: str) -> Reading:
    """The arguments of a script that nobody here knows: the Trainer's are read."""
    values = Watched(given, EXAMPLES)
    if OTHER.fullmatch(name := program.rpartition("/")[2]):
        why = "trains a network or head that is not modelled; vramcast trace runs the script on a simulated card"
        return Reading("transformers", {}, unread=(Unread(name[:60], why),))
    lengths = [size for name in LENGTHS if (size := values.count(name)) is not None]
    options: dict[str, Any] = {"seq-len": lengths[-1]} if lengths else {}
    adapters = _adapters(values)
    what = "adapters" if adapters else "all weights"
    who = name[:60] or "the script"
    notes: list[str] = [Note("{} is not read: taken for one that trains {} with the Trainer", who, what)]
    found = _trained(values, together(options, adapters), file, notes)
    return found if lengths else found._replace(auto={"seq-len": "says no length of the samples"})


PACKED: Final = ("q_lora", "use_qlora", "qlora", "load_in_4bit")
SWITCHES: Final = ("use_lora", "lora_enable", "use_peft", "lora", *PACKED)
RANKS: Final = ("lora_r", "lora_rank", "lora_dim")
TARGETS: Final = ("lora_target_modules", "lora_target", "lora_targets", "target_modules")
"""What scripts of others call LoRA, its base in four bits, its rank and the modules that it adapts: those of Qwen,
FastChat, LLaVA, Firefly, alpaca-lora and their heirs."""


def _adapters(values: Watched) -> dict[str, Any]:
    """LoRA of a script that nobody here knows; its rank and its modules are the script's own where nobody says them."""
    on = [name for name in SWITCHES if values.flag(name)]
    ranks = [(name, rank) for name in RANKS if (rank := values.count(name))]
    # fire, which many of them use, reads [a,b] without quotes
    targets = next((re.sub(r"""[\[\]'"\s]""", "", found) for name in TARGETS
                    if (found := modules_of(values.get(name))) is not None), None)
    if not on and (not ranks or any(name in values for name in SWITCHES)):
        return {}
    if not ranks:
        values.cannot(RANKS[0], "is left to the script; --lora-rank says it", option="lora-rank")
    if targets is None:
        values.cannot(TARGETS[0], "is left to the script; --lora-targets says them", option="lora-targets")
    return without_none({
        "peft": "lora", "lora-rank": ranks[0][1] if ranks else None, "lora-targets": targets,
        "lora-dropout": values.number("lora_dropout"),
        "base-weights": "nf4" if any(name in PACKED for name in on) else None,
    })


DTYPES: Final = {"float32": "fp32", "bfloat16": "bf16", "float16": "fp16", "auto": "fp32"}


def _trained(values: Watched, options: dict[str, Any], file: str, notes: list[str]) -> Reading:
    """What TrainingArguments say, and the dtype that weights are loaded in."""
    precision = precision_of(values)
    loaded = next((name for name in ("dtype", "torch_dtype") if name in values), "dtype")
    weights = values.one_of(loaded, DTYPES, option="precision") or "fp32"
    weak: dict[str, Any] = {}
    if weights != "fp32":
        computed = str(precision.get("precision", "")).removeprefix("amp-")
        if "peft" in options:
            precision = together(precision, {"engine-option": (f"dtype={LOADED[weights]}",)})
        elif computed == weights:
            precision = {"precision": weights, "engine-option": ("autocast=true",)}
        elif computed in ("fp32", "tf32"):
            precision = {"precision": weights}
        else:
            values.cannot(loaded, "weights in {} beside {} are not modelled", weights, computed, option="precision")
    elif precision == {"precision": "fp32"}:
        precision, weak = {}, precision
    found: dict[str, Any] = {"engine": "huggingface", **options}
    if model := values.text("model_name_or_path"):
        found["model"] = model
    found = together(found, recompute_of(values), liger_of(values), precision)
    read = arguments_of(values, file)
    return Reading("transformers", together(found, read.options), weak, read.batch,
                   (*values.unread(), *read.unread), (*notes, *read.notes))


LAUNCHERS: Final = ("accelerate", "torchrun", "deepspeed")
MODULES: Final = {"torch.distributed.run": "torchrun", "torch.distributed.launch": "torchrun",
                  "accelerate.commands.launch": "accelerate"}
"""What `python -m` runs -> the launcher that it is."""

TORCHRUN: Final = Known("torchrun", "arguments")
DEEPSPEED: Final = Known("deepspeed-launcher", "arguments")

OF_FSDP: Final = re.compile("fsdp_")
OF_DEEPSPEED: Final = re.compile("zero_stage|zero3_|offload_|deepspeed_|gradient_(?:accumulation|clipping)")
OF_MESH: Final = re.compile("parallelism_config_")
OF_DYNAMO: Final = re.compile("dynamo_")
TABLES: Final = (("fsdp_config", OF_FSDP), ("deepspeed_config", OF_DEEPSPEED), ("parallelism_config", OF_MESH),
                 ("dynamo_config", OF_DYNAMO))
"""Table of Accelerate's file -> the options of its command line that stand in it."""

KINDS: Final = {"use_fsdp": "FSDP", "use_deepspeed": "DEEPSPEED", "use_megatron_lm": "MEGATRON_LM",
                "multi_gpu": "MULTI_GPU", "tpu": "XLA"}

TRL_CONFIGS: Final = presets("trl", "accelerate")
"""`--accelerate_config` of TRL's command line: the files that it brings, each for 8 processes in bf16."""

PROCESSES: Final = 8
"""Of those files."""

FACTORYS: Final = frozenset({"stage", "template", "dataset_dir", "model_name_or_path"})
"""What tells LLaMA-Factory's src/train.py from other projects' scripts of that name."""


class Launch(NamedTuple):
    """A command, taken apart."""

    launcher: str  # "": the script is started alone
    launching: dict[str, Any]  # the launcher's own arguments
    program: str  # script as a path, or the command line of a tool with its first word
    words: tuple[str, ...]  # the program's arguments


class Program(NamedTuple):
    """What a program is told by."""

    match: re.Pattern[str]  # of its path or command
    read: Callable[[Mapping[str, Any], str, str], Reading]  # of its arguments, its name and the file's


def _trl(values: Mapping[str, Any], program: str, file: str) -> Reading:
    script = re.fullmatch(OF_TRL, PurePosixPath(program).name)
    name = script[1] if script else program.removeprefix("trl ")
    method = trl.CALLED.get(name, name)
    return trl.read_arguments(trl.known(method).whole(values) if method in trl.METHODS else values, method, file)


def _factory(values: Mapping[str, Any], program: str, file: str) -> Reading:
    return read_factory(Config(file, "", {"do_train": None, **values}))


PROGRAMS: Final = (
    Program(re.compile(r"trl (?:sft|dpo|kto|reward|rloo|grpo)"), _trl),
    Program(re.compile(rf"(?:.*/)?{OF_TRL}"), _trl),
    Program(re.compile(r"llamafactory-cli train|(?:.*/)?(?:train_bash|src/train|llamafactory/launcher)\.py"), _factory),
    Program(re.compile(r"(?:.*/)?tuning/sft_trainer\.py|(?:.*/)?sft_trainer\.py"), fms.read_tuning),
    Program(EXAMPLE_SCRIPTS, read_example),
)
"""In the order in which a program is held against them; others are held for scripts of the Trainer."""


def read(config: Config) -> Reading:
    """The one command of a script that starts a training."""
    if (script := config.beside.get(SCRIPT)) is not None:
        return _started(config, script)
    command = command_of(config, _score)
    launch = taken_apart(command.words)
    values = {**dict(config.beside), **script_arguments(launch.words)}
    values, launch = _of_trls_command(values, launch)
    files = _files(launch.words)
    unread = [*command.unread, *unread_environment(command.variables)]
    values.pop("config", None)
    if files and not config.beside:
        why = Unread(shown(files[0]), ELSEWHERE)
        shared = launching(launch, command)
        return shared._replace(unread=(why, *shared.unread), notes=(*command.notes, *shared.notes))
    open_ = {name: None for name in values if name in command.undecided or f"--{name}" in command.undecided}
    unread += [Unread(name, "stands in a branch of the script that only a run takes") for name in open_]
    return _beside_launcher(_program(launch, values, config.name), launch, command, unread)


def _started(config: Config, script: Config) -> Reading:
    """A script in Python with what the command says that starts it."""
    command = command_of(config, lambda words: int(any(PurePosixPath(word).name == script.name for word in words)))
    unread, launch = [*command.unread, *unread_environment(command.variables)], taken_apart(command.words)
    found = trl_script.read(script, launch.words, script_arguments(launch.words))
    return _beside_launcher(found, launch, command, unread)


def _beside_launcher(found: Reading, launch: Launch, command: Command, unread: Iterable[Unread]) -> Reading:
    """The same, with processes and sharding as the launcher has them."""
    shared = launching(launch, command)
    options = together(found.options, shared.options, options_of_environment(command.variables))
    return found._replace(
        options=options, weak=found.weak | shared.weak, batch=shared.batch | found.batch,
        unread=(*found.unread, *shared.unread, *unread), notes=(*command.notes, *found.notes, *shared.notes),
        ranks=shared.ranks, nodes=shared.nodes, device_map=found.device_map and (shared.ranks or 1) == 1,
    )


def _program(launch: Launch, values: Mapping[str, Any], file: str) -> Reading:
    if "train_type" in values and "context_length" in values:
        return fms.read_fsdp_qlora(values, launch.program, file)
    if "finetuning_type" in values:
        return _factory(values, launch.program, file)
    if launch.program.endswith("src/train.py") and not FACTORYS & values.keys():
        return read_own(values, launch.program, file)
    for program in PROGRAMS:
        if program.match.fullmatch(launch.program):
            return program.read(values, launch.program, file)
    return read_own(values, launch.program, file)


def _score(words: tuple[str, ...]) -> int:
    """How much of a command is a training of the Trainer."""
    line = " ".join(words)
    return 1 + len(words) if re.search(STARTS, line) and not words[0].startswith("-") else 0


def _files(words: tuple[str, ...]) -> list[str]:
    """The files that a program takes its own arguments from: the first word, and what stands behind --config."""
    first = [word for word in words[:1] if word.endswith((".yaml", ".yml", ".json")) and not word.startswith("-")]
    return first + [after for word, after in pairwise(words) if word == "--config"] + [
        word.partition("=")[2] for word in words if word.startswith("--config=")]


def files_of(config: Config) -> list[str]:
    """The files that a command's program takes its own arguments from."""
    return _files(taken_apart(command_of(config, _score).words).words)


def taken_apart(words: tuple[str, ...]) -> Launch:
    """Launcher, its arguments, program, the program's arguments."""
    rest, launcher, launching = list(words), "", list[str]()
    while rest and not _starts(rest[0]):  # what stands in front: srun, nohup, time
        rest.pop(0)
    if rest[:1] and re.fullmatch(r"(?:.*/)?python[\d.]*", rest[0]):
        rest.pop(0)
        while rest and rest[0] in ("-u", "-O"):
            rest.pop(0)
        if rest[:1] == ["-m"] and rest[1:2] and rest[1] in MODULES:
            rest = [MODULES[rest[1]], *rest[2:]]
    if rest and PurePosixPath(rest[0]).name in LAUNCHERS:
        launcher = PurePosixPath(rest.pop(0)).name
        if launcher == "accelerate" and rest[:1] == ["launch"]:
            rest.pop(0)
        place = next((index for index, word in enumerate(rest) if _is_program(rest, index)), len(rest))
        launching, rest = rest[:place], rest[place:]
    program = ""
    if rest:
        program = rest.pop(0)
        if program in ("-m", "--module") and rest:
            program = rest.pop(0).replace(".", "/") + ".py"
        elif program in ("trl", "llamafactory-cli") and rest:
            program = f"{program} {rest.pop(0)}"
    return Launch(launcher, arguments(word for word in launching if word not in ("-m", "--module")),
                  program.removeprefix("./"), tuple(rest))


def _starts(word: str) -> bool:
    name = PurePosixPath(word).name
    return (name in (*LAUNCHERS, "trl", "llamafactory-cli") or name.endswith(".py")
            or bool(re.fullmatch(r"python[\d.]*", name)))


def _is_program(words: list[str], index: int) -> bool:
    before = words[index - 1] if index else ""
    return words[index] in ("-m", "--module") or words[index].endswith(".py") or (
        index > 0 and before in ("-m", "--module"))


def script_arguments(words: tuple[str, ...]) -> dict[str, Any]:
    """The arguments of HfArgumentParser: tables as JSON, switches that are on unasked switched off by --no_NAME."""
    found: dict[str, Any] = {}
    for word in words:
        if "=" in word and not word.startswith("-") and re.match(r"[A-Za-z_]\w*=", word):  # of llamafactory-cli
            name, _, value = word.partition("=")
            found[name] = plain(value)
    for name, value in arguments(words).items():
        switched_off = name.startswith("no_") and value is True and name != "no_cuda"
        found[name.removeprefix("no_") if switched_off else name] = False if switched_off else _structured(value)
    return found


def _structured(value: Any) -> Any:
    """A table or list that is written as JSON."""
    if isinstance(value, str) and value.lstrip().startswith(("{", "[")):
        try:
            return json.loads(value)
        except (ValueError, RecursionError):
            return value
    return value


def _of_trls_command(values: dict[str, Any], launch: Launch) -> tuple[dict[str, Any], Launch]:
    """The arguments of accelerate that `trl` takes among its own [TRL]."""
    if not launch.program.startswith("trl "):
        return values, launch
    names = {"accelerate_config", *load_format("accelerate").sections["launch"]} - {"gradient_accumulation_steps"}
    theirs = {name: value for name, value in values.items()
              if name in names and trl.known("sft").entry(name) is None}
    rest = {name: value for name, value in values.items() if name not in theirs}
    return rest, launch._replace(launcher="accelerate", launching={**launch.launching, **theirs})


def launching(launch: Launch, command: Command) -> Reading:
    """How many processes there are and how they share the work, as far as the launcher's arguments say."""
    if launch.launcher == "accelerate":
        return _accelerate(launch, command)
    values = Watched(launch.launching, TORCHRUN if launch.launcher == "torchrun" else DEEPSPEED)
    if launch.launcher == "deepspeed":
        gpus, machines = values.count("num_gpus"), values.count("num_nodes")
        if isinstance(chosen := values.get("include"), str) and ":" in chosen:
            gpus = len(chosen.partition(":")[2].split(","))
        ranks = ranks_of(gpus, machines, command.variables)
        return Reading("hf-command", {}, unread=tuple(values.unread()), ranks=ranks, nodes=machines or 1)
    gpus = values.count("nproc_per_node") if launch.launcher == "torchrun" and (
        values.get("nproc_per_node") not in ("gpu", "auto")) else None
    machines = values.count("nnodes")
    forced = "FORCE_TORCHRUN" in command.variables
    if forced:
        machines = Watched({"n": plain(command.variables.get("NNODES", "1"))}).count("n")
    unread = tuple(values.unread()) if launch.launcher else ()
    ranks = ranks_of(gpus, machines, command.variables)
    return Reading("hf-command", {}, unread=unread, ranks=ranks, nodes=machines or 1)


def _accelerate(launch: Launch, command: Command) -> Reading:
    """Accelerate's options as the table that its file would be, over the file that TRL brings."""
    given = dict(launch.launching)
    chosen, notes, unread = given.pop("accelerate_config", None), list[str](), list[Unread]()
    file = given.pop("config_file", None)
    table: dict[str, Any] = {}
    if chosen is not None and str(chosen) in TRL_CONFIGS:
        table = {"num_processes": PROCESSES, **TRL_CONFIGS[str(chosen)]}
    elif chosen is not None or file is not None:
        unread.append(Unread(shown(chosen or file), ELSEWHERE, file="accelerate"))
    elif not any(name in given for name in KINDS):
        notes.append("no --config_file: what `accelerate config` kept on that machine is not known; nothing is "
                     "sharded")
    for name, value in given.items():
        inner = next((table_name for table_name, pattern in TABLES if pattern.match(name)), None)
        if inner is None:
            table[name] = value
        else:
            table[inner] = {**table.get(inner, {}), name: value}
    kinds = [kind for name, kind in KINDS.items() if table.pop(name, False)]
    if kinds:
        table["distributed_type"] = kinds[0]
    if launch.launching.get("use_deepspeed") and "zero_stage" not in given and "deepspeed_config_file" not in given:
        table.setdefault("deepspeed_config", {})
    processes = table.get("num_processes")
    if file is None and "distributed_type" not in table and isinstance(processes, int) and processes > 1:
        table["distributed_type"] = "MULTI_GPU"
    found = accelerate.read(Config(command.words[0] if command.words else "", "", table))
    if file is not None or (chosen is not None and not TRL_CONFIGS.get(str(chosen))):
        found = found._replace(options={}, weak={}) if "distributed_type" not in table else found
    ranks = found.ranks if isinstance(processes, int) else ranks_of(None, 1, command.variables)
    return found._replace(unread=(*found.unread, *unread), notes=tuple(notes), ranks=ranks)
