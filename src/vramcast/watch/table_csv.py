"""`--csv`: one row per card and reading; units stand in the names of the columns, unknown is empty."""

from __future__ import annotations

import csv
import io
import os
import sys
from pathlib import Path
from typing import Any, Final

from vramcast.domain.observation import GpuSample, Reading
from vramcast.errors import SourceError
from vramcast.watch.following import Following

FIELDS: Final = (
    "memory_used_bytes", "memory_free_bytes", "memory_reserved_bytes", "sm_share", "memory_share", "power_w",
    "power_limit_w", "energy_j", "sm_clock_hz", "memory_clock_hz", "temperature_c", "memory_temperature_c",
    "pcie_sent_bytes_per_s", "pcie_received_bytes_per_s", "link_sent_bytes_per_s", "link_received_bytes_per_s",
    "ecc_corrected", "ecc_uncorrected",
)
COLUMNS: Final = (
    "time_s", "gpu", "uuid", "model", "memory_total_bytes", *FIELDS, "throttled", "unaccounted_bytes", "processes",
)
"""`processes`: `PID=bytes` of each, the largest first, with blanks between them."""

HEADER: Final = f"{','.join(COLUMNS)}\n".encode()


class CsvTable:
    """Rows into a file, or onto standard output for "-". A file that is there is gone on with."""

    def __init__(self, path: str) -> None:
        self.name = path
        self._number: int | None = None  # of the open file; None: standard output
        self._begun = False
        if path != "-":
            try:
                self._number = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
            except OSError as error:
                raise SourceError(f"cannot write {path}: {error.strerror}") from None
            self._begun = self._goes_on()

    def _goes_on(self) -> bool:
        """Whether the file has rows already: those of a file of something else would be spoiled by ours.

        Raises: SourceError where it holds anything but these columns
        """
        path = Path(self.name)
        if not path.is_file() or not path.stat().st_size:  # a pipe or a device has no beginning
            return False
        try:
            with path.open("rb") as file:
                first = file.read(len(HEADER))
        except OSError as error:
            raise SourceError(f"cannot write {self.name}: {error.strerror}") from None
        if first != HEADER:
            self.close()
            raise SourceError(
                f"{self.name} does not begin with the columns of this CSV, and is left as it is; give another file"
            )
        return True

    def write(self, reading: Reading, following: Following) -> None:
        """A row for each card; a row that was cut short by a failure is taken back."""
        text = io.StringIO()
        rows = csv.writer(text, lineterminator="\n")
        if not self._begun:
            rows.writerow(COLUMNS)
        rows.writerows(row_of(sample) for sample in reading.gpus)
        if self._number is None:
            sys.stdout.write(text.getvalue())
            sys.stdout.flush()
        else:
            _append(self._number, text.getvalue().encode())
        self._begun = True

    def close(self) -> None:
        """Every row is written already."""
        if self._number is not None:
            os.close(self._number)


def _append(number: int, data: bytes) -> None:
    """All of it or nothing."""
    before, written = os.fstat(number).st_size, 0
    try:
        while written < len(data):
            written += os.write(number, data[written:])
    except OSError:
        if written:
            os.ftruncate(number, before)
        raise


def row_of(sample: GpuSample) -> list[Any]:
    """The columns of one card."""
    known = {name: getattr(sample, name) for name in FIELDS}
    held = " ".join(
        f"{process.pid}={'' if process.memory_bytes is None else process.memory_bytes}" for process in sample.processes
    )
    card = sample.card
    return [
        f"{sample.time_s:.3f}", card.index, card.uuid, card.model, _cell(card.memory_total_bytes),
        *map(_cell, known.values()), ", ".join(sample.throttled), _cell(sample.unaccounted_bytes), held,
    ]


def _cell(value: Any) -> Any:
    if value is None:
        return ""
    return f"{value:.6g}" if isinstance(value, float) and abs(value) < 1e6 else round(value)
