"""The service behind the page: words, languages, networks, visitors."""

import builtins
import io
import json
import logging
import os
import re
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

import pytest
from click.testing import CliRunner

import vramcast.web
from tests.sources.test_headers import gguf_bytes
from tests.web.asking import SERVE, TRAIN, get, post, refused
from vramcast.cli.main import group
from vramcast.question.option import TABLES, Option, table_of
from vramcast.question.options import CONFIG_OPTIONS, Kind
from vramcast.sources.resolve import config_of
from vramcast.web import service, visitor
from vramcast.web.exchange import JSON, LARGEST_QUESTION, LARGEST_SNAPSHOT, Sources
from vramcast.web.service import ROUTES, answered
from vramcast.web.visitor import FILES, LISTS, TEXTS, hub_of

# The service: routes, what it refuses before any route is asked, and replies that are those of the command line.

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
     {"model": "llama-3.2-1b", "on": ["2xl40s", "a10"], "engine": "pytorch", "micro-batch": "1", "recompute": "none",
      "global-batch": 8}),
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


# Every word that the page asks for by name stands in one of its tables.

PAGE: Final = Path(vramcast.web.__file__).parent / "page"
SAID: Final = re.compile(r'^\s*"([\w.-]+)":\s*\{', re.M)
COMMENT: Final = re.compile(r"/\*.*?\*/", re.S)
ASKED: Final = re.compile(r'\bt\(\s*(?:[^()"]*\?\s*"([\w.-]+)"\s*:\s*)?"([\w.-]+)"')


def test_no_word_is_missing() -> None:
    known = {name for path in (PAGE / "words").glob("*.js") for name in SAID.findall(path.read_text(encoding="utf-8"))}
    assert len(known) > 300
    missing = {
        f"{path.name}: {name}"
        for path in PAGE.rglob("*.js") if path.parent.name != "words"
        for names in ASKED.findall(COMMENT.sub("", path.read_text(encoding="utf-8")))
        for name in names if name and name not in known
    }
    assert not missing


def test_every_fact_of_the_catalogue_has_a_label() -> None:
    known = set(SAID.findall((PAGE / "words" / "tables.js").read_text(encoding="utf-8")))
    rows = [row for name in ("gpus", "instances") for row in get(name).document[name]]
    facts = {one for row in rows for name, value in row.items()
             for one in (name, *(value if isinstance(value, dict) else ()))}
    assert len(facts) > 40 and not {f"fact.{name}" for name in facts} - known


# The API in Chinese: sentences and names change, keys, figures and options do not.

CHINESE = re.compile(r"[\u4e00-\u9fff]")
SPOKEN = {"assumptions", "warnings", "sources", "source", "formula", "path", "role", "shortfall", "cost", "reasons",
          "question", "finding", "action", "name", "when", "needs", "lacks"}


def keys_and_figures(document: Any) -> Any:
    """A document without what it says in words."""
    if isinstance(document, dict):
        kept = {key: value for key, value in document.items() if not (key in SPOKEN and not isinstance(value, dict))}
        return {key: keys_and_figures(value) for key, value in kept.items() if key not in NAMED}
    return [keys_and_figures(one) for one in document] if isinstance(document, list) else document


NAMED = ("startup", "kv_tokens_by_count")  # their keys are names


def test_a_search_in_chinese_gives_reasons_decisions_and_techniques_in_chinese() -> None:
    question = {"model": "llama-3.2-1b", "on": "h100", "engine": "pytorch", "seq-len": "2k", "global-batch": 8,
                "micro-batch": "1", "recompute": "none"}
    english, chinese = post("plan/train", question), post("plan/train", question, query="lang=zh")
    assert english.status == chinese.status == 200, english
    assert keys_and_figures(english.document) == keys_and_figures(chinese.document)
    for name in ("decisions", "techniques"):
        rows = chinese.document[name]
        assert rows and all(CHINESE.search(row["question" if name == "decisions" else "when"]) for row in rows)
    assert not CHINESE.search(str(english.document))


def test_refusals_before_any_question_are_read_speak_the_language_too() -> None:
    for method, path, query in (
        ("PUT", "/api/train", "lang=zh"), ("GET", "/api/nothing", "lang=zh"), ("GET", "/api/gpus", "lang=zh&lang=zh"),
        ("GET", "/api/gpus", "lang=zh&what=1"),
    ):
        reply = answered(method, path, query)
        assert reply.status >= 400
        assert b'"said"' in reply.body, reply
    assert b'"said"' not in answered("GET", "/api/nothing", "lang=fr").body
    assert answered("GET", "/api/gpus", "lang=fr").status == 422


def test_every_address_takes_a_language() -> None:
    assert all("lang" in route.parameters for route in ROUTES.values())
    for name, route in ROUTES.items():
        if route.method == "GET" and name != "accuracy":
            assert answered("GET", f"/api/{name}", "lang=zh").status == 200, name


# Files that describe a network are known by its shape, and hostile ones end in a sentence.

GGUF = gguf_bytes(
    {"general.architecture": "llama", "llama.block_count": 30, "llama.embedding_length": 576,
     "llama.feed_forward_length": 1536, "llama.attention.head_count": 9, "llama.attention.head_count_kv": 3,
     "llama.context_length": 8192},
    {"token_embd.weight": ([576, 49152], 1)},
)
HEAD = GGUF[:4096]  # a browser sends the beginning of a file
TUNE = config_of("llama-3.1-8b") | {"max_position_embeddings": 16384}


@pytest.mark.parametrize(("body", "query", "model", "exact"), [
    (config_of("llama-3.1-8b"), "", "llama-3.1-8b", True),
    (config_of("qwen3-30b-a3b"), "", "qwen3-30b-a3b", True),
    (TUNE, "", "llama-3-8b", False),
    (HEAD, f"name=x.gguf&size={len(GGUF)}", "smollm2-135m", True),
])
def test_a_network_is_known_by_its_shape(body: Any, query: str, model: str, exact: bool) -> None:
    assert post("network", body, query=query).document == {"schema": 1, "model": model, "exact": exact}


@pytest.mark.parametrize(("body", "query", "words"), [
    ({}, "", "model_type"),
    ({"model_type": ["llama"]}, "", "model_type"),
    (config_of("llama-3.1-8b") | {"hidden_size": 4064}, "name=mine", "mine describes a llama network"),
    (config_of("llama-3.1-8b") | {"num_hidden_layers": 10**30}, "", ""),
    (b"GGUF\x03\0\0\0", "", "cut short"),
    (b"", "", "no GGUF file"),
    (HEAD, "size=1", "size must be"),
    (HEAD, "size=9" + "9" * 40, "cut short"),
])
def test_what_describes_none_is_refused_in_a_sentence(body: Any, query: str, words: str) -> None:
    assert words in refused("network", body, query=query)


# What a visitor may name: no file, no address, no code, whatever the option.

QUESTIONS: dict[str, dict[str, Any]] = {
    "train": TRAIN,
    "serve": SERVE,
    "plan/train": {"model": "llama-3.2-1b", "on": "l4", "techniques": True, "engine": "pytorch"},
    "plan/serve": {"model": "qwen3-0.6b", "on": "l4", "concurrency": 1, "context": 1024},
}
EVERY_OPTION = [
    (path, name) for path, question in QUESTIONS.items()
    for name in dict.fromkeys((*question, *table_of(path.replace("/", " "))))
]
BAIT = "bait.toml"


@pytest.fixture
def no_way_out(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A folder with a file that must not be opened, and no network."""
    bait = tmp_path / BAIT
    bait.write_text('[clusters.mybox]\ngpu = "h100-sxm-80gb"\ngpus_per_node = 8\n')
    monkeypatch.chdir(tmp_path)
    real_open, real_io, real_os = builtins.open, io.open, os.open

    def watched(real: Any) -> Any:
        def opened(file: Any, *rest: Any, **more: Any) -> Any:
            assert BAIT not in str(file) and "passwd" not in str(file), f"{file} was opened"
            return real(file, *rest, **more)

        return opened

    def refuse(*_: Any, **__: Any) -> Any:
        raise AssertionError("the network was asked")

    for place, name, real in ((builtins, "open", real_open), (io, "open", real_io), (os, "open", real_os)):
        monkeypatch.setattr(place, name, watched(real))
    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    return bait


@pytest.mark.parametrize(("path", "name"), EVERY_OPTION)
def test_no_option_opens_a_file_or_asks_the_network(path: str, name: str, no_way_out: Path) -> None:
    question = QUESTIONS[path]
    for text in (str(no_way_out), BAIT, "/etc/passwd", "http://127.0.0.1:9/x", "file:///etc/passwd", "os:system"):
        for value in (text, [text], f"x={text}"):
            said = post(path, question | {name: value})
            assert said.status in (200, 422), said
            assert "mybox" not in str(said.document)


def test_every_option_of_free_text_is_allowed_or_refused_on_purpose() -> None:
    texts = {
        name
        for table in (table_of(path.replace("/", " ")) for path in QUESTIONS)
        for name, option in table.items()
        if option.kind is Kind.TEXT or (option.kind is Kind.NAMES and option.section != "axis")
    }
    assert texts <= TEXTS | LISTS | set(FILES)
    assert set(FILES) <= texts | set(CONFIG_OPTIONS)  # how a file is read is not for visitors either


@pytest.mark.parametrize("text", [
    "/etc/passwd", "./model", "../x/config.json", "config.json", "model.gguf", "run.sh", "C:\\models\\x", "a/b/c",
    "https://huggingface.co/Qwen/Qwen3-8B", "http://169.254.169.254/latest/meta-data", "file:///etc/passwd", "a\0b/c",
])
@pytest.mark.parametrize("hubs", [frozenset(), frozenset(("huggingface",))])
def test_models_by_path_or_address_are_refused(text: str, hubs: frozenset[str], no_way_out: Path) -> None:
    for path, question in (("train", TRAIN), ("serve", SERVE)):
        assert "names no file" in refused(path, question | {"model": text}, sources=Sources(hubs))


def test_a_draft_model_is_found_as_the_model_is(no_way_out: Path) -> None:
    assert "names no file" in refused("serve", SERVE | {"draft": "/etc/passwd"})
    assert "--hub huggingface" in refused("serve", SERVE | {"draft": "Somebody/Model"})


@pytest.mark.parametrize(("text", "named"), [
    ("Qwen/Qwen3-8B", "huggingface"), ("hf:Qwen/Qwen3-8B@main", "huggingface"),
    ("modelscope:Qwen/Qwen3-8B", "modelscope"),
    *((text, None) for text in ("Qwen/Qwen3-8B@../..", "Qwen/Qwen3-8B@.git", "../Qwen", "qwen3-8b", "a/b/c",
                                "https://huggingface.co/Qwen/Qwen3-8B")),
])
def test_ids_of_hubs_are_told_from_paths(text: str, named: str | None) -> None:
    assert hub_of(text) == named


def test_an_option_that_becomes_a_file_tomorrow_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    table = {"notes": Option("job", "notes", Kind.TEXT, "a file of notes")}
    monkeypatch.setitem(TABLES, "train", lambda: table)
    assert not visitor.may_be_asked("notes", table)
    with pytest.raises(Exception, match="cannot be asked from the web"):
        visitor.options_of({"notes": "x"}, "train")
