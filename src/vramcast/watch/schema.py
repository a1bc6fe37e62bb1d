"""The tables of a recording: one per noun, a column a field, so that nouns and file cannot part ways.

A recording is a SQLite database. `application_id` says that it is ours, `user_version` which schema it has. Sizes are
integers in bytes, times are seconds since 1970, unknown is NULL; a tuple or a dict is JSON text.

    runs              RunInfo        one row each time something began to record into the file
    gpus              Card           `run`, and what does not change about a card
    gpu_samples       GpuSample      `run`, `gpu` = gpus.id
    partition_samples Partition      `sample` = gpu_samples.id
    processes         who a PID is: name, command line, user, container
    process_samples   ProcessSample  `sample` = gpu_samples.id, `process` = processes.id
    torch_samples     TorchSample    `run`
    torch_runs        TorchRun       `run`
    events            Event          `run`
"""

from __future__ import annotations

from functools import cache
from typing import Any, Final, NamedTuple

import msgspec
from msgspec import Struct

from vramcast.domain.observation import (
    Card,
    Event,
    GpuSample,
    Partition,
    ProcessSample,
    RunInfo,
    TorchRun,
    TorchSample,
)

APPLICATION_ID: Final = 0x5652_4157
"""'VRAW': what `file` and SQLite itself show of a database's owner."""
SCHEMA_VERSION: Final = 1

WHO: Final = ("pid", "name", "command", "user", "container", "started_s")
"""Fields of a process that stay as they are: a row of their own, named by each sample."""


class Table(NamedTuple):
    """One table: its rows are `noun`, less `left_out`, behind the columns that say whose they are."""

    name: str
    noun: type[Struct]
    owners: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()
    only: tuple[str, ...] = ()

    @property
    def fields(self) -> tuple[str, ...]:
        """Fields of the noun that are columns."""
        return _fields(self)

    @property
    def nested(self) -> frozenset[str]:
        """Columns that hold JSON text."""
        return frozenset(name for name in self.fields if self.noun.__annotations__[name].startswith(("tuple", "dict")))

    @property
    def insert(self) -> str:
        """The statement that adds a row: owners first, then the fields."""
        return _insert(self)

    @property
    def create(self) -> str:
        """The statement that makes the table."""
        owners = [f'"{name}" INTEGER NOT NULL' for name in self.owners]
        columns = [f'"{field}" {_affinity(self.noun, field)}' for field in self.fields]
        return f"CREATE TABLE IF NOT EXISTS {self.name} ({', '.join(['id INTEGER PRIMARY KEY', *owners, *columns])})"

    def row(self, noun: Struct, *owners: int) -> tuple[Any, ...]:
        """The values of a row."""
        return (*owners, *(_stored(getattr(noun, field)) for field in self.fields))


RUNS: Final = Table("runs", RunInfo)
GPUS: Final = Table("gpus", Card, ("run",))
GPU_SAMPLES: Final = Table("gpu_samples", GpuSample, ("run", "gpu"), ("card", "partitions", "processes"))
PARTITION_SAMPLES: Final = Table("partition_samples", Partition, ("sample",))
PROCESSES: Final = Table("processes", ProcessSample, ("run",), only=WHO)
PROCESS_SAMPLES: Final = Table("process_samples", ProcessSample, ("sample", "process"), WHO)
TORCH_SAMPLES: Final = Table("torch_samples", TorchSample, ("run",))
TORCH_RUNS: Final = Table("torch_runs", TorchRun, ("run",))
EVENTS: Final = Table("events", Event, ("run",))

TABLES: Final = (
    RUNS, GPUS, GPU_SAMPLES, PARTITION_SAMPLES, PROCESSES, PROCESS_SAMPLES, TORCH_SAMPLES, TORCH_RUNS, EVENTS,
)
INDEXES: Final = (
    "CREATE INDEX IF NOT EXISTS gpu_samples_by_time ON gpu_samples (run, gpu, time_s)",
    "CREATE INDEX IF NOT EXISTS process_samples_by_sample ON process_samples (sample)",
    "CREATE INDEX IF NOT EXISTS partition_samples_by_sample ON partition_samples (sample)",
    "CREATE INDEX IF NOT EXISTS torch_samples_by_step ON torch_samples (run, pid, step)",
)

AFFINITIES: Final[tuple[tuple[str, str], ...]] = (("float", "REAL"), ("int", "INTEGER"), ("bool", "INTEGER"))
"""Type of a field, as it is written -> type of its column; everything else is text."""


@cache
def _fields(table: Table) -> tuple[str, ...]:
    names = (field.name for field in msgspec.structs.fields(table.noun))
    return tuple(name for name in names if name not in table.left_out and (not table.only or name in table.only))


@cache
def _insert(table: Table) -> str:
    names = (*table.owners, *table.fields)
    columns = ", ".join(f'"{name}"' for name in names)
    return f'INSERT INTO {table.name} ({columns}) VALUES ({", ".join("?" * len(names))})'


def _affinity(noun: type[Struct], field: str) -> str:
    written = noun.__annotations__[field]
    return next((column for name, column in AFFINITIES if written.partition(" |")[0] == name), "TEXT")


def _stored(value: Any) -> Any:
    """As SQLite keeps it: integers beyond 64 bits, which only a broken counter shows, are unknown."""
    if isinstance(value, (tuple, dict)):
        return msgspec.json.encode(value).decode()
    if isinstance(value, int) and not -(1 << 63) <= value < 1 << 63:
        return None
    return str(value) if isinstance(value, str) else value
