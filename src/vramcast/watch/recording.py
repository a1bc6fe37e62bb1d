"""A recording read back into the nouns it was written from."""

from __future__ import annotations

import sqlite3
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeVar

import msgspec
from msgspec import Struct

from vramcast.domain.observation import Card, Event, GpuSample, Partition, ProcessSample, RunInfo, TorchRun, TorchSample
from vramcast.errors import SourceError
from vramcast.watch import schema
from vramcast.watch.record import opened
from vramcast.watch.schema import Table

NounT = TypeVar("NounT", bound=Struct)


MOST_SAID: Final = 300
"""Characters of what is wrong: it may quote what the file holds."""


class Recording(NamedTuple):
    """One run of a recording, each list in the order of time."""

    info: RunInfo
    cards: tuple[Card, ...]
    gpus: tuple[GpuSample, ...]
    torch: tuple[TorchSample, ...]
    events: tuple[Event, ...]
    torch_runs: tuple[TorchRun, ...] = ()


def runs_of(path: Path) -> dict[int, RunInfo]:
    """The runs of a recording by their number, oldest first.

    Raises: SourceError where the file is not one.
    """
    with reading(path) as database:
        return {key: noun for key, _, noun in _rows(database, schema.RUNS, RunInfo)}


def read_run(path: Path, run: int | None = None) -> Recording:
    """One run of a recording; by default its last one.

    Raises: SourceError where the file is not one, holds no such run, or says what cannot be.
    """
    with reading(path) as database:
        infos = {key: noun for key, _, noun in _rows(database, schema.RUNS, RunInfo)}
        if not infos:
            raise SourceError(f"{path} holds no run yet")
        chosen = max(infos) if run is None else run
        if chosen not in infos:
            raise SourceError(f"{path} holds no run {chosen}; its runs: {', '.join(map(str, infos))}")
        cards = {key: card for key, _, card in _rows(database, schema.GPUS, Card, "run = ?", chosen)}
        return Recording(
            infos[chosen], tuple(cards.values()), tuple(_gpu_samples(database, chosen, cards)),
            tuple(noun for _, _, noun in _rows(database, schema.TORCH_SAMPLES, TorchSample, "run = ?", chosen)),
            tuple(noun for _, _, noun in _rows(database, schema.EVENTS, Event, "run = ?", chosen)),
            tuple(noun for _, _, noun in _rows(database, schema.TORCH_RUNS, TorchRun, "run = ?", chosen)),
        )


def _gpu_samples(database: sqlite3.Connection, run: int, cards: dict[int, Card]) -> Iterator[GpuSample]:
    inside = "sample IN (SELECT id FROM gpu_samples WHERE run = ?)"
    processes, partitions = defaultdict(list), defaultdict(list)
    who = _who(database, run)
    for _, owners, values in _values(database, schema.PROCESS_SAMPLES, inside, run):
        sample, process = owners
        processes[sample].append(msgspec.convert(values | who[process], ProcessSample, strict=False))
    for _, (sample,), partition in _rows(database, schema.PARTITION_SAMPLES, Partition, inside, run):
        partitions[sample].append(partition)
    for key, (_, gpu), values in _values(database, schema.GPU_SAMPLES, "run = ?", run):
        yield msgspec.convert(
            values | {"card": cards[gpu], "processes": processes[key], "partitions": partitions[key]},
            GpuSample, strict=False,
        )


def _who(database: sqlite3.Connection, run: int) -> dict[int, dict[str, Any]]:
    return {key: values for key, _, values in _values(database, schema.PROCESSES, "run = ?", run)}


def _rows(
    database: sqlite3.Connection, table: Table, noun: type[NounT], where: str = "1", *values: int
) -> Iterator[tuple[int, tuple[int, ...], NounT]]:
    for key, owners, found in _values(database, table, where, *values):
        yield key, owners, msgspec.convert(found, noun, strict=False)


def _values(
    database: sqlite3.Connection, table: Table, where: str, *values: int
) -> Iterator[tuple[int, tuple[int, ...], dict[str, Any]]]:
    """Key, owners and the fields that are known, of each row in the order of writing."""
    names = ", ".join(f'"{name}"' for name in ("id", *table.owners, *table.fields))
    for row in database.execute(f"SELECT {names} FROM {table.name} WHERE {where} ORDER BY id", values):
        key, *rest = row
        owners, fields = rest[: len(table.owners)], rest[len(table.owners):]
        known = {
            name: msgspec.json.decode(value) if name in table.nested else value
            for name, value in zip(table.fields, fields, strict=True) if value is not None
        }
        yield key, tuple(owners), known


class reading:
    """A recording opened to be read: whatever is wrong with it is one SourceError."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __enter__(self) -> sqlite3.Connection:
        self.database = opened(self.path)
        return self.database

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self.database.close()
        if isinstance(error, (sqlite3.Error, msgspec.MsgspecError, KeyError, UnicodeError, RecursionError)):
            raise SourceError(f"{self.path} is damaged: {str(error)[:MOST_SAID]}") from None
