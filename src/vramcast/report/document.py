"""The answer as the documented JSON: `"schema": 1`, integers in bytes, what is unknown is absent."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import date
from typing import Any

from msgspec.json import encode
from msgspec.json import format as format_json
from msgspec.structs import replace

from vramcast.domain.answer import Answer, Change
from vramcast.question.commands import table_of
from vramcast.question.option import Option
from vramcast.question.options import applied_in
from vramcast.report.plain import SCHEMA, plain
from vramcast.report.price import age_days


def document(answer: Answer, *, today: date | None = None) -> dict[str, Any]:
    """Plain data of the answer; `today` is what the age of a price counts from."""
    return {"schema": SCHEMA, **plain(filled_in(answer, today))}


def filled_in(answer: Answer, today: date | None) -> Answer:
    """An answer with what depends on the day and on the tables of options.

    Where a search found the plan its changes are no options: asked again with one it would find another plan.
    """
    table = table_of(answer.COMMAND)
    changes = answer.changes if answer.found else tuple(applied(change, table) for change in answer.changes)
    cost = answer.cost and replace(answer.cost, age_days=age_days(answer.cost.price, today))
    return replace(answer, changes=changes, cost=cost)


def applied(change: Change, table: Mapping[str, Option]) -> Change:
    """A change with the options to put into a question, where it is made of such."""
    return replace(change, apply=applied_in(change.change, table))


def to_json(answer: Answer, *, today: date | None = None) -> str:
    """The document as text; twenty times as fast as json.dumps writes it with an indent."""
    return format_json(encode(document(answer, today=today)), indent=1).decode()
