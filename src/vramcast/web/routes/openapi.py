"""The API described as OpenAPI 3.1: questions from the tables of options, replies from the shapes of documents."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from importlib import import_module
from typing import Any, Final

import msgspec

from vramcast.question.options import Kind, Option
from vramcast.report.messages import LANGUAGES
from vramcast.version import __version__
from vramcast.web.documents import REPLIES, Error
from vramcast.web.exchange import BYTES, HTML, JSON, LARGEST_TEXT, LONGEST_PATH, LONGEST_VALUE, MARKDOWN, Asked
from vramcast.web.routes import answers, catalogue, looks, reports
from vramcast.web.service import PREFIX, ROUTES, Route

TEMPLATE: Final = "#/components/schemas/{name}"

TEXT: Final = {"type": "string", "maxLength": LONGEST_VALUE}
NUMBER_TEXT: Final = {"type": "string", "pattern": "^[0-9][0-9_,.]*[kKmMbBtT]?$", "maxLength": 24}
KINDS: Final[dict[Kind, dict[str, Any]]] = {
    Kind.COUNT: {"anyOf": [{"type": "integer", "minimum": 0}, NUMBER_TEXT]},
    Kind.AMOUNT: {"anyOf": [{"type": "integer", "minimum": 1}, NUMBER_TEXT]},
    Kind.NUMBER: {"anyOf": [{"type": "number", "minimum": 0}, NUMBER_TEXT]},
    Kind.TEXT: TEXT,
    Kind.FLAG: {"type": "boolean"},
    Kind.NAMES: {"anyOf": [TEXT, {"type": "array", "items": TEXT, "maxItems": LONGEST_VALUE}]},
}

SWITCH: Final = {"type": "string", "enum": ["0", "1"]}
QUERY: Final[dict[str, dict[str, Any]]] = {
    "lang": {"type": "string", "enum": list(LANGUAGES)},
    "format": {"type": "string", "enum": list(reports.FORMATS)},
    "leaks": SWITCH, "all-confs": SWITCH, "blocks": SWITCH, "checks": SWITCH, "snapshot": SWITCH,
    "device": {"type": "integer", "minimum": 0, "maximum": reports.MOST_DEVICE},
    "top": {"type": "integer", "minimum": 1, "maximum": reports.MOST_TOP},
    "timeout": TEXT | {"description": "what an API server of Kubernetes adds"},
    "query": TEXT, "name": TEXT, "size": {"type": "integer", "minimum": 0}, "alloc-conf": TEXT, "capacity": TEXT,
    "job": {"type": "string", "maxLength": LONGEST_PATH, "description": "of a recording: the job, an object as JSON"},
}
"""Parameter of an address -> its schema."""

FILES: Final = dict.fromkeys(("oom", "replay", "report"), (HTML, MARKDOWN)) | {"step": (BYTES,)}
"""Routes that answer with files -> their types."""

STATUSES: Final[dict[str, str]] = {
    "400": "no JSON, an address that cannot be read, or a body that does not arrive",
    "404": "no such path", "405": "another method", "413": "too large",
    "414": "address too long", "415": "another content type", "421": "another host's name",
    "422": "the question has no answer: one sentence why",
    "500": "a bug of vramcast, with a reference", "503": "too many questions at once", "504": "over its time",
}

Schema = dict[str, Any]


def description(asked: Asked) -> Schema:
    """This description, as OpenAPI 3.1."""
    return described()


@cache
def described() -> Schema:
    nouns = [noun for shapes in REPLIES.values() for noun in shapes]
    schemas, components = msgspec.json.schema_components([*nouns, Error], ref_template=TEMPLATE)
    names = dict(zip([*nouns, Error], schemas, strict=True))
    components |= {f"Question-{command.replace(' ', '-')}": question(command) for command in catalogue.NOUNS}
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "vramcast", "version": __version__,
            "description": "How much GPU memory a job takes. Replies are the documents that the command line prints "
                           "with --json; integers are bytes, what is unknown is absent.",
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "servers": [{"url": "/"}],
        "paths": {
            PREFIX + name: {route.method.lower(): _operation(name, route, names)} for name, route in ROUTES.items()
        },
        "components": {"schemas": components},
    }


def question(command: str) -> Schema:
    """The body of a question: every option that a visitor may give."""
    rows = catalogue.asked_options(command)
    return {
        "type": "object", "additionalProperties": False,
        "properties": {name: _option(option) | {"description": option.help} for name, option in rows.items()},
    }


def _option(option: Option) -> Schema:
    if option.versioned and option.kind is Kind.CHOICE:
        return {"type": "string", "pattern": f"^({'|'.join(option.choices)})(@.*)?$"}
    if option.kind is Kind.CHOICE:
        return {"type": "string", "enum": list(option.choices)}
    return KINDS[option.kind]


def _operation(name: str, route: Route, names: Mapping[Any, Schema]) -> Schema:
    said = getattr(import_module(f"vramcast.web.routes.{route.module}"), route.function).__doc__ or ""
    error = {JSON: {"schema": {"$ref": TEMPLATE.format(name=Error.__name__)}}}
    found: Schema = {
        "operationId": name.replace("/", "-"),
        "summary": said.partition("\n")[0],
        "responses": {"200": _answered(name, names)} | {
            status: {"description": text, "content": error} for status, text in STATUSES.items()
        },
    }
    found["parameters"] = [{"name": key, "in": "query", "schema": QUERY[key]} for key in route.parameters]
    if route.takes:
        content = {kind: {"schema": _body(name) if kind == JSON else {}} for kind in route.takes}
        found["requestBody"] = {"required": True, "content": content}
    return found


def _answered(name: str, names: Mapping[Any, Schema]) -> Schema:
    shapes = [names[noun] for noun in REPLIES.get(name, ())]
    schema: Schema = shapes[0] if len(shapes) == 1 else {"anyOf": shapes}
    content: Schema = {JSON: {"schema": schema}} if shapes else {}
    content |= {kind.partition(";")[0]: {"schema": {"type": "string"}} for kind in FILES.get(name, ())}
    return {"description": "the answer", "content": content}


def _body(name: str) -> Schema:
    if name.replace("/", " ") in catalogue.NOUNS:
        return {"$ref": TEMPLATE.format(name=f"Question-{name.replace('/', '-')}")}
    lang = {"type": "string", "enum": list(LANGUAGES)}
    asks: Schema = {"type": "object"}
    bodies: dict[str, tuple[dict[str, Schema], tuple[str, ...]]] = {
        "oom": ({"text": {"type": "string", "maxLength": LARGEST_TEXT}, "job": asks, "checks": {"type": "boolean"},
                 "lang": lang}, ("text",)),
        "report": ({"command": {"type": "string", "enum": [*answers.PLANS, "oom"]}, "question": asks,
                    "format": {"type": "string", "enum": list(reports.REPORTS)}, "lang": lang},
                   ("command", "question")),
        "choices": ({"command": {"type": "string", "enum": list(looks.CHECKS)}, "question": asks, "option": TEXT},
                    ("command", "question", "option")),
        "matrix": ({"command": {"type": "string", "enum": list(looks.COMMANDS)}, "question": asks},
                   ("command", "question")),
        "step": ({"question": asks, "format": {"type": "string", "enum": list(looks.STEP_FORMATS)}}, ("question",)),
        "files": ({"command": {"type": "string", "enum": list(answers.PLANS)}, "question": asks,
                   "formats": {"type": "array", "items": TEXT}}, ("command", "question")),
    }
    if name not in bodies:
        return asks  # a config.json, whatever its family writes there
    properties, required = bodies[name]
    return {"type": "object", "additionalProperties": False, "required": list(required), "properties": properties}
