"""What goes in and out of the service: a question asked of a route, a reply, and how JSON is read strictly.

The largest bodies, the longest times and the most memory that a visitor's question may cost.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

import msgspec

from vramcast import report
from vramcast.errors import Note, text_of
from vramcast.report.messages import LANGUAGES, Words
from vramcast.units import GIB, KIB, MIB

JSON: Final = "application/json"
BYTES: Final = "application/octet-stream"
HTML: Final = "text/html; charset=utf-8"
MARKDOWN: Final = "text/markdown; charset=utf-8"


class Sources(NamedTuple):
    """Where a visitor's question may take a model from, beside the catalogue and plain numbers."""

    hubs: frozenset[str] = frozenset()  # of visitor.HUBS


CATALOGUE_ONLY: Final = Sources()


Looked = Callable[[bytes], None]
"""Told meanwhile how far a search is, as JSON: `"looked"` at how many plans, the `"front"` of its answer so far."""

TOLD_EVERY_SECONDS: Final = 0.25
"""How often that is."""


class Asked(NamedTuple):
    """One request, checked as far as its route says what it takes."""

    query: Mapping[str, str]
    content_type: str
    body: bytes
    sources: Sources = CATALOGUE_ONLY
    looked: Looked | None = None

    @property
    def fields(self) -> dict[str, Any]:
        """The object that the body holds as JSON."""
        return fields_of(self.body)

    @property
    def words(self) -> Words:
        """The language that the address asks the reply to be in."""
        return Words(choice_field(self.query, "lang", LANGUAGES, "en"))

    def flag(self, name: str) -> bool:
        """Whether the query switches something on."""
        return self.query.get(name, "") not in ("", "0", "false")


class Reply(NamedTuple):
    """What goes back."""

    status: int
    content_type: str
    body: bytes
    headers: tuple[tuple[str, str], ...] = ()


OVERTIME: Final = 504
"""What was asked takes longer than it may. Not 408: clients may repeat what got that, and browsers do, several times
(RFC 9110 section 15.5.9)."""


class Refused(Exception):
    """A request that no route can answer; a question that contradicts itself is a VramcastError instead."""

    def __init__(self, status: int, name: str, message: str, headers: tuple[tuple[str, str], ...] = ()) -> None:
        super().__init__(message)
        self.status = status
        self.name = name
        self.headers = headers


def json_reply(document: Any, status: int = 200, headers: tuple[tuple[str, str], ...] = ()) -> Reply:
    """A document as JSON. msgspec writes it twenty times as fast as json, and every live answer is one."""
    return Reply(status, JSON, msgspec.json.encode(document, enc_hook=text_of), headers)


def error_reply(
    status: int, name: str, message: str, headers: tuple[tuple[str, str], ...] = (), *, query: str = ""
) -> Reply:
    """An error as the API words it; `"said"`: its sentence in the language that the query asks for, if not English."""
    words = Words(language_in(query))
    said = {} if words.language == "en" else {"said": words.said(message)}
    return json_reply({"error": name, "message": message} | said, status, headers)


def language_in(query: str) -> str:
    """The language that the query of an address asks for, however wrong the rest of it is."""
    given = [part.removeprefix("lang=") for part in query[:LONGEST_PATH].split("&") if part.startswith("lang=")]
    return next((language for language in given if language in LANGUAGES), "en")


def fields_of(body: bytes) -> dict[str, Any]:
    """The object of a JSON text, read strictly: a key twice, NaN and anything but an object are refused.

    Raises: Refused
    """
    try:
        found = json.loads(body.decode("utf-8"), object_pairs_hook=_unique, parse_constant=_no_constant)
    except UnicodeDecodeError:
        raise Refused(400, "NotJSON", "the body is not UTF-8; send JSON in UTF-8") from None
    except RecursionError:
        raise Refused(400, "NotJSON", "the body nests too deep; a question is one flat object") from None
    except ValueError as error:
        why = str(error)[:160]
        raise Refused(400, "NotJSON", Note("the body is not JSON ({}); send one object of options", why)) from None
    if not isinstance(found, dict):
        raise Refused(400, "NotJSON", Note("the body holds {}; send one object of options", _kind(found)))
    return found


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in found if names.count(name) > 1)
        raise ValueError(f"key {twice[:80]!r} stands twice in one object")
    return found


def _no_constant(text: str) -> float:
    raise ValueError(f"{text} is no JSON number")


def _kind(value: object) -> str:
    kinds = {list: "a list", str: "a text", bool: "true or false", int: "a number", float: "a number"}
    return kinds.get(type(value), "null")


def text_field(fields: Mapping[str, Any], name: str, usual: str = "") -> str:
    """One text of a body.

    Raises: Refused where it is something else, or longer than any log is read
    """
    value = fields.get(name, usual)
    if not isinstance(value, str):
        raise Refused(422, "InvalidSpec", Note("{!r} must be a text, not {}", name, _kind(value)))
    if len(value) > LARGEST_TEXT:
        raise Refused(413, "TooLarge", Note(
            "{!r} has more than {} MiB; send its beginning and end", name, LARGEST_TEXT >> 20
        ))
    return value


def choice_field(fields: Mapping[str, Any], name: str, choices: Mapping[str, Any] | tuple[str, ...], usual: str) -> str:
    """One text of a body or query that must be among some.

    Raises: Refused
    """
    value = text_field(fields, name, usual)
    if value not in choices:
        raise Refused(422, "UnknownName", Note("{}={!r} is not known; use {}", name, value[:80], ", ".join(choices)))
    return value


def refuse_others(fields: Mapping[str, Any], known: tuple[str, ...]) -> None:
    for name in fields:
        if name not in known:
            raise Refused(422, "UnknownName", Note("unknown key {!r}; known: {}", name[:80], ", ".join(known)))


FONT: Final = ("fontpkg_inter", "files")
"""Package and folder of the page's variable font."""

IN_BROWSER: Final = {"script-src": "'wasm-unsafe-eval'", "worker-src": "'self'"}
"""What Python in the browser needs beside the rest."""


def content_policy(*, in_browser: bool = False) -> str:
    """What the page may load: its own files, and inside a frame of its own the report of a recording.

    Such a frame inherits this policy, so the one script and the one style of that report stand here by their hashes.

    `in_browser`: the policy of the static site, which runs Python in a worker and says it in the page itself.
    """
    style, script = (_hash(f"\n{text}") for text in report.replay_page.style_and_script())
    allowed = {
        "default-src": "'none'",
        "script-src": f"'self' '{script}'",
        "style-src": f"'self' '{style}'",
        "font-src": "'self'",
        "img-src": "'self' data: blob:",
        "connect-src": "'self'",
        "frame-src": "'self' blob:",
        "base-uri": "'none'",
        "form-action": "'none'",
    }
    if in_browser:
        allowed |= {name: f"{allowed.get(name, '')} {more}".strip() for name, more in IN_BROWSER.items()}
    else:
        allowed["frame-ancestors"] = "'none'"  # which a page cannot say of itself
    return "; ".join(f"{name} {value}" for name, value in allowed.items())


def _hash(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


LARGEST_QUESTION: Final = 256 * KIB
"""A question is a few hundred bytes of JSON [bytes]."""

LARGEST_REVIEW: Final = 4 * MIB
"""An object is at most 1.5 MiB in etcd, and an update brings the old one along [bytes]."""

LARGEST_TEXT: Final = 8 * MIB
"""Of a log; the beginning and the end of a longer one say as much [bytes, UTF-8]."""

LARGEST_LOG_BODY: Final = 6 * LARGEST_TEXT
"""That log as JSON, where every byte may be written as an escape of six [bytes]."""

LARGEST_SNAPSHOT: Final = 128 * MIB
"""Packed or not; what it unpacks to is bounded where it is read [bytes]."""

LARGEST_HEADER: Final = 48 * MIB
"""Of a GGUF file: its numbers, its vocabulary and the names of its tensors [bytes]."""

LARGEST_UNPACKED: Final = 2 * GIB
"""Of an uploaded snapshot; the command line reads larger ones [bytes]."""

MOST_BODIES: Final = GIB
"""Of all bodies that arrive or are answered at once: each one within its limit, many would fill the machine [bytes]."""

LONGEST_PATH: Final = 2 * KIB
"""Path and query of an address [bytes]."""

LONGEST_VALUE: Final = 1000
"""One option of a question, as text [characters]."""


class Limit(NamedTuple):
    """What one question may cost."""

    seconds: float
    memory_bytes: int  # of the process that answers, everything in it
    is_slow: bool = False  # answered apart, so that no quick question waits behind it
    answers: int = 5000  # of one process, before a fresh one takes its place: what it keeps of each adds up


QUICK: Final = Limit(seconds=5, memory_bytes=2 * GIB)
SEARCH: Final = Limit(seconds=60, memory_bytes=6 * GIB, is_slow=True, answers=50)
"""A search for plans, a recording replayed."""

MOST_CONNECTIONS: Final = 256
"""Open at once [count]."""

IDLE_SECONDS: Final = 15
"""How long a connection may stay without a request."""

LARGEST_HEAD: Final = 32 * KIB
"""Method, address and headers of a request, as far as they arrive before their end does [bytes]."""

HEAD_SECONDS: Final = 10
"""How long they may take to arrive."""

BODY_SECONDS: Final = 60
"""How long a body may take to arrive."""
