"""Command lines that start a script of Hugging Face's Trainer: alone, by torchrun, accelerate or deepspeed.

Who starts it says how many processes there are and how they share the work; the script's name says whose arguments
follow: TRL's, LLaMA-Factory's, fms-hf-tuning's, Transformers' examples' or the Trainer's own.

[acc] accelerate commands/launch.py   [run] torch torch/distributed/run.py   [ds] deepspeed launcher/runner.py
[TRL] huggingface/trl 1.9.0 trl/cli/{accelerate_config,accelerate_launcher}.py, trl/accelerate_configs/*.yaml
[HF] transformers hf_argparser.py `HfArgumentParser`: a switch that is on unasked has another, --no_NAME
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping
from itertools import pairwise
from pathlib import PurePosixPath
from typing import Any, Final, NamedTuple

from vramcast.catalogue.formats import load_format, presets
from vramcast.formats.environment import options_of_environment, ranks_of, unread_environment
from vramcast.formats.reading import (
    ELSEWHERE,
    Command,
    Config,
    Reading,
    Unread,
    arguments,
    command_of,
    plain,
    shown,
    together,
)
from vramcast.formats.tools import accelerate, fms, hf_examples, trl, trl_script
from vramcast.formats.tools.llamafactory import read_factory
from vramcast.formats.unread import OF_TRL, SCRIPT, STARTS
from vramcast.formats.watched import Known, Watched

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
    Program(hf_examples.PROGRAMS, hf_examples.read_example),
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
        return hf_examples.read_own(values, launch.program, file)
    for program in PROGRAMS:
        if program.match.fullmatch(launch.program):
            return program.read(values, launch.program, file)
    return hf_examples.read_own(values, launch.program, file)


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
