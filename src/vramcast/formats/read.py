"""Which file is whose, and the options of one or several files put together."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from importlib import import_module
from pathlib import Path, PurePosixPath
from typing import Any, Final

from vramcast.domain.job import Workload
from vramcast.errors import InvalidSpec, Note, SourceError, UnknownName, Unsupported, joined
from vramcast.formats.paths import NOTHING_GIVEN, Invocation
from vramcast.formats.reading import (
    NO_GPU,
    SAID,
    SHOWN,
    Config,
    Given,
    Reading,
    Unread,
    bounded,
    read_config,
    sentence,
    together,
    under_the_trainer,
)
from vramcast.formats.registry import READERS, known_as
from vramcast.formats.unread import LAUNCHED, NAMED_SCRIPT, SCRIPT, tool_of
from vramcast.formats.wrapped import PYTHON, Part, around, unknown_command, unwrapped
from vramcast.question.options import parse_count

DEFAULTS: Final = {
    "micro-batch": Workload().micro_batch, "grad-accum": Workload().grad_accum,
}
"""What a question takes where nothing is said."""


RUN_BY_THE_TRAINER: Final = (
    "trainer", "axolotl", "axolotl-command", "trl", "trl-script", "hf-command", "swift", "xtuner",
)
"""Formats whose runs DeepSpeed shards under Transformers' Trainer."""

THE_COMMAND: Final = "the command"
"""How sentences call what stands behind -- on the command line."""

READ_TOGETHER: Final = "tensorrt-llm"
"""The format whose file wins over the options of its command, and counts its ranks by them."""

ARGUMENTS_FILE: Final = re.compile(r"\s--config[= ]([\w./-]+\.ya?ml)(?=\s|$)")
OWN_SCRIPT: Final = re.compile(r"[\w./-]+\.py(?=\s|$)")
"""What a command starts that no reader knows."""

PYTHON_READ: Final = "trl-script"
"""The format of scripts in Python whose launcher may be given beside them."""

WHOLE_SCRIPT: Final = "unsloth"
"""The format of those that say all by themselves, behind a plain `python`."""

PLAIN_START: Final = re.compile(r"\s*(?:\S*/)?python[\d.]*(?: -u)? [\w./-]+\.py\s*")

OPTIONS_OF_BATCH: Final = {"global": "global-batch", "micro": "micro-batch", "accumulation": "grad-accum"}


def read_files(
    paths: Iterable[str | Path], *, command: str, format_name: str | None = None, line: str = "",
    started: Invocation = NOTHING_GIVEN,
) -> Given:
    """The options that configuration files give for one command.

    Args:
        paths: the files
        command: "train" or "serve"
        format_name: key of READERS; None: recognised by what is in the file
        line: the command of another tool, read as a script of this one line is; it wins over the files
        started: what scripts among them are started with

    Raises: SourceError, InvalidSpec or UnknownName with one sentence
    """
    parts = _parts(paths, line, started)
    alone = len(parts) == 1
    read = [(part.config.name, *one) for part in parts if (one := _read(part, command, format_name, alone=alone))]
    if command == "train" and (beside := next((name for name, _, found in read if "framework" in found.options), "")):
        raise Unsupported("{} has an engine that generates beside its trainer; vramcast rl answers for that", beside)
    options: dict[str, Any] = {}
    batch: dict[str, int] = {}
    by_weight = sorted(read, key=lambda item: [*READERS, item[1]].index(item[1]), reverse=True)
    for _, _, found in by_weight:
        options |= found.weak
    for _, _, found in by_weight:
        options = together(options, found.options)  # DeepSpeed's own file says more of its run than the trainer's
        batch |= found.batch
    if "deepspeed" in (options.get("engine"), options.get("sharded-by")):
        for _, _, found in by_weight:
            options |= found.under_deepspeed
        options = _under_deepspeed(options)
    if options.get("engine") == "deepspeed" and any(name in RUN_BY_THE_TRAINER for _, name, _ in read):
        options = under_the_trainer(options)
    held = [_held(one[2], read[:place] + read[place + 1 :]) for place, one in enumerate(read)]
    return Given(
        options, batch,
        (
            *(f"{name} ({found.format}): {as_options(weak | found.options | beside)}"
              for weak, (name, _, found) in zip(held, read, strict=True)
              for beside in (found.rollout if command == "rl" else {},)),
            *(Note("{}: {}", name, text) for weak, (name, _, found) in zip(held, read, strict=True)
              for text in (*found.notes, *(text for option, text in found.filled.items() if option in weak))),
        ),
        {option: Note("{} {}", name, text) for name, _, found in read for option, text in found.auto.items()},
        tuple((name, one) for place, (name, _, found) in enumerate(read) for one in found.unread
              if not _is_said(one, read[:place] + read[place + 1 :])),
        {name: found.ranks for name, _, found in read if found.ranks is not None},
        max((found.nodes for _, _, found in read), default=1),
        next((found.share for _, _, found in read if found.share), ""),
        {option: part for _, _, found in read for option, part in found.parts.items()},
        without_bf16={name: value for _, _, found in read for name, value in found.without_bf16.items()},
        contexts=next((found.contexts for _, _, found in read if found.contexts), ()),
        alone=next((name for name, _, found in read if found.alone), ""),
        device_map=_in_turn(read),
        rollout={option: value for _, _, found in read for option, value in found.rollout.items()},
    )


def _in_turn(read: Iterable[tuple[str, str, Reading]]) -> str:
    """The file of a run whose one process puts layers on each card; not that of a tool's arguments whose command starts
    several, or sees one card."""
    read = tuple(read)
    started = {name for _, name, found in read if found.ranks is not None and not found.device_map}
    return next((file for file, name, found in read if found.device_map and name not in started), "")


def _parts(paths: Iterable[str | Path], line: str, started: Invocation) -> list[Part]:
    """Files and a command without what they are wrapped in, with the files that they name."""
    given = [Path(path) for path in paths]
    configs = [read_config(path) for path in given]
    started_by = [Config(THE_COMMAND, bounded(THE_COMMAND, line), None)] if line else []
    named = [*configs, *started_by]
    for _ in range(CHAIN):
        beside = files_named(named, given)
        named = [read_config(path) for path in beside]
        given, configs = [*given, *beside], [*configs, *named]
    configs += started_by
    return with_named_files(_joined(unwrapped(configs, started, is_known)))


def commands_of(paths: Iterable[str | Path] = (), *, line: str = "", started: Invocation = NOTHING_GIVEN) -> list[str]:
    """The commands of vramcast that files and a command of other tools may ask, the likeliest first; [] where no reader
    knows them.

    >>> commands_of(line="vllm serve m"), commands_of(line="accelerate launch --mixed_precision bf16 sft.py"
    ...     " --model_name_or_path m"), commands_of(line="sleep 1")
    (['serve'], ['train', 'rl'], [])

    Raises: as `read_files`
    """
    rows = [READERS[name] for part in _parts(paths, line, started) if (name := known_as(part.config))]
    asked = [row.command for row in rows] + [row.also for row in rows if row.also]
    return list(dict.fromkeys(asked))


BESIDE: Final = re.compile(
    r"""--(?:deepspeed|deepspeed_config|config_file|dataset_config|fsdp)[ =]+["']?"""
    r"""([\w./-]+\.(?:json|toml|ya?ml))(?=["'\s]|$)""")
"""Arguments of scripts whose value is another tool's file."""

HYDRA: Final = re.compile(r"""--config-name[ =]+["']?(\w+_grpo\w*)(?=["'\s]|$)""")
"""The same of Hydra, whose folder verl's examples call so."""

CHAIN: Final = 4
"""Files that are named by one that another names, and so on [count]."""

SUFFIXES: Final = (".json", ".toml", ".yaml", ".yml", ".py")

KEYS_BESIDE: Final = ("deepspeed", "deepspeed_config_file", "config_file", "fsdp")
"""Names in files of whose values the same holds."""


def files_named(configs: Sequence[Config], given: Sequence[Path]) -> list[Path]:
    """Files of DeepSpeed, Accelerate, sd-scripts and Hydra that others name, where they are here and not given anyway.

    They are looked for from where the command runs, then beside the file that names them and in the folders around
    it: tools are started from the top of their own repository.
    """
    named: list[str] = []
    for config in configs:
        tables = [config.table or {}, *(one for one in (config.table or {}).values() if isinstance(one, Mapping))]
        named += [text for one in tables for key in KEYS_BESIDE if isinstance(text := one.get(key), str)]
        named += BESIDE.findall(config.text) if config.table is None else []
        named += [f"config/{name}.yaml" for name in HYDRA.findall(config.text)] if config.table is None else []
        named += _own_scripts(config)
        named += _of_program(config)
    found: dict[str, Path] = {}
    for text in named:
        places = (Path(text), *(folder / text for path in given for folder in path.absolute().parents))
        here = next((place for place in places if place.suffix in SUFFIXES and place.is_file()), None)
        if here is not None and here.suffix == ".py" and not _is_started(configs, read_config(here)):
            continue
        if here is not None and here.name not in (path.name for path in given):
            found.setdefault(here.name, here)
    return list(found.values())


def _of_program(config: Config) -> list[str]:
    """Files that a command's program takes its own arguments from."""
    name = next((name for name in ("hf-command", "axolotl-command", "swift", "swift-megatron", "nemo-rl")
                 if (config.table is None or name == "nemo-rl") and READERS[name].recognises(config)), "")
    return import_module(f"vramcast.formats.tools.{READERS[name].module}").files_of(config) if name else []


def _own_scripts(config: Config) -> list[str]:
    """Scripts in Python that a command starts."""
    if config.table is not None or config.name.endswith(PYTHON) or tool_of(config) not in (
            None, "hf-command", *LAUNCHED):
        return []
    return OWN_SCRIPT.findall(config.text)


def _is_started(configs: Sequence[Config], script: Config) -> bool:
    """Whether a script is read with the command that starts it."""
    plain = any(config.name == THE_COMMAND and PLAIN_START.fullmatch(config.text) for config in configs)
    return _is_ones_own(script) and (plain or tool_of(script) == PYTHON_READ)


def _is_ones_own(script: Config) -> bool:
    """Whether a script says what it trains; what is called as one of TRL's and reads its arguments is that one."""
    if (tool := tool_of(script)) != PYTHON_READ:
        return tool == WHOLE_SCRIPT
    return not re.fullmatch(NAMED_SCRIPT, script.name) or not re.search(r"\b(?:Trl|HfArgument)Parser\b", script.text)


def _under_deepspeed(options: dict[str, Any]) -> dict[str, Any]:
    """16-bit weights and fp32 copies where others run autocast, whatever the weights were loaded in."""
    precision, pairs = str(options.get("precision", "mixed-bf16")), options.get("engine-option", ())
    if "autocast=true" in pairs:
        precision = f"mixed-{precision}"
        pairs = tuple(pair for pair in pairs if pair != "autocast=true")
    said = {"precision": precision.replace("amp-", "mixed-")} | ({"engine-option": pairs} if pairs else {})
    if options.get("optimizer-kernel") == "foreach":  # PyTorch's own choice for its partitions, unasked
        options = {name: value for name, value in options.items() if name != "optimizer-kernel"}
    return {name: value for name, value in options.items() if name != "engine-option"} | said


def _held(found: Reading, others: list[tuple[str, str, Reading]]) -> dict[str, Any]:
    """What of a file's weak options no other file says."""
    said = {name for _, _, other in others for name in (*other.options, *map(OPTIONS_OF_BATCH.get, other.batch))}
    return {name: value for name, value in found.weak.items() if name not in said}


def _is_said(one: Unread, others: list[tuple[str, str, Reading]]) -> bool:
    """Whether other files say what one leaves open."""
    return any(
        one.file == found.format or one.option in (
            *found.options, *found.weak, *(OPTIONS_OF_BATCH[kind] for kind in found.batch))
        for _, _, found in others
    )


OURS: Final = ("gpus", "on", "find", "goal", "price", "json", "ignore-unread", "micro-batch", "global-batch",
               "recompute")
"""Options that people put behind the command of a tool, none of which has them."""

LENIENT: Final = "{}; --ignore-unread answers without what is not read"
"""What an option of the command line would pass over."""


def settled(given: Given, named: Iterable[str], *, ignore_unread: bool) -> Given:
    """What files say once nothing of it is left that could change the answer unread.

    Args:
        given: what was read
        named: options that were given by name, which win over the files
        ignore_unread: leave it out, and say so, instead of refusing it

    Raises: Unsupported with the names of what is not understood
    """
    said = set(named)
    open_ = [(file, _before_the_command(one) if file == THE_COMMAND else one)
             for file, one in given.unread if one.option not in said or not one.option]
    by_file: dict[str, list[Unread]] = {}
    for file, one in open_:
        by_file.setdefault(file, []).append(one)
    if elsewhere := [Note("{}: {}", file, sentence([one])) for file, one in open_ if one.why == NO_GPU]:
        raise Unsupported(joined("; ", elsewhere))
    if not ignore_unread and (refused := {file: matters for file, found in by_file.items()
                                          if (matters := [one for one in found if one.why not in SAID])}):
        shown = {file: found[:SHOWN] for file, found in refused.items()}
        more = sum(map(len, refused.values())) - sum(map(len, shown.values()))
        reasons = [Note("{}: {}", file, sentence(found)) for file, found in shown.items()]
        raise Unsupported(LENIENT, joined("; ", (*reasons, Note("and {} more", more)) if more else reasons))
    ignored = (Note("{}: {}", file, sentence(found)) for file, found in by_file.items())
    return given._replace(unread=(), ignored=(*given.ignored, *ignored))


def _before_the_command(one: Unread) -> Unread:
    """An option of vramcast that no tool has stands on the wrong side of "--"."""
    name = one.name.replace("_", "-")
    return one._replace(why=Note("is an option of vramcast; put --{} before --", name)) if name in OURS else one


def left_open(given: Given, options: Mapping[str, Any]) -> tuple[str, ...]:
    """What no file and no option says, and what is assumed of it, one line each."""
    said = set(options) | ({"grad-accum"} if "global-batch" in options else set())
    return tuple(
        Note("{}: the model's own is assumed", text) if option in ("seq-len", "image-size")
        else Note("{}: --{} {} is assumed", text, option, DEFAULTS[option]) if option in DEFAULTS
        else Note("{}: left at the engine's default", text)
        for option, text in given.auto.items() if option not in said
    )


def with_named_files(parts: list[Part]) -> list[Part]:
    """The same, a command of the Trainer's and the file of its arguments as one: the command wins over it."""
    taken: list[Part] = []
    found: list[tuple[Part, Part]] = []
    for given in parts:
        part, config = given, given.config
        started = {PurePosixPath(name).name for name in _own_scripts(config)}
        own = [one for one in parts if one.config.name in started and _is_started([config], one.config)]
        if any(tool_of(one.config) == WHOLE_SCRIPT for one in own):
            continue
        if own:
            taken, part = [*taken, *own], part._replace(config=config._replace(beside={SCRIPT: own[0].config}))
        elif _is_below(part, parts):
            taken = [*taken, part]
        elif READERS["nemo-rl"].recognises(config):  # `defaults: FILE`, `--config FILE`
            own = [one for one in parts if _is_below(one, parts)]
            part = part._replace(config=config._replace(beside={one.config.name: one.config.table for one in own}))
        elif program := _of_program(config):
            names = {PurePosixPath(name).name for name in program}
            own = [one for one in parts if one.config.table is not None and one.config.name in names]
            beside = {name: value for one in own for name, value in (one.config.table or {}).items()}
            taken, part = [*taken, *own], part._replace(config=config._replace(beside=beside))
        elif READERS["sd-scripts"].recognises(config) and not config.name.endswith(".toml"):
            from vramcast.formats.tools import kohya

            names = kohya.files_of(config)
            own = [one for one in parts if one.config.name in names]
            try:
                beside = {name: value for one in own for name, value in kohya.table_of(one.config).items()}
            except ValueError as error:
                raise SourceError("{}: not TOML: {}", own[0].config.name, str(error)[:200]) from None
            taken, part = [*taken, *own], part._replace(config=config._replace(beside=beside))
        elif config.table is None and READERS["verl"].recognises(config):  # of `--config-name NAME`
            own = [one for one in parts if one.config.table is not None and READERS["verl"].recognises(one.config)]
            beside = {name: value for one in own for name, value in (one.config.table or {}).items()}
            taken, part = [*taken, *own], part._replace(config=config._replace(beside=beside))
        elif READERS["swift"].recognises(config):  # of `--fsdp FILE` [swift sft_args.py `_init_fsdp`]
            own = [one for one in parts if part is not one and "fsdp_config" in (one.config.table or {})
                   and not READERS["accelerate"].recognises(one.config)]
            beside = {name: value for one in own for name, value in (one.config.table or {}).items()
                      if not name.startswith("_")}
            taken, part = [*taken, *own], part._replace(config=config._replace(beside=beside))
        found.append((given, part))
    return [part for given, part in found if not any(given is one for one in taken)]


def _is_below(part: Part, parts: list[Part]) -> bool:
    """Whether a file of NeMo-RL is one that another begins with."""
    return READERS["nemo-rl"].recognises(part.config) and any(
        part.config.name == PurePosixPath(name).name for other in parts for name in _of_program(other.config))


def _joined(parts: list[Part]) -> list[Part]:
    """The same, a command and the files that it alone can be read with as one."""
    known = [part for part in parts if READERS[READ_TOGETHER].recognises(part.config)]
    scripts = [part for part in known if part.config.table is None]
    if len(scripts) != 1:
        return parts
    tables = [part for part in known if part.config.table is not None]
    beside = {name: value for part in tables for name, value in (part.config.table or {}).items()}
    return [part._replace(config=part.config._replace(beside=beside)) if part is scripts[0] else part
            for part in parts if part not in tables]


def _read(part: Part, command: str, format_name: str | None, *, alone: bool) -> tuple[str, Reading] | None:
    """The format of one file, and what it says; None for a launcher of others that are given."""
    config = part.config
    if part.optional and not is_known(config):
        return None
    try:
        name = format_of(config, command, format_name)
    except (SourceError, Unsupported) as error:
        if alone or part.inside is None or not part.starts:
            if part.inside is not None and isinstance(error, SourceError):
                raise SourceError(unknown_command(part)) from None
            raise
        return part.inside.kind, around(Reading(part.inside.kind, {}), part.inside)
    try:
        reading = import_module(f"vramcast.formats.tools.{READERS[name].module}").read(config)
    except (TypeError, ValueError, KeyError, AttributeError, IndexError, OverflowError) as error:
        # a foreign file may hold anything where a format has a number, a text or a table
        raise SourceError("{}: not what {} takes: {}", config.name, name, type(error).__name__) from None
    return name, reading if part.inside is None else around(reading, part.inside)


def is_known(config: Config) -> bool:
    """Whether a reader here reads a command or a file."""
    return bool(known_as(config))


def as_options(options: Mapping[str, Any]) -> str:
    """The options as the command line would write them."""
    shown = {name: getattr(value, "name", value) for name, value in options.items()}
    texts = {name: ",".join(value) if isinstance(value, tuple) else value for name, value in shown.items()}
    return " ".join(f"--{name} {text}" for name, text in texts.items())


def format_of(config: Config, command: str, format_name: str | None) -> str:
    """The key of READERS whose file it is.

    Raises: Unsupported for a file of a tool that none reads, SourceError where nothing tells whose it is
    """
    if format_name is not None:
        if format_name not in READERS:
            raise UnknownName.of("format", format_name, READERS)
        name = format_name
    else:
        tool = tool_of(config)
        if tool is not None and tool not in READERS:
            said = Note(
                "{}: {} is not read; give what it says as options", config.name, tool
            )
            raise Unsupported(said + _traced(config))
        name = known_as(config)
    if not name:
        said = Note("{}: no tool that is read is recognised in it; --from-format says whose it is", config.name)
        raise SourceError(said + _traced(config))
    if command not in (READERS[name].command, READERS[name].also):
        raise InvalidSpec("{} is a {} configuration; use vramcast {} --from", config.name, name, READERS[name].command)
    return name


def solved(
    options: Mapping[str, Any], batch: Mapping[str, int], ranks: int, named: Iterable[str] = ()
) -> dict[str, Any]:
    """The options with the batch that files give: two of global, micro and accumulation make the third.

    Args:
        options: all of them
        batch: of the files
        ranks: data-parallel ranks
        named: options that were given by name, which win over the files: of what the files say the samples of a step
            stay, then those of a forward

    Raises: InvalidSpec where the three contradict each other
    """
    found, said = dict(options), {"micro-batch", "grad-accum", "global-batch"} & set(named)
    if not batch or len(said) > 1:
        return found
    whole, micro, accumulation = (batch.get(name) for name in ("global", "micro", "accumulation"))
    if "global-batch" in said:
        return found | ({"micro-batch": micro} if micro else {})
    if "micro-batch" in said:
        return found | ({"global-batch": whole} if whole else {"grad-accum": accumulation} if accumulation else {})
    if "grad-accum" in said:
        accumulation, micro = parse_count("grad-accum", found["grad-accum"]), None if whole else micro
    if whole and micro and accumulation and whole != micro * accumulation * ranks:
        raise InvalidSpec(
            "train_batch_size={} is not {} x {} x {} ranks = {}; correct one of them, or the GPUs",
            whole, micro, accumulation, ranks, micro * accumulation * ranks
        )
    if whole and micro is None:
        accumulation = accumulation or 1  # as DeepSpeed has it
        if whole % (ranks * accumulation):
            raise InvalidSpec("train_batch_size={} does not divide by {} ranks x {}", whole, ranks, accumulation)
        micro = whole // (ranks * accumulation)
    if micro is not None:
        found["micro-batch"] = micro
    if accumulation is not None:
        found["grad-accum"] = accumulation
    elif whole is not None:
        found.pop("grad-accum", None)  # what a file leaves open
        found["global-batch"] = whole
    return found


def _traced(config: Config) -> str:
    """What follows a script that a command starts and no reader knows: a file of its arguments may say all."""
    if config.table is not None or config.name != THE_COMMAND:
        return ""
    if arguments := ARGUMENTS_FILE.search(config.text):
        return Note("; --from {} reads the file of its arguments, without the command", arguments[1][:80])
    script = OWN_SCRIPT.search(config.text)
    return Note("; vramcast trace {} follows a script of your own", script[0][:80]) if script else ""
