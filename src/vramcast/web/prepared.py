"""Replies that a static site brings along: catalogues, words, and the questions that its pages begin with.

They are the service's own, asked when the site is built, so that a visitor reads them before Python is there.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from hashlib import sha256
from importlib.resources import files
from typing import Any, Final
from urllib.parse import urlsplit

from vramcast.report.messages import LANGUAGES
from vramcast.web.exchange import JSON
from vramcast.web.service import answered

QUESTIONS: Final = "web/page/questions.json"
"""The questions that pages begin with; the pages read the same file."""

LOOKED_UP: Final = (
    "/api/version", "/api/gpus", "/api/instances", "/api/models?query=", "/api/accuracy", "/api/words",
    "/api/options/train", "/api/options/serve", "/api/options/plan-train", "/api/options/plan-serve",
)
"""What pages ask for before any question; of the last ones each says its language in any case."""

SAYS_LANGUAGE: Final = ("/api/words", "/api/options/")
LARGEST_INSIDE: Final = 20_000
"""Of a reply that stands in the page itself; larger ones are files beside it [bytes]."""


def prepared() -> tuple[dict[str, Any], dict[str, bytes]]:
    """Request -> its reply or the name of its file, and name -> file; a request is as `backend.js` spells it."""
    known: dict[str, Any] = {}
    beside: dict[str, bytes] = {}
    for spelled, body in _replies():
        if len(body) <= LARGEST_INSIDE:
            known[spelled] = json.loads(body)
            continue
        name = f"prepared/{sha256(body).hexdigest()[:12]}.json"
        known[spelled], beside[name] = name, body
    return known, beside


def _replies() -> Iterator[tuple[str, bytes]]:
    for path in LOOKED_UP:
        for language in LANGUAGES:
            said = _in_language(path, language)
            yield f"GET {said}", _reply("GET", said)
    for command, question in _questions():
        for language in LANGUAGES:
            said = _in_language(f"/api/{command}", language)
            spelled = json.dumps(sorted(question.items()), ensure_ascii=False, separators=(",", ":"))
            yield f"POST {said} {spelled}", _reply("POST", said, json.dumps(question).encode())


def _in_language(path: str, language: str) -> str:
    """A path as the page asks for it: English is said only by what always says its language."""
    if language == "en" and not path.startswith(SAYS_LANGUAGE):
        return path
    return f"{path}{'&' if '?' in path else '?'}lang={language}"


def _reply(method: str, said: str, body: bytes = b"") -> bytes:
    at = urlsplit(said)
    reply = answered(method, at.path, at.query, {"content-type": JSON} if body else {}, body)
    if reply.status != 200:
        raise RuntimeError(f"{method} {said}: {reply.status}")
    return reply.body


def _questions() -> Iterator[tuple[str, Mapping[str, str]]]:
    known = json.loads((files("vramcast") / QUESTIONS).read_text(encoding="utf-8"))
    for asked in (known["first"], *known["examples"]):
        mode = known["modes"][asked["mode"]]
        yield mode["command"], mode["options"] | asked["given"]
    yield from known["pages"].items()
