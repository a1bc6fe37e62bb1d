"""Recordings: every reading in a SQLite file, one table per noun, a column a field, written at once and read back.

`application_id` says that a file is ours, `user_version` which schema it has. Sizes are integers in bytes, times are
seconds since 1970, unknown is NULL; a tuple or a dict is JSON text.

    runs              RunInfo        one row each time something began to record into the file
    gpus              Card           `run`, and what does not change about a card
    gpu_samples       GpuSample      `run`, `gpu` = gpus.id
    partition_samples Partition      `sample` = gpu_samples.id
    processes         who a PID is: name, command line, user, container
    process_samples   ProcessSample  `sample` = gpu_samples.id, `process` = processes.id
    torch_samples     TorchSample    `run`
    torch_runs        TorchRun       `run`
    events            Event          `run`

Write-ahead logging lets many write (each rank's hook, `vramcast watch`) and read at the same time; each reading is one
transaction, so that neither a kill nor a full disk takes any back. A power cut may lose the last readings, never the
file (synchronous = NORMAL) [sqlite] https://www.sqlite.org/wal.html#performance_considerations.
"""

from __future__ import annotations

import os
import sqlite3
from collections import defaultdict
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any, Final, NamedTuple, Self, TypeVar
from urllib.parse import quote

import msgspec
from msgspec import Struct

from vramcast.domain.observation import (
    Card,
    Event,
    GpuSample,
    Partition,
    ProcessSample,
    Reading,
    RunInfo,
    TorchRun,
    TorchSample,
)
from vramcast.errors import SourceError, text_of

APPLICATION_ID: Final = 0x5652_4157
"""'VRAW': what `file` and SQLite itself show of a database's owner."""
SCHEMA_VERSION: Final = 1

WHO: Final = ("pid", "name", "command", "user", "container", "started_s")
"""Fields of a process that stay as they are: a row of their own, named by each sample."""


class Table(Struct, frozen=True, dict=True):
    """One table: its rows are `noun`, less `left_out`, behind the columns that say whose they are."""

    name: str
    noun: type[Struct]
    owners: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()
    only: tuple[str, ...] = ()

    @cached_property
    def fields(self) -> tuple[str, ...]:
        """Fields of the noun that are columns."""
        names = (field.name for field in msgspec.structs.fields(self.noun))
        return tuple(name for name in names if name not in self.left_out and (not self.only or name in self.only))

    @cached_property
    def nested(self) -> frozenset[str]:
        """Columns that hold JSON text."""
        return frozenset(name for name in self.fields if self.noun.__annotations__[name].startswith(("tuple", "dict")))

    @cached_property
    def insert(self) -> str:
        """The statement that adds a row: owners first, then the fields."""
        names = (*self.owners, *self.fields)
        columns = ", ".join(f'"{name}"' for name in names)
        return f'INSERT INTO {self.name} ({columns}) VALUES ({", ".join("?" * len(names))})'

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


def _affinity(noun: type[Struct], field: str) -> str:
    written = noun.__annotations__[field]
    return next((column for name, column in AFFINITIES if written.partition(" |")[0] == name), "TEXT")


def _stored(value: Any) -> Any:
    """As SQLite keeps it: integers beyond 64 bits, which only a broken counter shows, are unknown."""
    if isinstance(value, (tuple, dict)):
        return msgspec.json.encode(value, enc_hook=text_of).decode()
    if isinstance(value, int) and not -(1 << 63) <= value < 1 << 63:
        return None
    return str(value) if isinstance(value, str) else value


BUSY_S: Final = 10.0
"""How long a writer waits for another one."""


class Recorder:
    """Appends one run to a recording. Not for several threads; several processes each open their own."""

    def __init__(self, database: sqlite3.Connection, run: int, path: Path) -> None:
        self.database = database
        self.run = run
        self.path = path
        self._gpus: dict[str, int] = {}
        self._processes: dict[tuple[object, ...], int] = {}

    @classmethod
    def open(cls, path: Path, info: RunInfo) -> Self:
        """Make the file or go on in it, and note that a run began.

        Raises: SourceError where the file is not a recording, is of a newer schema, or cannot be written.
        """
        database = opened(path, make=True)
        try:
            with database:
                run = _inserted(database, RUNS, RUNS.row(info))
        except sqlite3.Error as error:
            database.close()
            raise SourceError("cannot record into {}: {}", path, error) from None
        return cls(database, run, path)

    def write(self, reading: Reading) -> None:
        """One reading, whole or not at all.

        Raises: sqlite3.Error where it could not be written (a full disk); everything before it stays.
        """
        gpus, processes = dict(self._gpus), dict(self._processes)
        try:
            with self.database:
                for sample in reading.gpus:
                    self._write_gpu(sample)
                self._write_events(reading.events)
        except sqlite3.Error:
            # rows that the transaction took back are unknown again
            self._gpus, self._processes = gpus, processes
            raise

    def write_torch(
        self, samples: Iterable[TorchSample], events: Iterable[Event] = (), runs: Iterable[TorchRun] = ()
    ) -> None:
        """What training processes say of themselves, in one transaction."""
        with self.database:
            self.database.executemany(TORCH_RUNS.insert, [TORCH_RUNS.row(run, self.run) for run in runs])
            self.database.executemany(TORCH_SAMPLES.insert, [TORCH_SAMPLES.row(sample, self.run) for sample in samples])
            self._write_events(events)

    def close(self) -> None:
        """Fold the write-ahead log into the file, where there is room for it, and let go of it."""
        self.database.close()

    def _write_events(self, events: Iterable[Event]) -> None:
        self.database.executemany(EVENTS.insert, [EVENTS.row(event, self.run) for event in events])

    def _write_gpu(self, sample: GpuSample) -> None:
        row = GPU_SAMPLES.row(sample, self.run, self._gpu(sample.card))
        written = _inserted(self.database, GPU_SAMPLES, row)
        self.database.executemany(
            PARTITION_SAMPLES.insert, [PARTITION_SAMPLES.row(part, written) for part in sample.partitions]
        )
        self.database.executemany(
            PROCESS_SAMPLES.insert,
            [PROCESS_SAMPLES.row(process, written, self._process(process)) for process in sample.processes],
        )

    def _gpu(self, card: Card) -> int:
        if card.uuid not in self._gpus:
            self._gpus[card.uuid] = _inserted(self.database, GPUS, GPUS.row(card, self.run))
        return self._gpus[card.uuid]

    def _process(self, process: ProcessSample) -> int:
        who = tuple(getattr(process, field) for field in WHO)
        if who not in self._processes:
            self._processes[who] = _inserted(self.database, PROCESSES, PROCESSES.row(process, self.run))
        return self._processes[who]


def opened(path: Path, *, make: bool = False) -> sqlite3.Connection:
    """A recording, ready to be read or, with `make`, written; without it the file must be there.

    Raises: SourceError, saying what is wrong with the file.
    """
    if not make and not path.is_file():
        raise SourceError("no recording {}; `vramcast watch --record {}` makes one", path, path)
    try:
        database = sqlite3.connect(_address(path, make=make), uri=True, timeout=BUSY_S)
        try:
            _checked(database, path, make=make)
        except BaseException:
            database.close()
            raise
    except sqlite3.Error as error:
        raise SourceError("cannot use {} as a recording: {}", path, error) from None
    return database


def _address(path: Path, *, make: bool) -> str:
    mode = "mode=rwc" if make else "mode=ro"
    if not make and not Path(f"{path}-wal").exists():
        mode += "&immutable=1"  # nobody writes; SQLite would make a log to read it, and leave it beside the recording
    return f"file:{quote(os.fspath(path.absolute()))}?{mode}"


def _checked(database: sqlite3.Connection, path: Path, *, make: bool) -> None:
    """Raise SourceError unless the file is a recording of this schema; where it is new and empty, make it one."""
    database.execute("PRAGMA trusted_schema = OFF")
    owner = database.execute("PRAGMA application_id").fetchone()[0]
    version = database.execute("PRAGMA user_version").fetchone()[0]
    kinds = {kind for (kind,) in database.execute("SELECT DISTINCT type FROM sqlite_master")}
    if owner == 0 and not kinds and make:
        database.execute("PRAGMA journal_mode = WAL")
        _make(database)
    elif owner != APPLICATION_ID or kinds - {"table", "index"}:
        raise SourceError("{} is not a recording of vramcast, and is left as it is; give another file", path)
    elif version != SCHEMA_VERSION:
        raise SourceError(
            "{} has schema {} and this vramcast reads {}; {}",
            path, version, SCHEMA_VERSION,
            "use a newer vramcast" if version > SCHEMA_VERSION else "record into a new file"
        )
    if make:
        database.execute("PRAGMA synchronous = NORMAL")


def _make(database: sqlite3.Connection) -> None:
    """The tables, in one transaction: two that begin at once find either nothing or all of them."""
    with database:
        database.execute("BEGIN IMMEDIATE")
        for table in TABLES:
            database.execute(table.create)
        for index in INDEXES:
            database.execute(index)
        database.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        database.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")


def _inserted(database: sqlite3.Connection, table: Table, row: tuple[object, ...]) -> int:
    key = database.execute(table.insert, row).lastrowid
    assert key is not None
    return key


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
        return {key: noun for key, _, noun in rows_of(database, RUNS, RunInfo)}


def read_run(path: Path, run: int | None = None) -> Recording:
    """One run of a recording; by default its last one.

    Raises: SourceError where the file is not one, holds no such run, or says what cannot be.
    """
    with reading(path) as database:
        infos = {key: noun for key, _, noun in rows_of(database, RUNS, RunInfo)}
        if not infos:
            raise SourceError("{} holds no run yet", path)
        chosen = max(infos) if run is None else run
        if chosen not in infos:
            raise SourceError("{} holds no run {}; its runs: {}", path, chosen, ", ".join(map(str, infos)))
        cards = {key: card for key, _, card in rows_of(database, GPUS, Card, "run = ?", chosen)}
        return Recording(
            infos[chosen], tuple(cards.values()), tuple(_gpu_samples(database, chosen, cards)),
            tuple(noun for _, _, noun in rows_of(database, TORCH_SAMPLES, TorchSample, "run = ?", chosen)),
            tuple(noun for _, _, noun in rows_of(database, EVENTS, Event, "run = ?", chosen)),
            tuple(noun for _, _, noun in rows_of(database, TORCH_RUNS, TorchRun, "run = ?", chosen)),
        )


def _gpu_samples(database: sqlite3.Connection, run: int, cards: dict[int, Card]) -> Iterator[GpuSample]:
    inside = "sample IN (SELECT id FROM gpu_samples WHERE run = ?)"
    processes, partitions = defaultdict(list), defaultdict(list)
    who = {key: values for key, _, values in _values(database, PROCESSES, "run = ?", run)}
    for _, owners, values in _values(database, PROCESS_SAMPLES, inside, run):
        sample, process = owners
        processes[sample].append(msgspec.convert(values | who[process], ProcessSample, strict=False))
    for _, (sample,), partition in rows_of(database, PARTITION_SAMPLES, Partition, inside, run):
        partitions[sample].append(partition)
    for key, (_, gpu), values in _values(database, GPU_SAMPLES, "run = ?", run):
        yield msgspec.convert(
            values | {"card": cards[gpu], "processes": processes[key], "partitions": partitions[key]},
            GpuSample, strict=False,
        )


def rows_of(
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


@contextmanager
def reading(path: Path) -> Iterator[sqlite3.Connection]:
    """A recording opened to be read: whatever is wrong with it is one SourceError."""
    with closing(opened(path)) as database:
        try:
            yield database
        except (sqlite3.Error, msgspec.MsgspecError, KeyError, UnicodeError, RecursionError) as error:
            raise SourceError("{} is damaged: {}", path, str(error)[:MOST_SAID]) from None
