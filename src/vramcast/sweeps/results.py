"""The results of a sweep: columns of its questions and answers, as a CSV, JSONL or Parquet file, written whole."""

from __future__ import annotations

import csv
import io
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import reduce
from importlib.util import find_spec
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Final, NamedTuple

import msgspec

from vramcast.errors import InvalidSpec, SourceError, text_of
from vramcast.question.options import Kind
from vramcast.sweeps.spec import KINDS, Question

if TYPE_CHECKING:
    from vramcast.domain.answer import Answer


Row = dict[str, Any]
"""Values by column; what is unknown or does not apply is absent."""

LARGEST_INTEGER: Final = 2**63 - 1
"""Files of results hold 64-bit integers; a larger one is left out."""


class Column(NamedTuple):
    """A column of the answer."""

    type: type  # bool, int, float or str
    read: Callable[[Answer], object]  # None: unknown


def _at(*paths: str) -> Callable[[Answer], object]:
    """What stands at the first of these paths where anything is known: "cost.price.region"."""

    def read(answer: Any) -> object:
        found = (reduce(lambda part, name: getattr(part, name, None), path.split("."), answer) for path in paths)
        return next((value for value in found if value is not None), None)

    return read


def _of_time(name: str) -> Column:
    """A figure of training's time, or of serving's."""
    return Column(float, _at(f"time.{name}", f"speed.{name}"))


def _found(answer: Answer) -> object:
    return None if answer.found is None or answer.found.value is None else str(answer.found.value)


ANSWERED: Final[dict[str, Column]] = {
    "fits": Column(bool, _at("fits")),
    "verdict": Column(str, _at("verdict")),
    "allocated_bytes": Column(int, _at("peak.allocated_bytes")),
    "reserved_bytes": Column(int, _at("peak.reserved_bytes")),
    "device_bytes": Column(int, _at("peak.device_bytes")),
    "interval_low_bytes": Column(int, lambda answer: answer.interval_bytes[0]),
    "interval_high_bytes": Column(int, lambda answer: answer.interval_bytes[1]),
    "needed_bytes": Column(int, _at("fullest.needed_bytes")),
    "capacity_bytes": Column(int, _at("capacity_bytes")),
    "parameters": Column(int, _at("num_parameters")),
    "kv_tokens": Column(int, _at("capacity.kv_tokens")),
    "max_concurrency": Column(float, _at("capacity.concurrency")),
    "longest_context": Column(int, _at("capacity.longest_context")),
    "step_s": _of_time("step_s"),
    "tokens_per_s": _of_time("tokens_per_s"),
    "tokens_per_s_per_gpu": _of_time("tokens_per_s_per_gpu"),
    "tokens_per_s_per_user": _of_time("tokens_per_s_per_user"),
    "decode_tokens_per_s": _of_time("decode_tokens_per_s"),
    "decode_tokens_per_s_per_user": _of_time("decode_tokens_per_s_per_user"),
    "time_to_first_token_s": _of_time("time_to_first_token_s"),
    "prefill_tokens_per_s": _of_time("prefill_tokens_per_s"),
    "mfu": _of_time("mfu"),
    "price_per_hour": Column(float, _at("cost.per_hour")),
    "price_per_million_tokens": Column(float, _at("cost.per_million_tokens")),
    "price_per_run": Column(float, _at("cost.per_run")),
    "run_hours": Column(float, _at("cost.run_hours")),
    "price_currency": Column(str, _at("cost.price.currency")),
    "price_tariff": Column(str, _at("cost.price.tariff")),
    "price_region": Column(str, _at("cost.price.region")),
    "price_date": Column(str, _at("cost.price.date")),
    "found": Column(str, _found),
    "shortfall": Column(str, _at("shortfall")),
    "warnings": Column(str, lambda answer: "; ".join(answer.warnings)),
}
"""Named as in the JSON of a single answer; bytes are of the fullest rank in its steady step, `needed_bytes` of its
highest phase."""

FAILED: Final[dict[str, type]] = {"error": str, "message": str}
"""Class and sentence of a question that cannot be answered."""

TYPES: Final[dict[Kind, type]] = {Kind.COUNT: int, Kind.AMOUNT: int, Kind.NUMBER: float, Kind.FLAG: bool}
"""Of a question's own columns; all other kinds are text."""


def columns_of(names: Iterable[str]) -> dict[str, type]:
    """The columns of a sweep whose questions say these names, in order."""
    asked = {name: TYPES.get(KINDS[name], str) for name in names}
    return asked | {name: column.type for name, column in ANSWERED.items()} | FAILED


def question_row(question: Question) -> Row:
    """The columns of a normalised question; a value that its option cannot read is left to the error's sentence."""
    return _cells({name: (TYPES.get(KINDS[name], str), value) for name, value in question.items()})


def answer_row(answer: Answer) -> Row:
    """The columns of an answer."""
    return _cells({name: (column.type, column.read(answer)) for name, column in ANSWERED.items()})


def _cells(values: dict[str, tuple[type, object]]) -> Row:
    cells = {name: _cell(kind, value) for name, (kind, value) in values.items()}
    return {name: cell for name, cell in cells.items() if cell not in (None, "")}


def _cell(kind: type, value: object) -> object:
    """The value as its column's type, None where it is no such thing."""
    if value is None:
        return None
    if kind is str:
        return ",".join(map(str, value)) if isinstance(value, (list, tuple)) else str(value)
    if isinstance(value, bool) or kind is bool:
        return value if kind is bool and isinstance(value, bool) else None
    if kind is int:
        return value if isinstance(value, int) and abs(value) <= LARGEST_INTEGER else None
    return float(value) if isinstance(value, (int, float)) else None


BATCH: Final = 16_384
"""Rows of one Parquet row group [count]."""

Columns = Mapping[str, type]
Writer = Callable[[BinaryIO, Columns, Iterable[Row]], None]


def check_output(path: Path, source: object) -> None:
    """Whether results can be written there, asked before anything is computed.

    Raises: InvalidSpec or SourceError with one sentence
    """
    if path.suffix.lower() not in WRITERS:
        raise InvalidSpec("{}: results are written as {}; give --out such a name", path, ", ".join(WRITERS))
    if path.suffix.lower() == ".parquet" and find_spec("pyarrow") is None:
        raise SourceError(
            "{}: Parquet needs pyarrow; install it with pip install 'vramcast[sweep]', or write --out {}",
            path, path.with_suffix(".csv").name
        )
    if not path.parent.is_dir():
        raise SourceError("{}: there is no folder {}", path, path.parent)
    if path.is_dir():
        raise SourceError("{}: is a folder; give --out the name of a file", path)
    if isinstance(source, (str, Path)) and path.exists() and Path(source).exists() and path.samefile(source):
        raise InvalidSpec("{}: is the file of the questions; give --out another name", path)


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
            "{}: cannot be written ({}); the answers are kept, run the same command again",
            path, error.strerror or error
        ) from None


def _csv(file: BinaryIO, columns: Columns, rows: Iterable[Row]) -> None:
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
    for row in rows:
        file.write(msgspec.json.encode({name: row[name] for name in columns if name in row}, enc_hook=text_of) + b"\n")


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
