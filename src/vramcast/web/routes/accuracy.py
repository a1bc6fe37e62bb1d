"""`/api/accuracy`: every measured case beside its prediction."""

from __future__ import annotations

from functools import cache
from importlib.resources import files
from typing import Any

import msgspec

from vramcast.web.exchange import JSON, Asked, Reply


def accuracy(asked: Asked) -> Reply:
    """Every measured case beside its prediction; `python -m truth.page` writes the file they come from."""
    return Reply(200, JSON, _encoded())


@cache
def _encoded() -> bytes:
    return msgspec.json.encode(cases_of((files("vramcast.web.routes") / "accuracy.json").read_bytes()))


def cases_of(text: bytes) -> dict[str, Any]:
    """The file, where texts that repeat stand once, as one object for each case."""
    packed = msgspec.json.decode(text)
    columns, lists = packed["columns"], packed["lists"]
    return {
        "schema": packed["schema"],
        "groups": packed["groups"],
        "cases": [_case(dict(zip(columns, case, strict=True)), lists) for case in packed["cases"]],
    }


def _case(packed: dict[str, Any], lists: dict[str, list[Any]]) -> dict[str, Any]:
    case = {
        name: lists[name][value] if name in lists else value
        for name, value in packed.items() if value is not None and not (name in lists and value < 0)
    }
    case["source"], *url = case.get("source", ("",))
    if url:
        case["url"] = url[0]
    if case.get("measured") and "predicted" in case:
        case["error"] = round(case["predicted"] / case["measured"] - 1, 5)
    return case
