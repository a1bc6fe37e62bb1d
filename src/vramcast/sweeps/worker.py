"""Answers a chunk of questions: what runs in every process of a sweep."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from hashlib import blake2b
from typing import Any, Final, NamedTuple

from vramcast.domain.checkpoint import Checkpoint
from vramcast.errors import InvalidSpec, UnknownName, VramcastError
from vramcast.sources.resolve import resolve_checkpoint
from vramcast.sweeps.columns import Row, answer_row, question_row
from vramcast.sweeps.commands import COMMANDS, Question, normalised
from vramcast.version import __version__

MOST_MODELS: Final = 512
"""Models a process keeps; the oldest go first [count]."""

Chunk = tuple[tuple[int, Question], ...]
"""Questions with their places in the sweep."""


class Answered(NamedTuple):
    """A chunk's records as lines of the journal, and how long they took."""

    lines: tuple[bytes, ...]
    seconds: float


class Models:
    """Models by name, each resolved once; a name that could not be resolved is not tried again."""

    def __init__(self, resolve: Callable[[str], Checkpoint] = resolve_checkpoint) -> None:
        self._resolve = resolve
        self._known: dict[str, Checkpoint | VramcastError] = {}

    def __call__(self, name: str) -> Checkpoint:
        """The model, or the error that it gave the first time."""
        if name not in self._known:
            if len(self._known) >= MOST_MODELS:
                del self._known[next(iter(self._known))]
            try:
                self._known[name] = self._resolve(name)
            except VramcastError as error:
                self._known[name] = error
        found = self._known[name]
        if isinstance(found, VramcastError):
            raise found.with_traceback(None)
        return found


_models = Models()
"""Of this process."""


def question_key(question: Mapping[str, Any]) -> str:
    """What identifies an answer: the question as its options understand it, and the version that answered."""
    text = json.dumps([__version__, question], sort_keys=True, default=str)
    return blake2b(text.encode(), digest_size=8).hexdigest()


def answer_chunk(chunk: Chunk) -> Answered:
    """The records of a chunk, in its order."""
    start = time.perf_counter()
    lines = tuple(record_line(place, question, answered(question)) for place, question in chunk)
    return Answered(lines, time.perf_counter() - start)


def record_line(place: int, question: Question, result: Row) -> bytes:
    """One line of the journal."""
    from vramcast.sweeps.journal import line_of

    normal = normalised(question)
    return line_of(place, question_key(normal), question_row(normal) | result)


def answered(question: Question) -> Row:
    """The answer's columns; every error becomes its class and sentence, as the command line would print it."""
    try:
        return answer_row(_answer(question))
    except VramcastError as error:
        return failed(error)
    except (RecursionError, MemoryError, OverflowError):
        return failed(InvalidSpec("the question is larger than can be answered"))
    except Exception as error:
        return {"error": "InternalError", "message": f"{type(error).__name__}: {error}; this is a bug of vramcast"}


def failed(error: VramcastError) -> Row:
    """The columns of a question that cannot be answered."""
    return {"error": type(error).__name__, "message": str(error)}


def _answer(question: Question) -> Any:
    options = dict(question)
    command = options.pop("command", None)
    if not isinstance(command, str) or command not in COMMANDS:
        raise UnknownName.of("command", str(command), COMMANDS)
    return COMMANDS[command].answer(options, _models)
