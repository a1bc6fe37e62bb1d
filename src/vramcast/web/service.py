"""The JSON API without a transport: what the local server answers, and the same code in a browser under Pyodide.

Routes are one table. Nothing here opens a socket, starts a thread or a process, or imports what only a server needs.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any, Final, NamedTuple
from urllib.parse import parse_qsl

from vramcast.errors import Note, VramcastError
from vramcast.report.messages import LANGUAGES
from vramcast.web.exchange import (
    BYTES,
    CATALOGUE_ONLY,
    JSON,
    LARGEST_HEADER,
    LARGEST_LOG_BODY,
    LARGEST_QUESTION,
    LARGEST_REVIEW,
    LARGEST_SNAPSHOT,
    LONGEST_PATH,
    QUICK,
    SEARCH,
    Asked,
    Limit,
    Looked,
    Refused,
    Reply,
    Sources,
    choice_field,
    error_reply,
    json_reply,
)

LOG: Final = logging.getLogger("vramcast.web")

PREFIX: Final = "/api/"

QUESTION: Final = {JSON: LARGEST_QUESTION}
RECORDING: Final = {BYTES: LARGEST_SNAPSHOT}
TEXT_OR_RECORDING: Final = {JSON: LARGEST_LOG_BODY, BYTES: LARGEST_SNAPSHOT}


class Route(NamedTuple):
    """One address."""

    method: str
    module: str  # of vramcast.web.routes
    function: str
    takes: Mapping[str, int] = {}  # content type of a body -> the most of it [bytes]
    query: tuple[str, ...] = ()  # parameters of its own
    limit: Limit = QUICK

    @property
    def parameters(self) -> tuple[str, ...]:
        """All parameters: every reply may be asked for in a language."""
        return (*self.query, "lang")


ROUTES: Final[dict[str, Route]] = {
    "train": Route("POST", "answers", "train", QUESTION),
    "serve": Route("POST", "answers", "serve", QUESTION),
    "plan/train": Route("POST", "answers", "plan_train", QUESTION, limit=SEARCH),
    "plan/serve": Route("POST", "answers", "plan_serve", QUESTION, limit=SEARCH),
    "oom": Route("POST", "reports", "oom", TEXT_OR_RECORDING, ("snapshot", "checks", "name", "job", "format"), SEARCH),
    "replay": Route(
        "POST", "reports", "replay", RECORDING,
        ("format", "name", "device", "leaks", "alloc-conf", "all-confs", "capacity", "top", "blocks"), SEARCH,
    ),
    "matrix": Route("POST", "looks", "matrix", QUESTION, limit=SEARCH),
    "step": Route("POST", "looks", "step", QUESTION, limit=SEARCH),
    "choices": Route("POST", "looks", "choices", QUESTION),
    "files": Route("POST", "answers", "files", QUESTION, limit=SEARCH),
    "report": Route("POST", "reports", "report", {JSON: LARGEST_LOG_BODY}, limit=SEARCH),
    "network": Route(
        "POST", "catalogue", "network", {JSON: LARGEST_QUESTION, BYTES: LARGEST_HEADER}, ("name", "size")
    ),
    "validate": Route("POST", "admission", "validate", {JSON: LARGEST_REVIEW}, ("timeout",)),
    "mutate": Route("POST", "admission", "mutate", {JSON: LARGEST_REVIEW}, ("timeout",)),
    "words": Route("GET", "catalogue", "words"),
    "options/train": Route("GET", "catalogue", "train_options"),
    "options/serve": Route("GET", "catalogue", "serve_options"),
    "options/plan-train": Route("GET", "catalogue", "plan_train_options"),
    "options/plan-serve": Route("GET", "catalogue", "plan_serve_options"),
    "models": Route("GET", "catalogue", "models", query=("query",)),
    "gpus": Route("GET", "catalogue", "gpus", query=("query",)),
    "instances": Route("GET", "catalogue", "instances", query=("query",)),
    "accuracy": Route("GET", "catalogue", "accuracy"),
    "openapi.json": Route("GET", "openapi", "description"),
    "version": Route("GET", "catalogue", "version"),
}
"""Path after /api/ -> what answers."""


def answered(
    method: str, path: str, query: str = "", headers: Mapping[str, str] | None = None, body: bytes = b"", *,
    sources: Sources = CATALOGUE_ONLY, looked: Looked | None = None,
) -> Reply:
    """The reply to one request; never raises, whatever the request is.

    Args:
        method: of HTTP; HEAD is answered as GET, who sends it leaves out the body
        query: what stands after "?" in the address
        headers: by name in lower case
        sources: where models may come from
        looked: told meanwhile how far a search is
    """
    try:
        headers = headers or {}
        route = route_of(method, path, headers)
        if len(body) > most_bytes(route, headers):
            raise too_large(route, headers)
        asked = Asked(_query(route, query), content_type(headers), body, sources, looked)
        found = _function(route)(asked)
        return found if isinstance(found, Reply) else json_reply(found)
    except Refused as refused:
        return error_reply(refused.status, refused.name, str(refused), refused.headers, query=query)
    except VramcastError as error:
        return error_reply(422, type(error).__name__, str(error), query=query)
    except (RecursionError, MemoryError, OverflowError):
        return error_reply(422, "InvalidSpec", "the question is larger than can be answered", query=query)
    except Exception:
        return internal_error(f"{method} {path}", query)


def route_of(method: str, path: str, headers: Mapping[str, str]) -> Route:
    """What answers a request, as far as its head tells; a server asks this before it reads a body.

    Raises: Refused
    """
    name = path.removeprefix(PREFIX)
    route = ROUTES.get(name) if path.startswith(PREFIX) else None
    if route is None:
        raise Refused(404, "UnknownPath", Note("there is no {!r}; /api/openapi.json lists what there is", path[:80]))
    allowed = (route.method, "HEAD") if route.method == "GET" else (route.method,)
    if method not in allowed:
        known = ", ".join(allowed)
        raise Refused(405, "WrongMethod", Note("{} takes {}, not {!r}", path, known, method[:20]), (("allow", known),))
    if headers.get("content-encoding", "identity").strip().lower() not in ("", "identity"):
        raise Refused(415, "WrongEncoding", "compressed bodies are not read; send the body as it is")
    if route.takes and content_type(headers) not in route.takes:
        raise Refused(415, "WrongType", Note("{} takes {}; say so in Content-Type", path, " or ".join(route.takes)))
    return route


def content_type(headers: Mapping[str, str]) -> str:
    return headers.get("content-type", "").partition(";")[0].strip().lower()


def most_bytes(route: Route, headers: Mapping[str, str]) -> int:
    """The largest body that a route takes [bytes]."""
    return route.takes.get(content_type(headers), 0)


def too_large(route: Route, headers: Mapping[str, str]) -> Refused:
    """The refusal of a body that is too large."""
    most, kind = most_bytes(route, headers), content_type(headers)
    if not most:
        return Refused(413, "TooLarge", Note("{} takes no body here; ask by the address alone", route.method))
    size = f"{most >> 20} MiB" if most >= 1 << 20 else f"{most >> 10} KiB"
    instead = "the command line, vramcast replay FILE, reads larger ones" if kind == BYTES else "send less"
    return Refused(413, "TooLarge", Note("the body has more than {}; {}", size, instead))


def internal_error(what: str, query: str = "") -> Reply:
    """The reply to our own mistake: a reference that the log has too, and nothing of the cause."""
    reference = secrets.token_hex(4)
    LOG.exception("%s failed, reference %s", what[:200].encode("ascii", "backslashreplace").decode(), reference)
    message = Note("this is a bug of vramcast; please report it with the question you asked (reference {})", reference)
    return error_reply(500, "InternalError", message, query=query)


def _query(route: Route, text: str) -> dict[str, str]:
    """The parameters of the address; of one given twice the refusal.

    Raises: Refused
    """
    if len(text) > LONGEST_PATH:
        raise Refused(414, "TooLarge", Note(
            "the address has more than {} KiB; send questions as a body", LONGEST_PATH >> 10
        ))
    try:
        pairs = parse_qsl(text, keep_blank_values=True, max_num_fields=32, errors="strict")
    except ValueError:
        raise Refused(400, "BadAddress", "the query of the address cannot be read; write name=value&...") from None
    found = dict(pairs)
    if len(found) != len(pairs):
        raise Refused(400, "BadAddress", "the query of the address names a parameter twice; give it once")
    for name in found:
        if name not in route.parameters:
            known = ", ".join(route.parameters)
            raise Refused(400, "BadAddress", Note("unknown parameter {!r} of the address; known: {}", name[:80], known))
    choice_field(found, "lang", LANGUAGES, "en")
    return found


def _function(route: Route) -> Callable[[Asked], Any]:
    function: Callable[[Asked], Any] = getattr(import_module(f"vramcast.web.routes.{route.module}"), route.function)
    return function
