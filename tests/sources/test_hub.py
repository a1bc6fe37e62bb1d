"""The hub client against a local server: configs, range requests, redirects, refusals."""

import json
import os
import re
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

import vramcast
from tests.sources.test_headers import CONFIG, safetensors_bytes
from vramcast.catalogue.models import load_model
from vramcast.errors import SourceError
from vramcast.report.messages import Words
from vramcast.sources import fetch
from vramcast.sources import hub as hub_module
from vramcast.sources.resolve import resolve_model

WEIGHTS = safetensors_bytes({"a": ("BF16", [10, 10], 200)})


class Hub(BaseHTTPRequestHandler):
    """One model in several conditions, by organisation name."""

    seen: list[tuple[str, str | None]] = []
    elsewhere = ""

    def do_GET(self) -> None:
        self.seen.append((self.path, self.headers.get("Authorization")))
        organisation = self.path.split("/")[1] if not self.path.startswith("/models/") else self.path.split("/")[2]
        name = self.path.rsplit("/", 1)[-1]
        if organisation == "gated" and not self.headers.get("Authorization"):
            return self.answer(401, b"")
        if organisation == "away":
            self.send_response(302)
            self.send_header("Location", f"{self.elsewhere}/good/{self.path.split('/', 2)[2]}")
            self.end_headers()
            return None
        if organisation == "away-file":
            self.send_response(302)
            self.send_header("Location", "file:///etc/passwd")
            self.end_headers()
            return None
        if organisation == "loop":
            self.send_response(302)
            self.send_header("Location", self.path)
            self.end_headers()
            return None
        if organisation == "renamed":
            self.send_response(307)
            self.send_header("Location", self.path.replace("/renamed/", "/gated/"))
            self.end_headers()
            return None
        if organisation == "slow":
            return self.drip()
        if organisation == "bomb":
            self.send_response(200)
            self.send_header("Content-Length", str(10**12))
            self.end_headers()
            return None
        if organisation == "broken-off":
            self.send_response(200)
            self.send_header("Content-Length", "1000")
            self.end_headers()
            self.wfile.write(b"{}")
            return None
        if name == "config.json" and organisation != "none":
            body = json.dumps(CONFIG).encode()
            if organisation == "huge":
                body = b" " * (5 << 20)
            if organisation == "cut":
                body = body[: len(body) // 2]
            return self.answer(200, body)
        if name == "model.safetensors" and organisation in ("good", "gated", "norange"):
            return self.part(WEIGHTS, ranges=organisation != "norange")
        return self.answer(404, b"")

    def drip(self) -> None:
        """A byte now and then, for ever."""
        self.send_response(200)
        self.end_headers()
        try:
            while True:
                self.wfile.write(b" ")
                self.wfile.flush()
                time.sleep(0.02)
        except OSError:
            return

    def part(self, body: bytes, *, ranges: bool) -> None:
        asked = self.headers.get("Range")
        if not ranges or asked is None:
            return self.answer(200, body)
        first, last = asked.removeprefix("bytes=").split("-")
        return self.answer(206, body[int(first) : int(last) + 1])

    def answer(self, code: int, body: bytes) -> None:
        self.send_response(code)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Silence."""


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[type[Hub]]:
    servers = [ThreadingHTTPServer(("127.0.0.1", 0), Hub) for _ in range(2)]
    for server in servers:
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    Hub.seen = []
    Hub.elsewhere = f"http://127.0.0.1:{servers[1].server_port}"
    monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{servers[0].server_port}")
    monkeypatch.setenv("MODELSCOPE_ENDPOINT", f"http://127.0.0.1:{servers[0].server_port}")
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("HF_HUB_CACHE", raising=False)
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    monkeypatch.delenv("HF_TOKEN", raising=False)
    yield Hub
    for server in servers:
        server.shutdown()
        server.server_close()


def test_a_token_opens_a_gated_model(hub: type[Hub], monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(SourceError, match="HF_TOKEN"):
        resolve_model("gated/tiny")
    monkeypatch.setenv("HF_TOKEN", "secret")
    assert resolve_model("gated/tiny").hidden == 64


def test_the_token_does_not_follow_a_redirect_to_another_host(hub: type[Hub], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "secret")
    assert resolve_model("away/tiny").hidden == 64
    first, second = hub.seen[:2]
    assert first[1] == "Bearer secret"
    assert second[1] is None


def test_a_server_without_ranges_costs_only_the_comparison(hub: type[Hub], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hub_module, "FIRST_READ", 32)
    model = resolve_model("norange/tiny")
    assert model.hidden == 64
    assert any("headers" in note for note in model.notes)


@pytest.mark.parametrize("organisation", ["none", "huge", "cut", "loop", "away-file", "bomb", "broken-off"])
def test_useless_answers_get_one_sentence(hub: type[Hub], organisation: str) -> None:
    with pytest.raises(SourceError) as caught:
        resolve_model(f"{organisation}/tiny")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(("repository", "base", "storage"), [
    ("Qwen/Qwen3-8B-AWQ", "qwen3-8b", "int4"), ("TheBloke/Llama-2-7B-GPTQ", "llama-2-7b", "int4"),
    ("unsloth/Meta-Llama-3.1-8B-Instruct-bnb-4bit", "llama-3.1-8b", "nf4"),
    ("RedHatAI/Qwen3-32B-FP8-dynamic", "qwen3-32b", "fp8"), ("NousResearch/Meta-Llama-3-8B", "llama-3-8b", None),
    ("LLM-Research/Meta-Llama-3.1-8B-Instruct", "llama-3.1-8b", None), ("unsloth/Qwen2.5-7B", "qwen2.5-7b", None),
    ("modelscope:qwen/Qwen2.5-7B-Instruct-AWQ", "qwen2.5-7b-instruct", "int4"),
    ("cyankiwi/Qwen3-4B-Instruct-2507-AWQ-8bit", "qwen3-4b-2507", "int8"),
    ("unsloth/gpt-oss-20b-BF16", "gpt-oss-20b", None), ("Intel/Qwen3-8B-int4-AutoRound", "qwen3-8b", "int4"),
    ("amd/MiniMax-M2.1-MXFP4", "minimax-m2.1", "mxfp4"), ("nvidia/DeepSeek-R1-0528-FP4-v2", "deepseek-r1", "nvfp4"),
])
def test_without_a_network_a_copy_of_a_known_model_is_what_it_is_named(
    repository: str, base: str, storage: str | None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name, value in (("HF_HUB_OFFLINE", "1"), ("HF_HOME", str(tmp_path)), ("XDG_CACHE_HOME", str(tmp_path))):
        monkeypatch.setenv(name, value)
    found, known = resolve_model(repository), load_model(base)
    assert (found.stacks, found.vocab, found.quantisation) == (known.stacks, known.vocab, storage)
    answer = vramcast.serve(repository, gpus="4xb200-180gb", tp=4, context=2048)
    (note,) = (text for text in answer.assumptions if "as it is named" in text)
    assert base in note and "HF_HUB_OFFLINE is set" in note
    assert not re.search("[a-z] [a-z]", Words("zh").said(note).replace(repository, ""))


@pytest.mark.parametrize("repository", [
    "unsloth/Qwen3-14B-unsloth-bnb-4bit",  # some layers stay in 16 bits
    "bartowski/Meta-Llama-3.1-8B-Instruct-GGUF", "mlx-community/Qwen3-8B-4bit", "who/Qwen3-32B-FP8-AWQ",
    "who/ours-8b", "who/x-awq", "who/MiniMax-M2-FP8", "amd/Llama-3.1-8B-MXFP4",
    "QuantTrio/Qwen3-30B-A3B-GPTQ-Int4-Int8Mix",
])
def test_a_name_that_does_not_say_how_it_is_stored_is_not_guessed(
    repository: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name, value in (("HF_HUB_OFFLINE", "1"), ("HF_HOME", str(tmp_path)), ("XDG_CACHE_HOME", str(tmp_path))):
        monkeypatch.setenv(name, value)
    with pytest.raises(SourceError, match="give a path to config"):
        resolve_model(repository)


def test_the_local_cache_is_used_first(hub: type[Hub], tmp_path: Path) -> None:
    folder = tmp_path / "hub" / "models--cached--tiny"
    (folder / "refs").mkdir(parents=True)
    (folder / "refs" / "main").write_text("abc")
    (folder / "snapshots" / "abc").mkdir(parents=True)
    (folder / "snapshots" / "abc" / "config.json").write_text(json.dumps(CONFIG))
    assert resolve_model("cached/tiny").hidden == 64
    assert hub.seen == []


def test_a_token_never_travels_over_plain_http_to_another_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[str | None] = []

    def record(self: object, request: urllib.request.Request, timeout: float) -> None:
        sent.append(request.get_header("Authorization") or request.unredirected_hdrs.get("Authorization"))
        raise urllib.error.URLError("no network in tests")

    monkeypatch.setattr(urllib.request.OpenerDirector, "open", record)
    for url in ("http://mirror.example/x", "https://mirror.example/x"):
        with pytest.raises(SourceError):
            fetch.read_url(url, most=10, token="secret")
    assert sent == [None, "Bearer secret"]


@pytest.mark.parametrize("target", ["http://example.org/x", "file:///etc/passwd", "ftp://example.org/x"])
def test_redirects_to_weaker_or_other_schemes_are_refused(target: str) -> None:
    with pytest.raises(SourceError):
        fetch._next(urllib.parse.urlsplit("https://example.org/a"), target)


def test_a_dripping_server_costs_no_more_than_the_deadline(hub: type[Hub], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetch, "DEADLINE_SECONDS", 0.3)
    with pytest.raises(SourceError, match="took more than"):  # it would answer for ever
        resolve_model("slow/tiny")


def test_the_second_question_needs_no_network(hub: type[Hub]) -> None:
    first = resolve_model("good/tiny")
    asked = len(hub.seen)
    assert resolve_model("good/tiny") == first
    assert len(hub.seen) == asked


def test_an_old_cache_entry_is_fetched_anew(hub: type[Hub]) -> None:
    resolve_model("good/tiny")
    path = hub_module.kept_path(hub_module.repository_of("good/tiny"))
    os.utime(path, (0, 0))
    asked = len(hub.seen)
    resolve_model("good/tiny")
    assert len(hub.seen) > asked


def test_a_pasted_page_is_its_hub_id(hub: type[Hub]) -> None:
    assert resolve_model("https://huggingface.co/good/tiny/tree/main?x=1").hidden == 64
    assert resolve_model("https://modelscope.cn/models/good/tiny/files").hidden == 64
    assert {path.split("/resolve/")[0] for path, _ in hub.seen} == {"/good/tiny", "/models/good/tiny"}


def test_a_mistyped_token_is_refused_before_it_is_sent(hub: type[Hub], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "a\nHost: evil")
    with pytest.raises(SourceError, match="HF_TOKEN"):
        resolve_model("good/tiny")
    assert hub.seen == []


def test_weights_are_never_fetched(hub: type[Hub], monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []
    whole = fetch._body
    monkeypatch.setattr(fetch, "_body", lambda *a, **k: sizes.append(len(found := whole(*a, **k))) or found)
    monkeypatch.setattr(hub_module, "FIRST_READ", 32)
    resolve_model("good/tiny")
    header = len(WEIGHTS) - 200
    assert sizes[1:] == [32, header - 32]
