"""The static site in Chromium: Python runs in the browser, nothing is asked of anybody, and the answers are the same.

VRAMCAST_PYODIDE names the folder of npm's package pyodide where it is not in node_modules of the repository.
"""

import functools
import http.server
import json
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import vramcast
from tests.web.page.conftest import ANSWER, EXAMPLES, PATIENCE_MS, REPOSITORY
from vramcast.errors import SourceError
from vramcast.web.static_site import build

PLAN = {"model": "llama-3.1-8b", "gpus": "8xh100-sxm-80gb", "engine": "torchtitan", "shards": "everything"}
QUESTION = PLAN | {"seq-len": "8k"}
SERVED = {"model": "qwen3-32b", "gpus": "2xh100-sxm-80gb"}
ASK = """async ([path, body]) => {
    const { ask } = await import("./backend.js");
    try { return await ask(path, body); } catch (error) { return { refused: error.message, status: error.status }; }
}"""


class Quiet(http.server.SimpleHTTPRequestHandler):
    """Serves a folder, and writes no log."""

    def log_message(self, *given: object) -> None:
        """Nothing."""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a built site on any static host."""
    pyodide = Path(os.environ.get("VRAMCAST_PYODIDE", REPOSITORY / "node_modules" / "pyodide"))
    if not pyodide.is_dir():
        pytest.skip("no Pyodide: npm install --no-save pyodide, or name its folder in VRAMCAST_PYODIDE")
    try:
        built = build(tmp_path_factory.mktemp("static") / "site", pyodide=pyodide)
    except SourceError as error:
        pytest.skip(str(error))
    host = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=str(built.directory)))
    threading.Thread(target=host.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{host.server_address[1]}"
    host.shutdown()


@pytest.fixture(scope="module")
def alone(chromium: Any, site: str) -> Iterator[Any]:
    """The site in a browser that can reach nothing else; what its console complains of fails the tests."""
    complaints: list[str] = []
    context = chromium.new_context(viewport={"width": 1280, "height": 900}, locale="en-US")
    context.route("**/*", lambda route: route.continue_() if route.request.url.startswith(site) else route.abort())
    page = context.new_page()
    page.set_default_timeout(PATIENCE_MS)
    page.on("request", lambda request: _only_of(site, request.url, complaints))
    page.on("pageerror", lambda error: complaints.append(str(error)))
    query = "&".join(f"{name}={value}" for name, value in QUESTION.items())
    page.goto(f"{site}/#/train?{query}")
    page.wait_for_selector(ANSWER)
    yield page
    context.close()
    assert not complaints, complaints


def _only_of(site: str, url: str, complaints: list[str]) -> None:
    if not url.startswith((f"{site}/", "blob:", "data:")):
        complaints.append(f"asked {url}")


def test_the_answer_in_the_browser_is_the_answer_of_python(alone: Any) -> None:
    found = alone.evaluate(ASK, ["/api/train", QUESTION])
    answer = vramcast.train(**PLAN, seq_len=8192)
    wanted = json.loads(answer.to_json())
    assert found["peak"] == wanted["peak"]
    assert found["ranks"] == wanted["ranks"]
    assert f"{answer.peak.device_bytes / 2**30:.1f} GiB" in alone.inner_text(ANSWER)


def test_every_kind_of_question_but_the_search_is_answered(alone: Any) -> None:
    served = alone.evaluate(ASK, ["/api/serve", SERVED | {"context": "32k"}])
    assert served["peak"] == json.loads(vramcast.serve(**SERVED, context=32768).to_json())["peak"]
    text = (EXAMPLES / "oom.log").read_text(encoding="utf-8")
    found = alone.evaluate(ASK, ["/api/oom", {"text": text}])
    assert found["findings"] == json.loads(vramcast.diagnose(text).to_json())["findings"]
    searched = alone.evaluate(ASK, ["/api/plan/train", {"model": "llama-3.1-8b", "on": "8xh100-sxm-80gb"}])
    assert searched["status"] == 422
    assert "NumPy" in searched["refused"] and "command line" in searched["refused"]
    assert "pip" not in searched["refused"]


def test_a_recording_is_replayed_in_the_browser(alone: Any) -> None:
    snapshot = (EXAMPLES / "fragmented.pickle").read_bytes()
    found = alone.evaluate(
        """async (bytes) => {
            const { ask } = await import("./backend.js");
            return ask("/api/replay", new Blob([new Uint8Array(bytes)]));
        }""",
        list(snapshot),
    )
    wanted = json.loads(vramcast.replay(EXAMPLES / "fragmented.pickle").to_json())
    for device in found["devices"]:
        assert any("replay" in line for line in device.pop("about"))  # sentences for the page
    assert found["devices"] == wanted["devices"]


def test_a_question_called_off_is_not_answered_and_the_next_one_is(alone: Any) -> None:
    found = alone.evaluate(
        """async (question) => {
            const { ask } = await import("./backend.js");
            const off = new AbortController();
            const told = ["answered", ({ name }) => name];
            const first = ask("/api/train", question, { signal: off.signal }).then(() => told[0], told[1]);
            off.abort();
            const { fits } = await ask("/api/train", { ...question, "seq-len": "4096" });
            return [await first, fits];
        }""",
        QUESTION,
    )
    assert found == ["AbortError", True]
