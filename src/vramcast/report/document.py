"""The answer as the documented JSON: `"schema": 1`, integers in bytes, what is unknown is absent."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import date
from typing import Any, Final

from msgspec import to_builtins
from msgspec.json import encode
from msgspec.json import format as format_json
from msgspec.structs import asdict

from vramcast.domain.answer import Answer, Change, Found, PostTrainingAnswer, RankAnswer, ServeAnswer, Tried
from vramcast.errors import text_of
from vramcast.question.options import OPTIONS, Option, applied_in
from vramcast.question.post_training_options import POST_TRAINING_OPTIONS
from vramcast.question.serving_options import SERVE_OPTIONS
from vramcast.report.plain import SCHEMA, known
from vramcast.report.price import cost_document

TABLES: Final[dict[type[Answer], Mapping[str, Option]]] = {
    ServeAnswer: SERVE_OPTIONS, PostTrainingAnswer: POST_TRAINING_OPTIONS,
}
"""Kind of answer -> the options of its question; the others are of training."""


def document(answer: Answer, *, today: date | None = None) -> dict[str, Any]:
    """Plain data of the answer; `today` is what the age of a price counts from."""
    plain: dict[str, Any] = {
        "schema": SCHEMA,
        "question": answer.question,
        "fits": answer.fits,
        "verdict": answer.verdict,
        "peak": asdict(answer.peak) | {"interval_bytes": list(answer.interval_bytes)},
        "needed_bytes": answer.fullest.needed_bytes,
        "high_bytes": answer.high_bytes,
        "capacity_bytes": answer.capacity_bytes,
        "parameters": answer.num_parameters,
        "ranks": [_rank(rank) for rank in answer.ranks],
        "assumptions": list(answer.assumptions),
        "warnings": [*answer.cautions, *answer.warnings],
        "changes": [change_document(change, _table(answer), answer.capacity_bytes) for change in answer.changes],
    }
    if answer.ignored:
        plain["ignored"] = list(answer.ignored)
    if answer.time is not None:
        plain["time"] = known(answer.time)
    if isinstance(answer, ServeAnswer):
        plain |= _serving(answer)
    if isinstance(answer, PostTrainingAnswer):
        more = {name: getattr(answer, name) for name in ("resting", "longest", "shortfall")}
        plain |= known(to_builtins(more, enc_hook=text_of))
    if answer.found is not None:
        plain |= _found(answer.found)
    if answer.host is not None:
        parts = [asdict(part) for part in answer.host.parts]
        plain["host"] = {"fits": answer.host.fits} | known(answer.host) | {"parts": parts}
    if answer.run_hours is not None:
        plain["run_hours"] = answer.run_hours
    if answer.cost is not None:
        plain["price"] = cost_document(answer.cost, today)
    return plain


def change_document(
    change: Change, table: Mapping[str, Option] | None, capacity_bytes: int | None
) -> dict[str, Any]:
    """One change and what it would lead to; `"apply"`: the options to put into the question, where there are such;
    null: to take out of it. `table`: the options that it is written in; None where that plan is not the question's.
    """
    plain = {
        "change": change.change, "device_bytes": change.device_bytes, "fits": change.fits,
        "verdict": change.verdict(capacity_bytes), "cost": change.cost,
    }
    apply = None if table is None else applied_in(change.change, table)
    return plain | known({
        "apply": apply, "concurrency": change.concurrency, "slowdown": change.slowdown, "high_bytes": change.high_bytes,
    })


def _table(answer: Answer) -> Mapping[str, Option] | None:
    """The options that changes of an answer are written in; None where a search found the plan: asked again with a
    change it would find another one."""
    if answer.found is not None:
        return None
    return next((table for kind, table in TABLES.items() if isinstance(answer, kind)), OPTIONS)


def _serving(answer: ServeAnswer) -> dict[str, Any]:
    """What `serve` adds; the parts an engine has no notion of are absent."""
    capacity = answer.capacity
    return known({
        "shortfall": answer.shortfall,
        "capacity": capacity and {"kv_tokens": capacity.kv_tokens} | to_builtins(capacity, enc_hook=text_of),
        "startup": answer.startup or None,
        "time": None if answer.speed is None else known(answer.speed),
        "load": None if answer.load is None else asdict(answer.load),
        "fleet": None if answer.fleet is None else asdict(answer.fleet),
        "served": None if answer.served is None else known(to_builtins(answer.served)),
    })


def _found(found: Found) -> dict[str, Any]:
    """`"found"`: what the search came to; `"tried"`: plans next to it. Both absent in other answers."""
    nearest = found.nearest_failing
    plain = {"goal": found.goal, "num_tried": found.num_tried, "what": found.what, "value": found.value}
    plain = {name: value for name, value in plain.items() if value is not None}  # a plan may have no options to name
    plain |= known({"command": found.command, "nearest_failing": None if nearest is None else _tried(nearest)})
    return {"found": plain, "tried": [_tried(tried) for tried in found.tried]}


def _tried(tried: Tried) -> dict[str, Any]:
    return known(tried) | {"verdict": tried.fit}


def to_json(answer: Answer, *, today: date | None = None) -> str:
    """The document as text; twenty times as fast as json.dumps writes it with an indent."""
    return format_json(encode(document(answer, today=today), enc_hook=text_of), indent=1).decode()


def _rank(rank: RankAnswer) -> dict[str, Any]:
    plain: dict[str, Any] = to_builtins(rank, enc_hook=text_of)
    plain["peak"]["interval_bytes"] = list(plain.pop("interval_bytes"))
    plain.pop("chance_to_fit", None)  # absent where it is not known
    return plain | {"ledger": list(plain["ledger"])}
