"""Which file is whose, and the options of one or several files put together."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

from vramcast.domain.job import Workload
from vramcast.errors import InvalidSpec, SourceError, UnknownName
from vramcast.question.configs import deepspeed, megatron, servers, torchtitan, trainers
from vramcast.question.configs.reading import ELSEWHERE, Config, Reading, read_config


class Reader(NamedTuple):
    """One format."""

    recognises: Callable[[Config], bool]
    read: Callable[[Config], Reading]
    command: str  # of vramcast that it is for


READERS: Final[dict[str, Reader]] = {
    "deepspeed": Reader(deepspeed.is_deepspeed, deepspeed.read, "train"),
    "accelerate": Reader(trainers.is_accelerate, trainers.read_accelerate, "train"),
    "megatron": Reader(megatron.is_megatron, megatron.read, "train"),
    "trainer": Reader(trainers.is_trainer, trainers.read_trainer, "train"),
    "vllm": Reader(servers.is_vllm, servers.read_vllm, "serve"),
    "sglang": Reader(servers.is_sglang, servers.read_sglang, "serve"),
    "torchtitan": Reader(torchtitan.is_torchtitan, torchtitan.read, "train"),
}
"""Formats in the order in which files are held against them, and in which they win.
"trainer" is Transformers' and LLaMA-Factory's."""

DEFAULTS: Final = {
    "seq-len": Workload().seq_len, "micro-batch": Workload().micro_batch, "grad-accum": Workload().grad_accum,
}
"""What a question takes where nothing is said."""


class Given(NamedTuple):
    """What files say, put together; later ones win."""

    options: dict[str, Any]
    batch: dict[str, int]
    assumptions: tuple[str, ...]
    warnings: tuple[str, ...]
    auto: dict[str, str] = {}  # option that no file says -> which one leaves it open, and how


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
    for _, _, found in sorted(read, key=lambda item: list(READERS).index(item[1]), reverse=True):
        options |= found.options  # DeepSpeed's own file says more of its run than the trainer's
        batch |= found.batch
    apart = {found.format for _, _, found in read}
    return Given(
        options, batch,
        (
            *(f"{name} ({found.format}): {as_options(found.options)}" for name, _, found in read),
            *(f"{name}: {text}" for name, _, found in read for text in found.notes),
        ),
        tuple(
            f"{name}: {text}" for name, _, found in read for text in found.warnings
            if not (ELSEWHERE in text and "deepspeed" in apart)
        ),
        {option: f"{name} {text}" for name, _, found in read for option, text in found.auto.items()},
    )


def left_open(given: Given, options: Mapping[str, Any]) -> tuple[str, ...]:
    """What no file and no option says, and what is assumed of it, one line each."""
    said = set(options) | ({"grad-accum"} if "global-batch" in options else set())
    return tuple(
        f"{text}: --{option} {DEFAULTS[option]} is assumed" if option in DEFAULTS
        else f"{text}: left at the engine's default"
        for option, text in given.auto.items() if option not in said
    )


def _read(path: Path, command: str, format_name: str | None) -> tuple[str, Reading]:
    """The format of one file, and what it says."""
    config = read_config(path)
    name = _format_of(config, command, format_name)
    try:
        return name, READERS[name].read(config)
    except (TypeError, ValueError, KeyError, AttributeError, IndexError, OverflowError) as error:
        # a foreign file may hold anything where a format has a number, a text or a table
        raise SourceError(f"{config.name}: not what {name} takes: {type(error).__name__} {str(error)[:120]}") from None


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
        name = next((name for name, reader in READERS.items() if reader.recognises(config)), "")
    if not name:
        raise SourceError(
            f"{config.name}: none of {', '.join(READERS)} is recognised in it; --from-format names one"
        )
    if READERS[name].command != command:
        raise InvalidSpec(f"{config.name} is a {name} configuration; use vramcast {READERS[name].command} --from")
    return name


def solved(options: Mapping[str, Any], batch: Mapping[str, int], ranks: int) -> dict[str, Any]:
    """The options with the batch that files give: two of global, micro and accumulation make the third.

    Args:
        options: what was said by name wins
        batch: of the files
        ranks: data-parallel ranks

    Raises: InvalidSpec where the three contradict each other
    """
    found = dict(options)
    said = {"micro-batch", "grad-accum", "global-batch"} & set(options)
    if said or not batch:
        return found
    whole, micro, accumulation = (batch.get(name) for name in ("global", "micro", "accumulation"))
    if whole and micro and accumulation and whole != micro * accumulation * ranks:
        raise InvalidSpec(
            f"train_batch_size={whole} is not {micro} x {accumulation} x {ranks} ranks = "
            f"{micro * accumulation * ranks}; correct one of them, or the GPUs"
        )
    if whole and micro is None:
        if whole % (ranks * (accumulation or 1)):
            raise InvalidSpec(f"train_batch_size={whole} does not divide by {ranks} ranks x {accumulation or 1}")
        micro = whole // (ranks * (accumulation or 1))
    if micro is not None:
        found["micro-batch"] = micro
    if accumulation is not None:
        found["grad-accum"] = accumulation
    elif whole is not None:
        found["global-batch"] = whole
    return found
