"""Configuration files of other tools, as a question names them."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final

from msgspec import Struct

from vramcast import formats
from vramcast.errors import InvalidSpec
from vramcast.lazy import lazy_pattern


class Invocation(Struct, frozen=True):
    """What a script is started with."""

    arguments: tuple[str, ...] | None = None  # None: nobody says
    environment: Mapping[str, str] = {}
    scripts: Mapping[str, str] = {}  # others that are given, by their names
    cards: int | None = None  # of one machine, where a question says so
    engine: str = ""  # that a question names, with its version where it does


NOTHING_GIVEN: Final = Invocation()


class Configs(Struct, frozen=True):
    """Files that a question starts from."""

    paths: tuple[str | Path, ...] = ()
    line: str = ""  # the command of another tool, read as a script of this one line is
    format_name: str | None = None  # None: recognised
    ignore_unread: bool = False  # what is not understood is left out, and said, instead of refused
    given: Invocation = NOTHING_GIVEN  # what they are started with

    def __bool__(self) -> bool:
        return bool(self.paths or self.line)


OPTIONS: Final = ("from", "from-command", "args", "env", "from-format", "ignore-unread")
"""Options of a question that name them."""

SCRIPTS: Final = (".sh", ".bash")
"""Ends of names of files whose arguments may describe a network."""


LIBRARY: Final = lazy_pattern(r"(?!(?:hf|huggingface|modelscope):)[a-z0-9][\w.-]*(?:/[\w.-]+)?:[\w.-]+", re.IGNORECASE)
"""A name of Ollama's library with its tag."""

GGUF: Final = lazy_pattern(
    r"(?:(?:https?://)?(?:hf\.co|huggingface\.co)/)?([\w.-]+/[\w.-]+-gguf(?::[\w.-]+)?)", re.IGNORECASE
)
"""A repository of GGUF files and which of them, as Ollama and llama.cpp name it."""


def as_started(options: dict[str, Any], command: str) -> dict[str, Any]:
    """The same, what Ollama is to run as the command that runs it.

    That is the model of a question whose engine it is, a name of its library (gemma3:27b), a repository of GGUF files.
    """
    model, engine = options.get("model"), str(options.get("engine") or "ollama")
    if command != "serve" or not isinstance(model, str) or engine.partition("@")[0] not in ("ollama", "llama.cpp"):
        return options
    if "from" in options or "from-command" in options:
        return options
    repository = GGUF.fullmatch(model)
    is_name = bool(repository or LIBRARY.fullmatch(model)) and not os.path.exists(model)  # noqa: PTH110  # a name longer than a path may be is none
    if (not is_name and options.get("engine") != "ollama") or engine.startswith("ollama@"):
        return options  # which build a release of Ollama starts is not known
    left = ("model",) if "@" in engine else ("model", "engine")
    rest = {name: value for name, value in options.items() if name not in left}
    named = f"hf.co/{repository[1]}" if repository and is_name else model
    return rest | {"from-command": shlex.join(("ollama", "run", named))}


def is_script(text: object) -> bool:
    """Whether a text is the path of a launch script."""
    path = Path(text) if isinstance(text, (str, Path)) else Path()
    return path.suffix in SCRIPTS and path.is_file()


def configs_in(options: Mapping[str, Any]) -> Configs:
    """The files that options name.

    Raises: InvalidSpec where an option says how files are read, and there are none
    """
    paths, ignored, line = options.get("from") or (), options.get("ignore-unread"), options.get("from-command", "")
    if not isinstance(line, str) or ("from-command" in options and not line.strip()):
        raise InvalidSpec("from-command must be the text of a command: \"vllm serve Qwen/Qwen3-8B -tp 2\"")
    if ignored is not None and not isinstance(ignored, bool):
        raise InvalidSpec("ignore-unread={!r} must be true or false", ignored)
    found = Configs(
        (paths,) if isinstance(paths, (str, Path)) else tuple(paths), line, options.get("from-format"), bool(ignored),
        Invocation(_words(options.get("args")), _variables(options.get("env") or ())),
    )
    for name in ("args", "env"):
        if not found and options.get(name) is not None and not is_script(options.get("model")):
            raise InvalidSpec("--{} says what a file of --from is started with; give --from FILE", name)
    if not found and found.format_name is not None:
        raise InvalidSpec("--from-format says whose a file of --from is; give --from FILE")
    if not found and found.ignore_unread and not is_script(options.get("model")):
        raise InvalidSpec("--ignore-unread says how a file of --from is read; give --from FILE")
    return found


def _words(text: object) -> tuple[str, ...] | None:
    """Arguments as a shell would split them; None where nobody gives any."""
    if text is None:
        return None
    try:
        return tuple(shlex.split(str(text)))
    except ValueError:
        raise InvalidSpec("args has a quotation that does not end; check the quotes") from None


def without_secrets(given: Iterable[str]) -> tuple[str, ...]:
    """Variables without those that are secrets, as an option has them.

    >>> without_secrets(("MODEL=7B", "HF_TOKEN=hf_x"))
    ('MODEL=7B',)
    """
    return tuple(f"{name}={value}" for name, value in _variables(tuple(given)).items())


def _variables(given: object) -> dict[str, str]:
    """Variables by their names; those that are secrets are forgotten.

    >>> _variables(("MODEL=7B", "CUDA_VISIBLE_DEVICES=0", "1", "HF_TOKEN=hf_x"))
    {'MODEL': '7B', 'CUDA_VISIBLE_DEVICES': '0,1'}
    """
    if isinstance(given, Mapping):
        given = tuple(f"{name}={value}" for name, value in given.items())
    parts = (given,) if isinstance(given, str) else given if isinstance(given, Iterable) else ()
    found: dict[str, str] = {}
    name = ""
    for part in map(str, parts):
        match = formats.lexer.ASSIGNED.match(part)
        if match is None and not name:
            raise InvalidSpec("env={!r} must be NAME=VALUE", part[:40])
        name = match[1] if match is not None else name
        # an option of several names parts them at commas, which a value may have
        found[name] = part[match.end():] if match is not None else f"{found[name]},{part}"
    return {name: value for name, value in found.items() if not formats.reading.SECRET_NAME.search(name)}
