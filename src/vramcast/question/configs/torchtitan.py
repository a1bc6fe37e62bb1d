"""A torchtitan command; its old TOML files are said to be that [torchtitan config/job_config.py]."""

from __future__ import annotations

import re
from typing import Any, Final

from vramcast.errors import InvalidSpec
from vramcast.question.configs.reading import Config, Reading, arguments, count, words

NAMES: Final[dict[str, str]] = {
    "parallelism.tensor_parallel_degree": "tp", "parallelism.pipeline_parallel_degree": "pp",
    "parallelism.context_parallel_degree": "cp", "parallelism.expert_parallel_degree": "ep",
    "training.seq_len": "seq-len", "training.local_batch_size": "micro-batch",
    "training.global_batch_size": "global-batch",
}

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
    values = arguments(words(config))
    options: dict[str, Any] = {"engine": "torchtitan"}
    options |= {option: values[name] for name, option in NAMES.items() if count(values.get(name)) is not None}
    mode = next((value for name, value in values.items() if name.startswith("activation_checkpoint")), None)
    if mode in RECOMPUTE:
        options["recompute"] = RECOMPUTE[str(mode)]
    if any(name.startswith("compile.") and value is True for name, value in values.items()):
        options["compile"] = True
    warnings = [f"{name}: not read; what matters for memory is given by options of vramcast"
                for name in values
                if "." in name and name not in NAMES and not name.startswith(("compile.", "activation"))]
    return Reading("torchtitan", options, {}, tuple(values), tuple(warnings))
