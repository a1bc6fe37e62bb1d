"""The hub client against a local server: configs, range requests, redirects, refusals."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from tests.sources.test_headers import CONFIG, safetensors_bytes
from vramcast.errors import SourceError
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
        threading.Thread(target=server.serve_forever, daemon=True).start()
    Hub.seen = []
    Hub.elsewhere = f"http://127.0.0.1:{servers[1].server_port}"
    monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{servers[0].server_port}")
    monkeypatch.setenv("MODELSCOPE_ENDPOINT", f"http://127.0.0.1:{servers[0].server_port}")
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    monkeypatch.delenv("HF_HUB_CACHE", raising=False)
    monkeypatch.delenv("HF_TOKEN", raising=False)
    yield Hub
    for server in servers:
        server.shutdown()
        server.server_close()


def test_config_and_headers_are_read_and_no_weights(hub: type[Hub]) -> None:
    model = resolve_model("good/tiny")
    assert model.hidden == 64
    assert any("100 elements" in note for note in model.notes)


def test_modelscope_has_its_own_addresses(hub: type[Hub]) -> None:
    assert resolve_model("modelscope:good/tiny").hidden == 64
    assert hub.seen[0][0].startswith("/models/good/tiny/resolve/master/")


def test_a_token_opens_a_gated_model(hub: type[Hub], monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(SourceError, match="HF_TOKEN"):
        resolve_model("gated/tiny")
    monkeypatch.setenv("HF_TOKEN", "secret")
    assert resolve_model("gated/tiny").hidden == 64


def test_the_token_does_not_follow_a_redirect_to_another_host(
    hub: type[Hub], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_TOKEN", "secret")
    assert resolve_model("away/tiny").hidden == 64
    first, second = hub.seen[:2]
    assert first[1] == "Bearer secret"
    assert second[1] is None


def test_a_server_without_ranges_costs_only_the_comparison(hub: type[Hub]) -> None:
    model = resolve_model("norange/tiny")
    assert model.hidden == 64
    assert any("headers" in note for note in model.notes)


@pytest.mark.parametrize("organisation", ["none", "huge", "cut", "loop", "away-file"])
def test_useless_answers_get_one_sentence(hub: type[Hub], organisation: str) -> None:
    with pytest.raises(SourceError) as caught:
        resolve_model(f"{organisation}/tiny")
    assert "\n" not in str(caught.value)


def test_no_network_says_what_to_do(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    with pytest.raises(SourceError, match="give the path"):
        resolve_model("some/model")


def test_the_local_cache_is_used_first(hub: type[Hub], tmp_path: Path) -> None:
    folder = tmp_path / "hub" / "models--cached--tiny"
    (folder / "refs").mkdir(parents=True)
    (folder / "refs" / "main").write_text("abc")
    (folder / "snapshots" / "abc").mkdir(parents=True)
    (folder / "snapshots" / "abc" / "config.json").write_text(json.dumps(CONFIG))
    assert resolve_model("cached/tiny").hidden == 64
    assert hub.seen == []
