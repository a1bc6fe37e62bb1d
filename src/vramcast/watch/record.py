"""Recordings: every reading in a SQLite file, written at once, so that neither a kill nor a full disk takes any back.

Write-ahead logging lets many write (each rank's hook, `vramcast watch`) and read at the same time; each reading is one
transaction. A kill loses nothing that was written. A power cut may lose the last readings, never the file
(synchronous = NORMAL) [sqlite] https://www.sqlite.org/wal.html#performance_considerations.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterable
from pathlib import Path
from typing import Final, Self
from urllib.parse import quote

from vramcast.domain.observation import Card, Event, GpuSample, ProcessSample, Reading, RunInfo, TorchRun, TorchSample
from vramcast.errors import SourceError
from vramcast.watch.schema import (
    APPLICATION_ID,
    EVENTS,
    GPU_SAMPLES,
    GPUS,
    INDEXES,
    PARTITION_SAMPLES,
    PROCESS_SAMPLES,
    PROCESSES,
    RUNS,
    SCHEMA_VERSION,
    TABLES,
    TORCH_RUNS,
    TORCH_SAMPLES,
    WHO,
    Table,
)

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
            raise SourceError(f"cannot record into {path}: {error}") from None
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
        raise SourceError(f"no recording {path}; `vramcast watch --record {path}` makes one")
    try:
        database = sqlite3.connect(_address(path, make=make), uri=True, timeout=BUSY_S)
        try:
            _checked(database, path, make=make)
        except BaseException:
            database.close()
            raise
    except sqlite3.Error as error:
        raise SourceError(f"cannot use {path} as a recording: {error}") from None
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
        raise SourceError(f"{path} is not a recording of vramcast, and is left as it is; give another file")
    elif version != SCHEMA_VERSION:
        raise SourceError(
            f"{path} has schema {version} and this vramcast reads {SCHEMA_VERSION}; "
            f"{'use a newer vramcast' if version > SCHEMA_VERSION else 'record into a new file'}"
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
