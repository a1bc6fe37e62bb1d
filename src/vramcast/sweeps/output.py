"""The results of a sweep as a file: CSV, JSONL or Parquet, written whole or not at all."""

from __future__ import annotations

import csv
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from importlib.util import find_spec
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO, Final

from vramcast.errors import InvalidSpec, SourceError
from vramcast.sweeps.columns import Row

BATCH: Final = 16_384
"""Rows of one Parquet row group [count]."""

Columns = Mapping[str, type]
Writer = Callable[[BinaryIO, Columns, Iterable[Row]], None]


def check_output(path: Path, source: object) -> None:
    """Whether results can be written there, asked before anything is computed.

    Raises: InvalidSpec or SourceError with one sentence
    """
    if path.suffix.lower() not in WRITERS:
        raise InvalidSpec(f"{path}: results are written as {', '.join(WRITERS)}; give --out such a name")
    if path.suffix.lower() == ".parquet" and find_spec("pyarrow") is None:
        raise SourceError(
            f"{path}: Parquet needs pyarrow; install it with pip install 'vramcast[sweep]', or write "
            f"--out {path.with_suffix('.csv').name}"
        )
    if not path.parent.is_dir():
        raise SourceError(f"{path}: there is no folder {path.parent}")
    if path.is_dir():
        raise SourceError(f"{path}: is a folder; give --out the name of a file")
    if isinstance(source, (str, Path)) and path.exists() and Path(source).exists() and path.samefile(source):
        raise InvalidSpec(f"{path}: is the file of the questions; give --out another name")


def write_results(path: Path, columns: Columns, rows: Iterable[Row]) -> None:
    """Write all rows; whatever stood there before stays until the new file is complete.

    Raises: SourceError when it cannot be written
    """
    partial = path.with_name(path.name + ".part")
    try:
        with partial.open("wb") as file:
            WRITERS[path.suffix.lower()](file, columns, rows)
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
    except OSError as error:
        partial.unlink(missing_ok=True)
        raise SourceError(
            f"{path}: cannot be written ({error.strerror or error}); the answers are kept, run the same command again"
        ) from None


def _csv(file: BinaryIO, columns: Columns, rows: Iterable[Row]) -> None:
    import io

    text = io.TextIOWrapper(file, encoding="utf-8", newline="", write_through=True)
    lines = csv.writer(text, lineterminator="\n")
    lines.writerow(columns)
    for row in rows:
        lines.writerow([_text(row.get(name)) for name in columns])
    text.detach()


def _text(value: object) -> object:
    if isinstance(value, bool):
        return "true" if value else "false"
    return "" if value is None else value


def _jsonl(file: BinaryIO, columns: Columns, rows: Iterable[Row]) -> None:
    import msgspec

    for row in rows:
        file.write(msgspec.json.encode({name: row[name] for name in columns if name in row}) + b"\n")


def _parquet(file: BinaryIO, columns: Columns, rows: Iterable[Row]) -> None:
    import pyarrow as arrow
    import pyarrow.parquet as parquet

    types: dict[type, Any] = {bool: arrow.bool_(), int: arrow.int64(), float: arrow.float64(), str: arrow.string()}
    schema = arrow.schema([(name, types[kind]) for name, kind in columns.items()])
    with parquet.ParquetWriter(file, schema) as writer:
        for batch in _batches(rows):
            writer.write_table(arrow.Table.from_pylist(batch, schema=schema))


def _batches(rows: Iterable[Row]) -> Iterator[list[Row]]:
    iterator = iter(rows)
    while batch := list(islice(iterator, BATCH)):
        yield batch


WRITERS: Final[dict[str, Writer]] = {".csv": _csv, ".jsonl": _jsonl, ".parquet": _parquet}
"""How results are written, by the end of the file's name."""
