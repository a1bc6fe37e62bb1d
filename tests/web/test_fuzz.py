"""Questions that nobody thought of: never a bug, never a traceback, always a reply as it is described."""

import json
from collections.abc import Callable, Iterable
from typing import Any
from urllib.parse import unquote

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from vramcast.question.options import OPTIONS
from vramcast.question.tables import SERVE_OPTIONS
from vramcast.web.exchange import BYTES, JSON
from vramcast.web.service import ROUTES, answered

FEW = settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))

SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=30)
ANYTHING = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3)
)
WRITTEN = st.sampled_from(
    ["8", "8k", "0", "-1", "1e9", "none", "full", "true", "a,b", "x=1", "100usd", "5%", "fp8", "vllm", "llama.cpp"]
)


def _questions(table: Any) -> st.SearchStrategy[dict[str, Any]]:
    """Questions that begin well and go on anyhow."""
    known = st.fixed_dictionaries(
        {"model": st.sampled_from(["llama-3.2-1b", "qwen3-0.6b"]), "gpus": st.sampled_from(["l4", "2xh100"])}
    )
    extra = st.dictionaries(st.sampled_from(list(table)), SCALARS | WRITTEN | st.lists(WRITTEN, max_size=2), max_size=4)
    return st.builds(lambda one, other: {**other, **one}, known, extra)


def _answers(path: str, body: bytes, kind: str = JSON, query: str = "") -> None:
    reply = answered("POST", f"/api/{path}", query, {"content-type": kind}, body)
    assert reply.status in (200, 400, 413, 414, 422), (path, body[:300], reply)
    document = json.loads(reply.body)
    assert reply.status == 200 or set(document) == {"error", "message"}
    assert "Traceback" not in reply.body.decode()


@pytest.mark.parametrize(("path", "table"), [("train", OPTIONS), ("serve", SERVE_OPTIONS)])
def test_any_question_is_answered_or_refused(path: str, table: Any) -> None:
    FEW(given(_questions(table))(lambda question: _answers(path, json.dumps(question).encode())))()


@FEW
@given(st.sampled_from(
    ["train", "serve", "plan/train", "plan/serve", "oom", "files", "choices", "matrix", "step"]), ANYTHING)
def test_any_json_is_answered_or_refused(path: str, value: Any) -> None:
    _answers(path, json.dumps(value).encode())


@FEW
@given(st.sampled_from(["oom", "replay"]), st.binary(max_size=200),
       st.sampled_from([b"", b"\x80\x04", b"PK\x03\x04", b"\x1f\x8b", b'{"segments":']))
def test_any_bytes_are_read_or_refused(path: str, body: bytes, start: bytes) -> None:
    _answers(path, start + body, BYTES)


@FEW
@given(st.text(max_size=200), st.sampled_from(["en", "zh"]))
def test_any_text_is_diagnosed(text: str, lang: str) -> None:
    _answers("oom", json.dumps({"text": "CUDA out of memory. " + text, "lang": lang}).encode())


@FEW
@given(st.text(max_size=20), st.text(max_size=60), st.text(max_size=60),
       st.dictionaries(st.text(max_size=20), st.text(max_size=20), max_size=3))
def test_any_head_of_a_request_is_answered_or_refused(
    method: str, path: str, query: str, headers: dict[str, str]
) -> None:
    for address in (path, f"/api/{path}", "/api/models"):
        reply = answered(method, address, query, headers, b"")
        assert reply.status < 500


def test_schemathesis_finds_nothing_in_the_routes_of_live_answers() -> None:
    schemathesis = pytest.importorskip("schemathesis")
    checks = pytest.importorskip("schemathesis.checks")
    pytest.importorskip("schemathesis.specs.openapi.checks")  # it registers those of OpenAPI
    names = ("not_a_server_error", "status_code_conformance", "content_type_conformance", "response_schema_conformance")
    wanted = [checks.CHECKS.get_one(name) for name in names]
    schema = schemathesis.openapi.from_wsgi("/api/openapi.json", _as_wsgi)
    tried = 0
    for result in schema.get_all_operations():
        operation = result.ok()
        if ROUTES[operation.path.removeprefix("/api/")].limit.is_slow:
            continue

        @given(case=operation.as_strategy())
        @settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck), database=None)
        def asked(case: Any) -> None:
            case.call_and_validate(checks=wanted)

        asked()
        tried += 1
    assert tried >= 10


def _as_wsgi(environ: dict[str, Any], start: Callable[..., Any]) -> Iterable[bytes]:
    """The service as schemathesis asks it."""
    length = int(environ.get("CONTENT_LENGTH") or 0)
    headers = {"content-type": environ.get("CONTENT_TYPE", "")}
    path = unquote(environ["PATH_INFO"], encoding="latin-1").encode("latin-1").decode("utf-8", "replace")
    reply = answered(
        environ["REQUEST_METHOD"], path, environ["QUERY_STRING"], headers, environ["wsgi.input"].read(length)
    )
    start(f"{reply.status} said", [("content-type", reply.content_type), *reply.headers])
    return [reply.body]
