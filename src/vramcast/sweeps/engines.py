"""Where chunks of questions are answered: a table of engines, each a module with `start(settings)`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager
from importlib import import_module
from typing import Final, NamedTuple, Protocol

from vramcast.errors import InvalidSpec, UnknownName
from vramcast.sweeps.worker import Answered, Chunk


class Settings(NamedTuple):
    """How a sweep is run."""

    engine: str = "local"
    workers: int | None = None  # None: as many as there are cores
    address: str | None = None  # of a Ray cluster


class Engine(Protocol):
    """Answers chunks in any order, taking them from the iterator as it has room for them: never far ahead."""

    @property
    def workers(self) -> int:
        """Processes that answer at the same time."""
        ...

    def run(self, chunks: Iterator[Chunk]) -> Iterator[tuple[Chunk, Answered | None]]:
        """Each chunk with its records, or None where it killed every process it was given to."""
        ...


ENGINES: Final[dict[str, str]] = {"local": "vramcast.sweeps.local", "ray": "vramcast.sweeps.on_ray"}
"""Module of each engine, imported when asked for."""


def start(settings: Settings, *, size: int) -> AbstractContextManager[Engine]:
    """The engine that settings ask for, for a sweep of so many questions.

    Raises: UnknownName for another engine, InvalidSpec for settings it has no use for
    """
    if settings.engine not in ENGINES:
        raise UnknownName.of("sweep engine", settings.engine, ENGINES)
    if settings.workers is not None and settings.workers < 1:
        raise InvalidSpec(f"workers={settings.workers} must be 1 or more")
    if settings.address is not None and settings.engine != "ray":
        raise InvalidSpec("--address is that of a Ray cluster; add --engine ray")
    found: AbstractContextManager[Engine] = import_module(ENGINES[settings.engine]).start(settings, size=size)
    return found
