"""A torchtitan command; its old TOML files are said to be that [torchtitan config/job_config.py]."""

from __future__ import annotations

import re
from typing import Any, Final

from vramcast.errors import InvalidSpec
from vramcast.question.configs.reading import Config, Reading, Watched, arguments, command_of

NAMES: Final[dict[str, str]] = {
    "parallelism.tensor_parallel_degree": "tp", "parallelism.pipeline_parallel_degree": "pp",
    "parallelism.context_parallel_degree": "cp", "parallelism.expert_parallel_degree": "ep",
    "training.seq_len": "seq-len", "training.local_batch_size": "micro-batch",
    "training.global_batch_size": "global-batch",
}

ASKED: Final = ("training.seq_len", "training.local_batch_size")
"""What torchtitan keeps in the files of its models where a command does not say it."""

RECOMPUTE: Final = {"none": "none", "selective": "selective", "full": "full"}


def is_torchtitan(config: Config) -> bool:
    """A command with torchtitan's sections, or one of its old files."""
    text = config.text
    return "--parallelism." in text or "torchtitan" in text or bool(re.search(r"^\[parallelism\]", text, re.MULTILINE))


def read(config: Config) -> Reading:
    """Options of the command.

    Raises: InvalidSpec for the TOML files of versions before 0.3
    """
    if config.name.endswith(".toml"):
        raise InvalidSpec(
            f"{config.name}: torchtitan reads no TOML since 0.3; give the command with its --section.name values"
        )
    command = command_of(config, lambda words: sum(word.startswith("--") and "." in word for word in words))
    values = Watched(arguments(command.words))
    options: dict[str, Any] = {"engine": "torchtitan"}
    options |= {option: size for name, option in NAMES.items() if (size := values.count(name)) is not None}
    for name in values:
        if name.startswith("activation_checkpoint") and name.endswith("mode"):
            options |= {"recompute": mode} if (mode := values.one_of(name, RECOMPUTE)) else {}
        elif name.startswith("compile.") and values.flag(name):
            options["compile"] = True
    auto = {option: f"has no {name}" for name, option in NAMES.items()
            if name in ASKED and option not in options}
    unread = [f"{name}: not read; what matters for memory is given by options of vramcast"
              for name in values.unread() if "." in name]
    return Reading("torchtitan", options, {}, tuple(values), (*values.said(), *unread), command.notes, auto)
