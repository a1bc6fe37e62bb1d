"""Which file is whose, and the options of one or several files put together."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any, Final, NamedTuple

from vramcast.domain.job import Workload
from vramcast.domain.model import Model
from vramcast.errors import InvalidSpec, SourceError, UnknownName, Unsupported
from vramcast.formats.reading import (
    NO_GPU,
    SHOWN,
    Config,
    Reading,
    Unread,
    read_config,
    sentence,
    together,
    under_the_trainer,
)
from vramcast.formats.registry import READERS
from vramcast.formats.unread import tool_of
from vramcast.question.options import parse_count

DEFAULTS: Final = {
    "micro-batch": Workload().micro_batch, "grad-accum": Workload().grad_accum,
}
"""What a question takes where nothing is said."""


OPTIONS_OF_BATCH: Final = {"global": "global-batch", "micro": "micro-batch", "accumulation": "grad-accum"}


class Given(NamedTuple):
    """What files say, put together; later ones win."""

    options: dict[str, Any]
    batch: dict[str, int]
    assumptions: tuple[str, ...]
    auto: dict[str, str] = {}  # option that no file says -> which one leaves it open, and how
    unread: tuple[tuple[str, Unread], ...] = ()  # file, and what of it may change the answer and is not understood
    ranks: dict[str, int] = {}  # file -> processes it starts
    ignored: tuple[str, ...] = ()  # what the answer is without, one sentence a file


def read_files(paths: Iterable[str | Path], *, command: str, format_name: str | None = None) -> Given:
    """The options that configuration files give for one command.

    Args:
        paths: the files
        command: "train" or "serve"
        format_name: key of READERS; None: recognised by what is in the file

    Raises: SourceError, InvalidSpec or UnknownName with one sentence
    """
    read = [(path.name, *_read(path, command, format_name)) for path in map(Path, paths)]
    options: dict[str, Any] = {}
    batch: dict[str, int] = {}
    by_weight = sorted(read, key=lambda item: list(READERS).index(item[1]), reverse=True)
    for _, _, found in by_weight:
        options |= found.weak
    for _, _, found in by_weight:
        options = together(options, found.options)  # DeepSpeed's own file says more of its run than the trainer's
        batch |= found.batch
    if "deepspeed" in (options.get("engine"), options.get("sharded-by")):
        # 16-bit weights and fp32 copies where others run autocast
        options["precision"] = str(options.get("precision", "mixed-bf16")).replace("amp-", "mixed-")
    if options.get("engine") == "deepspeed" and any(name == "trainer" for _, name, _ in read):
        options = under_the_trainer(options)
    return Given(
        options, batch,
        (
            *(f"{name} ({found.format}): {as_options(found.weak | found.options)}" for name, _, found in read),
            *(f"{name}: {text}" for name, _, found in read for text in found.notes),
        ),
        {option: f"{name} {text}" for name, _, found in read for option, text in found.auto.items()},
        tuple((name, one) for place, (name, _, found) in enumerate(read) for one in found.unread
              if not _is_said(one, read[:place] + read[place + 1 :])),
        {name: found.ranks for name, _, found in read if found.ranks is not None},
    )


def _is_said(one: Unread, others: list[tuple[str, str, Reading]]) -> bool:
    """Whether other files say what one leaves open."""
    return any(
        one.file == found.format or one.option in (*found.options, *(OPTIONS_OF_BATCH[kind] for kind in found.batch))
        for _, _, found in others
    )


def about_network(given: Given, named: object) -> Given:
    """What is left unread once it is known whether the network has towers that see or hear.

    Args:
        given: what was read
        named: the model of the question: a network, its name, or None

    Raises: SourceError or UnknownName where its name means none
    """
    if named is None or not any(one.of_towers for _, one in given.unread):
        return given
    from vramcast.sources.resolve import resolve_model  # most files need no network to be read

    model = named if isinstance(named, Model) else resolve_model(str(named))
    if any(stack.vision is not None for stack in model.stacks[:-1]):
        return given
    return given._replace(unread=tuple((file, one) for file, one in given.unread if not one.of_towers))


def settled(given: Given, named: Iterable[str], *, ignore_unread: bool) -> Given:
    """What files say once nothing of it is left that could change the answer unread.

    Args:
        given: what was read
        named: options that were given by name, which win over the files
        ignore_unread: leave it out, and say so, instead of refusing it

    Raises: Unsupported with the names of what is not understood
    """
    said = set(named)
    open_ = [(file, one) for file, one in given.unread if one.option not in said or not one.option]
    by_file: dict[str, list[Unread]] = {}
    for file, one in open_:
        by_file.setdefault(file, []).append(one)
    if elsewhere := [f"{file}: {sentence([one])}" for file, one in open_ if one.why == NO_GPU]:
        raise Unsupported("; ".join(elsewhere))
    if open_ and not ignore_unread:
        shown = {file: found[:SHOWN] for file, found in by_file.items()}
        more = len(open_) - sum(map(len, shown.values()))
        raise Unsupported(
            "; ".join(f"{file}: {sentence(found)}" for file, found in shown.items())
            + (f"; and {more} more" if more else "") + "; --ignore-unread answers without what is not read"
        )
    ignored = (f"{file}: {sentence(found)}" for file, found in by_file.items())
    return given._replace(unread=(), ignored=(*given.ignored, *ignored))


def left_open(given: Given, options: Mapping[str, Any]) -> tuple[str, ...]:
    """What no file and no option says, and what is assumed of it, one line each."""
    said = set(options) | ({"grad-accum"} if "global-batch" in options else set())
    return tuple(
        f"{text}: the model's own is assumed" if option == "seq-len"
        else f"{text}: --{option} {DEFAULTS[option]} is assumed" if option in DEFAULTS
        else f"{text}: left at the engine's default"
        for option, text in given.auto.items() if option not in said
    )


def _read(path: Path, command: str, format_name: str | None) -> tuple[str, Reading]:
    """The format of one file, and what it says."""
    config = read_config(path)
    name = _format_of(config, command, format_name)
    try:
        return name, import_module(f"vramcast.formats.tools.{READERS[name].module}").read(config)
    except (TypeError, ValueError, KeyError, AttributeError, IndexError, OverflowError) as error:
        # a foreign file may hold anything where a format has a number, a text or a table
        raise SourceError(f"{config.name}: not what {name} takes: {type(error).__name__}") from None


def as_options(options: Mapping[str, Any]) -> str:
    """The options as the command line would write them."""
    shown = {name: getattr(value, "name", value) for name, value in options.items()}
    texts = {name: ",".join(value) if isinstance(value, tuple) else value for name, value in shown.items()}
    return " ".join(f"--{name} {text}" for name, text in texts.items())


def _format_of(config: Config, command: str, format_name: str | None) -> str:
    if format_name is not None:
        if format_name not in READERS:
            raise UnknownName.of("format", format_name, READERS)
        name = format_name
    else:
        tool = tool_of(config)
        if tool is not None:
            raise Unsupported(
                f"{config.name} is a configuration of {tool}, which is not read; give what it says as options"
            )
        name = next((name for name, reader in READERS.items() if reader.recognises(config)), "")
    if not name:
        raise SourceError(
            f"{config.name}: none of {', '.join(READERS)} is recognised in it; --from-format names one"
        )
    if READERS[name].command != command:
        raise InvalidSpec(f"{config.name} is a {name} configuration; use vramcast {READERS[name].command} --from")
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
            f"train_batch_size={whole} is not {micro} x {accumulation} x {ranks} ranks = "
            f"{micro * accumulation * ranks}; correct one of them, or the GPUs"
        )
    if whole and micro is None:
        accumulation = accumulation or 1  # as DeepSpeed has it
        if whole % (ranks * accumulation):
            raise InvalidSpec(f"train_batch_size={whole} does not divide by {ranks} ranks x {accumulation}")
        micro = whole // (ranks * accumulation)
    if micro is not None:
        found["micro-batch"] = micro
    if accumulation is not None:
        found["grad-accum"] = accumulation
    elif whole is not None:
        found.pop("grad-accum", None)  # what a file leaves open
        found["global-batch"] = whole
    return found
