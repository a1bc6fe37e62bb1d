"""How tests ask the service."""

import json
from typing import Any, NamedTuple

from vramcast.web.exchange import BYTES, CATALOGUE_ONLY, JSON, Sources
from vramcast.web.service import answered

TRAIN = {"model": "llama-3.2-1b", "gpus": "h100"}
SERVE = {"model": "qwen3-0.6b", "gpus": "l4", "context": "4k"}


class Said(NamedTuple):
    """A reply, read."""

    status: int
    document: Any


def post(path: str, body: Any, *, query: str = "", sources: Sources = CATALOGUE_ONLY) -> Said:
    """A question as JSON, or bytes as they are."""
    raw = isinstance(body, bytes)
    headers = {"content-type": BYTES if raw else JSON}
    reply = answered(
        "POST", f"/api/{path}", query, headers, body if raw else json.dumps(body).encode(), sources=sources
    )
    return Said(reply.status, json.loads(reply.body) if reply.content_type == JSON else reply.body.decode())


def get(path: str, query: str = "") -> Said:
    """What an address answers."""
    reply = answered("GET", f"/api/{path}", query)
    return Said(reply.status, json.loads(reply.body))


def refused(path: str, body: Any, **how: Any) -> str:
    """The one sentence of a refusal."""
    said = post(path, body, **how)
    assert said.status == 422, said
    assert set(said.document) == {"error", "message"}
    sentence: str = said.document["message"]
    assert "\n" not in sentence and "Traceback" not in sentence
    return sentence
