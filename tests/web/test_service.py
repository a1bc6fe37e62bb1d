"""The service: routes, what it refuses before any route is asked, and replies that are those of the command line."""

import json
import logging
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from tests.web.asking import SERVE, TRAIN, get, post
from vramcast.cli.main import group
from vramcast.web import service
from vramcast.web.exchange import JSON, LARGEST_QUESTION, LARGEST_SNAPSHOT
from vramcast.web.service import answered

AS_JSON = {"content-type": JSON}


def printed(command: str, question: dict[str, Any]) -> Any:
    """What the command line prints with --json for the options of a question."""
    options: list[str] = []
    for name, value in question.items():
        for one in value if isinstance(value, list) else [value]:
            options += [str(one)] if name == "model" else [f"--{name}"] if one is True else [f"--{name}", str(one)]
    result = CliRunner().invoke(group, [*command.split("/"), *options, "--json"], standalone_mode=False)
    assert result.exception is None, result.exception
    return json.loads(result.stdout)


@pytest.mark.parametrize(("path", "question"), [
    ("train", TRAIN | {"seq-len": "8k", "compile": True}),
    ("train", {"params": "7B", "layers": 32, "hidden": 4096, "gpus": "a100-sxm4-80gb"}),
    ("serve", SERVE),
    ("serve", {"model": "sdxl", "gpus": "rtx-4090", "tiling": True}),
    ("plan/train",
     {"model": "llama-3.2-1b", "on": ["2xl40s", "a10"], "engine": "pytorch", "micro-batch": "1", "tp": "1"}),
    ("plan/train", {"model": "llama-3.2-1b", "on": "2xl40s", "find": "largest-batch"}),
    ("plan/serve", {"model": "qwen3-0.6b", "on": "l4", "concurrency": 4, "context": 1024}),
])
def test_replies_are_what_the_command_line_prints(path: str, question: dict[str, Any]) -> None:
    said = post(path, question)
    assert said.status == 200, said.document
    assert said.document == printed(path, question)


@pytest.mark.parametrize("path", ["models", "gpus", "instances"])
def test_catalogues_are_what_the_command_line_prints(path: str) -> None:
    assert get(path).document == printed(path, {})


@pytest.mark.parametrize(("method", "path", "headers", "status", "name"), [
    *(("GET", path, {}, 404, "UnknownPath") for path in ("/api/nothing", "/train", "/api/", "/api/../train")),
    ("POST", "/api/train/", AS_JSON, 404, "UnknownPath"),
    *((method, "/api/train", {}, 405, "WrongMethod") for method in ("GET", "OPTIONS")),
    ("DELETE", "/api/models", {}, 405, "WrongMethod"),
    *(("POST", "/api/train", {"content-type": kind}, 415, "WrongType")
      for kind in ("", "text/plain", "application/x-www-form-urlencoded")),
    ("POST", "/api/replay", AS_JSON, 415, "WrongType"),
    ("POST", "/api/train", AS_JSON | {"content-encoding": "gzip"}, 415, "WrongEncoding"),
])
def test_requests_that_no_route_takes_are_refused(
    method: str, path: str, headers: dict[str, str], status: int, name: str
) -> None:
    reply = answered(method, path, "", headers, b"")
    assert (reply.status, json.loads(reply.body)["error"]) == (status, name)
    assert (dict(reply.headers).get("allow") is not None) == (status == 405)


@pytest.mark.parametrize(("body", "words"), [
    (b"", "not JSON"), (b"{", "not JSON"), (b"[]", "a list"), (b"null", "null"), (b'"train"', "a text"),
    (b"7", "a number"), (b"\xff\xfe{}", "not UTF-8"), (b'{"gpus": NaN}', "NaN"), (b'{"gpus": Infinity}', "Infinity"),
    (b'{"tp": 1, "tp": 2}', "twice"), (b"[" * 100_000, "too deep"), (b'{"tp": ' + b"9" * 5000 + b"}", "not JSON"),
    (b'{"gpus": "\xed\xa0\x80"}', "not UTF-8"),
])
def test_bodies_that_are_no_object_of_json_are_refused(body: bytes, words: str) -> None:
    reply = answered("POST", "/api/train", "", AS_JSON, body)
    assert reply.status == 400
    assert words in json.loads(reply.body)["message"]


@pytest.mark.parametrize(("option", "value"), [
    ("seq-len", 10**400), ("seq-len", 10**18), ("micro-batch", 1e308), ("tp", -1), ("tp", 0), ("tp", True), ("tp", {}),
    ("lora-targets", [[]]), ("lora-targets", [1]), ("engine-option", [{}]), ("gpus", "\0"), ("gpus", "x" * 5000),
    ("gpus", ["h100"]), ("gpus", 8), ("gpus", "\ud800"), ("recompute-modules", ["a"] * 5000), ("model", {"a": 1}),
])
def test_values_that_no_option_takes_are_refused_in_a_sentence(option: str, value: Any) -> None:
    said = post("train", TRAIN | {option: value})
    assert said.status == 422, said
    assert said.document["error"] in ("InvalidSpec", "UnknownName", "Unsupported")


def test_bodies_are_bounded_route_by_route() -> None:
    too_much = b'{"model": "' + b"x" * LARGEST_QUESTION + b'"}'
    assert answered("POST", "/api/train", "", AS_JSON, too_much).status == 413
    assert answered("GET", "/api/models", "", {}, b"anything").status == 413
    recording = {"content-type": "application/octet-stream"}
    reply = answered("POST", "/api/replay", "", recording, bytes(LARGEST_SNAPSHOT + 1))
    assert reply.status == 413
    assert "vramcast replay" in json.loads(reply.body)["message"]


@pytest.mark.parametrize("query", [
    "lang", "lang=en&lang=zh", "unheard=1", "lang=%ff", "&".join(f"a{i}=1" for i in range(99)), "lang=" + "x" * 4096,
])
def test_addresses_that_cannot_be_read_are_refused(query: str) -> None:
    reply = answered("GET", "/api/words", query)
    assert 400 <= reply.status < 500
    assert json.loads(reply.body)["message"]


def test_our_own_mistake_says_a_reference_and_nothing_of_its_cause(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def failing(error: BaseException) -> Any:
        def fail(route: object) -> Any:
            raise error

        monkeypatch.setattr(service, "_function", fail)
        return post("train", TRAIN)

    with caplog.at_level(logging.ERROR):
        said = failing(KeyError("secret of the server"))
    assert said.status == 500
    assert "secret" not in json.dumps(said.document)
    reference = said.document["message"].rpartition("reference ")[2].rstrip(")")
    assert reference in caplog.text
    assert "secret of the server" in caplog.text
    for kind in (RecursionError, MemoryError, OverflowError):
        expected = {"error": "InvalidSpec", "message": "the question is larger than can be answered"}
        assert failing(kind()).document == expected


def test_the_service_imports_nothing_that_only_a_server_has() -> None:
    program = (
        "import sys\n"
        "from vramcast.web.service import answered\n"
        "assert answered('POST', '/api/train', '', {'content-type': 'application/json'},"
        ' b\'{"model": "llama-3.2-1b", "gpus": "h100"}\').status == 200\n'
        "print([name for name in ('starlette', 'uvicorn', 'pebble', 'multiprocessing', 'click', 'rich', 'torch')"
        " if name in sys.modules])"
    )
    found = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True,
        env={"PYTHONPATH": str(Path(service.__file__).parents[2])},
    )
    assert found.stdout.strip() == "[]"
