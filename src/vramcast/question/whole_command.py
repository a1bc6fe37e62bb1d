"""A plan that a search found, or a question, as the whole command that asks for it."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import takewhile
from pathlib import Path
from typing import Any, Final

from vramcast.domain.job import Job
from vramcast.domain.model import Model
from vramcast.domain.serving import ServeJob
from vramcast.question.as_options import serve_options, train_options

LINE: Final = "from-command"
"""The option of what stands behind "--"."""

REPEATED: Final = ("engine-option", "from", "on")
"""Options that read better one by one than with commas between their values."""


STARTERS: Final = ("bash", "sh", "source", ".", "sbatch")
SCRIPTS: Final = (".sh", ".bash", ".sbatch", ".slurm")
"""What starts a script of a shell's, and how those are called."""

ASSIGNED: Final = re.compile(r"[A-Za-z_]\w*=")
"""How a word begins that sets a variable of the environment."""


def train_command(job: Job, options: Mapping[str, Any], model: str | None) -> str:
    """`vramcast train` with the options that make this job.

    Args:
        job: the plan
        options: what the search was asked; a model by numbers, prices and the length of the run are passed on
        model: how the question named it; None: by numbers

    Raises: Unsupported where no options make it
    """
    return question_command("train", train_options(job, options, model=model))


def serve_command(job: ServeJob, options: Mapping[str, Any], model: str | None, label: str) -> str:
    """`vramcast serve` for one replica.

    Args:
        job: the replica
        options: what the search was asked
        model: how the question named it; None: by numbers
        label: the options of the replica, which say how its cards are named

    Raises: Unsupported where no options make it
    """
    return question_command("serve", serve_options(job, options, model=model, gpus=label.split()[1]))


def question_command(
    command: str, options: Mapping[str, Any], *, file: str | Path | None = None,
    behind: Iterable[str] = (),
) -> str:
    """What is typed to ask a question.

    Args:
        command: "train", "plan serve" ...
        options: by their names on the command line; what stands without a name is "model"; None: not given
        file: a job file beneath them
        behind: what stands behind "--"

    >>> question_command("train", {"model": "llama-3.1-8b", "gpus": "h100", "seq-len": 8192, "compile": False})
    'vramcast train llama-3.1-8b --gpus h100 --seq-len 8192 --no-compile'
    >>> question_command("serve", {"gpus": "h100", "from-command": "vllm serve m -tp 2"})
    'vramcast serve --gpus h100 -- vllm serve m -tp 2'
    """
    model = options.get("model")
    name = model.name if isinstance(model, Model) else model
    words = ["vramcast", *command.split(), *([str(name)] if name is not None else [])]
    for option, value in {**options, "file": file}.items():
        if option in ("model", LINE) or value in (None, ""):
            continue
        for one in _apart(option, value):
            words += _written(option, one)
    arguments = (*behind, *words_of(str(options.get(LINE) or "")))
    return shlex.join([*words, *(("--", *arguments) if arguments else ())])


def line_of(words: Sequence[str]) -> str:
    """The words of a command as the script of one line that has them; a single word with blanks is such a script.

    >>> print(line_of(["VLLM_USE_V1=0", "vllm", "serve", "m", "--hf-overrides", '{"a": 1}']))
    VLLM_USE_V1=0 vllm serve m --hf-overrides '{"a": 1}'
    """
    if len(words) == 1 and len(words[0].split()) > 1:
        return words[0]
    begun, found = False, []
    for word in words:
        variable = None if begun else ASSIGNED.match(word)
        begun = variable is None
        found.append(f"{variable[0]}{shlex.quote(word[variable.end():])}" if variable else shlex.quote(word))
    return " ".join(found)


def script_of(words: Sequence[str]) -> tuple[dict[str, str], str, tuple[str, ...]] | None:
    """The script of a shell's that a command starts: the variables before it, its path, its arguments; None for others.

    >>> script_of(["NGPU=8", "bash", "run.sh", "7b"]), script_of(["./run.sh"]), script_of(["vllm", "serve", "m"])
    (({'NGPU': '8'}, 'run.sh', ('7b',)), ({}, './run.sh', ()), None)
    """
    before = list(takewhile(ASSIGNED.match, words))
    started = words[len(before):]
    rest = started[1:] if started and started[0].rpartition("/")[2] in STARTERS else started
    if not rest or not rest[0].endswith(SCRIPTS):
        return None
    pairs = (word.partition("=") for word in before)
    return {name: value for name, _, value in pairs}, rest[0], tuple(rest[1:])


def words_of(line: str) -> list[str]:
    """The words of a command as they are typed behind "--"; what is more than words stays one.

    >>> words_of("TP=2; vllm serve m -tp $TP"), words_of("")
    (['TP=2; vllm serve m -tp $TP'], [])
    """
    try:
        words = shlex.split(line)
    except ValueError:  # quotes that do not end
        return [line]
    return words if line_of(words) == line else [line]


def _apart(name: str, value: object) -> tuple[object, ...]:
    """The values of an option that may be given several times; names stand behind one."""
    if not isinstance(value, (list, tuple)):
        return (value,)
    together = name not in REPEATED and not any("," in str(one) for one in value)
    return (",".join(map(str, value)),) if together else tuple(value)


def _written(name: str, value: object) -> Iterator[str]:
    """One option as the command line takes it."""
    if isinstance(value, bool):
        yield f"--{name}" if value else f"--no-{name}"
        return
    yield f"--{name}"
    yield str(value)
