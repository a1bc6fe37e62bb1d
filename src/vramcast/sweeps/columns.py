"""What the results say of every question: its own options, then the answer or the reason why there is none."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Final, NamedTuple, cast

from vramcast.question.options import Kind
from vramcast.sweeps.commands import KINDS, Question

if TYPE_CHECKING:
    from vramcast.domain.answer import Answer, ServeAnswer

Row = dict[str, Any]
"""Values by column; what is unknown or does not apply is absent."""

LARGEST_INTEGER: Final = 2**63 - 1
"""Files of results hold 64-bit integers; a larger one is left out."""


class Column(NamedTuple):
    """A column of the answer."""

    type: type  # bool, int, float or str
    read: Callable[[Answer], object]  # None: unknown


def _part(name: str, field: str) -> Callable[[Answer], object]:
    """A field of a part of the answer that may be absent."""

    def read(answer: Answer) -> object:
        part = getattr(answer, name, None)
        return None if part is None else getattr(part, field, None)

    return read


def _time(field: str) -> Callable[[Answer], object]:
    """A field of a step's time: training's, or serving's."""
    training, serving = _part("time", field), _part("speed", field)
    return lambda answer: serving(answer) if training(answer) is None else training(answer)


def _price(field: str) -> Callable[[Answer], object]:
    return lambda answer: None if answer.cost is None else getattr(answer.cost.price, field)


def _shortfall(answer: Answer) -> object:
    return getattr(answer, "shortfall", "") or None


def _found(answer: Answer) -> object:
    found = cast("ServeAnswer", answer).found if hasattr(answer, "found") else None
    return None if found is None or found.value is None else str(found.value)


ANSWERED: Final[dict[str, Column]] = {
    "fits": Column(bool, lambda answer: answer.fits),
    "verdict": Column(str, lambda answer: answer.verdict),
    "allocated_bytes": Column(int, lambda answer: answer.peak.allocated_bytes),
    "reserved_bytes": Column(int, lambda answer: answer.peak.reserved_bytes),
    "device_bytes": Column(int, lambda answer: answer.peak.device_bytes),
    "interval_low_bytes": Column(int, lambda answer: answer.interval_bytes[0]),
    "interval_high_bytes": Column(int, lambda answer: answer.interval_bytes[1]),
    "needed_bytes": Column(int, lambda answer: answer.fullest.needed_bytes),
    "capacity_bytes": Column(int, lambda answer: answer.capacity_bytes),
    "parameters": Column(int, lambda answer: answer.num_parameters),
    "kv_tokens": Column(int, _part("capacity", "kv_tokens")),
    "max_concurrency": Column(float, _part("capacity", "concurrency")),
    "longest_context": Column(int, _part("capacity", "longest_context")),
    "step_s": Column(float, _time("step_s")),
    "tokens_per_s": Column(float, _time("tokens_per_s")),
    "tokens_per_s_per_gpu": Column(float, _time("tokens_per_s_per_gpu")),
    "tokens_per_s_per_user": Column(float, _time("tokens_per_s_per_user")),
    "decode_tokens_per_s": Column(float, _time("decode_tokens_per_s")),
    "decode_tokens_per_s_per_user": Column(float, _time("decode_tokens_per_s_per_user")),
    "time_to_first_token_s": Column(float, _time("time_to_first_token_s")),
    "prefill_tokens_per_s": Column(float, _time("prefill_tokens_per_s")),
    "mfu": Column(float, _time("mfu")),
    "price_per_hour": Column(float, _part("cost", "per_hour")),
    "price_per_million_tokens": Column(float, _part("cost", "per_million_tokens")),
    "price_per_run": Column(float, _part("cost", "per_run")),
    "run_hours": Column(float, _part("cost", "run_hours")),
    "price_currency": Column(str, _price("currency")),
    "price_tariff": Column(str, _price("tariff")),
    "price_region": Column(str, _price("region")),
    "price_date": Column(str, _price("date")),
    "found": Column(str, _found),
    "shortfall": Column(str, _shortfall),
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
