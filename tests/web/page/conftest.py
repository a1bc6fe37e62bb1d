"""A real server and a real browser: the page is tested as visitors meet it.

VRAMCAST_CHROMIUM names the browser where it is not on the path, VRAMCAST_AXE the file axe.min.js of npm's axe-core
where it is not in node_modules of the repository. What is missing skips the tests that need it.
"""

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import date
from functools import cache
from pathlib import Path
from typing import Any

import pytest

import vramcast
from vramcast.domain.planning import PlanAnswer
from vramcast.report.document import plan_json, to_json

REPOSITORY = Path(__file__).parents[3]
EXAMPLES = REPOSITORY / "docs" / "examples"
LOG = (EXAMPLES / "oom.log").read_text(encoding="utf-8")
PHONE = {"width": 390, "height": 844}
BROWSERS = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome", "chrome")
ANSWER = ".verdict"
ALONE = ["--no-sandbox", "--no-first-run", "--disable-gpu", "--disable-sync", "--disable-component-update",
         "--disable-background-networking"]  # a browser of no user, which asks nobody but the server under test
PATIENCE_MS = 180_000  # a machine busy with other tests starts a browser and its first page in a minute or more


def browser_path() -> str | None:
    """The browser that tests may start."""
    named = os.environ.get("VRAMCAST_CHROMIUM")
    return named or next(filter(None, map(shutil.which, BROWSERS)), None)


@pytest.fixture(scope="session")
def chromium() -> Iterator[Any]:
    """One browser for all tests."""
    playwright = pytest.importorskip("playwright.sync_api")
    path = browser_path()
    if path is None:
        pytest.skip("no Chromium: name it in VRAMCAST_CHROMIUM")
    with playwright.sync_playwright() as started:
        browser = started.chromium.launch(executable_path=path, args=ALONE, timeout=PATIENCE_MS)
        yield browser
        browser.close()


@pytest.fixture(scope="session")
def server() -> Iterator[str]:
    """The address of `vramcast web`, started as a user does."""
    for package in ("starlette", "uvicorn", "pebble"):
        pytest.importorskip(package)
    command = [sys.executable, "-m", "vramcast", "web", "--port", "0", "--no-open", "--processes", "1"]
    environment = os.environ | {"PYTHONUNBUFFERED": "1"}
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)
    assert process.stdout is not None
    try:
        line = process.stdout.readline()
        assert "http://" in line, line
        yield line.split("http://")[1].split("/")[0]
    finally:
        process.terminate()
        with suppress(subprocess.TimeoutExpired):
            process.wait(10)
        process.kill()


Opened = Callable[..., Any]


def comes_to(page: Any, read: Callable[[], Any], expected: Any) -> None:
    """Reads until it is as expected: replies to what was typed on the way may still be shown before the last one."""
    until = time.monotonic() + PATIENCE_MS / 1000
    while (found := read()) != expected and time.monotonic() < until:
        page.wait_for_timeout(20)
    assert found == expected


def settle(page: Any) -> None:
    """Until no colour changes any more."""
    page.wait_for_function("() => document.getAnimations().every((one) => one.playState !== 'running')")


def view(command: str, *questions: dict[str, str], active: int = 1) -> str:
    """The address of questions."""
    texts = ("?" + "&".join(f"{name}={value}" for name, value in question.items()) for question in questions)
    return f"#/{command}" + (f"/{active}" if active > 1 else "") + "".join(texts)


def go(page: Any, address: str) -> None:
    """To another view of the page that is open, as a link in it leads there."""
    page.evaluate("address => { location.hash = address; }", address)


def needed(document: dict[str, Any]) -> str:
    """The memory of a document as the verdict shows it."""
    return f"{document['needed_bytes'] / 2**30:.1f} GiB"


def sizes(largest: int) -> Callable[[int], str]:
    """How sizes that stand together are shown: in the unit of the largest, with one decimal."""
    unit, factor = next(
        ((unit, 1 << 10 * power) for power, unit in ((3, "GiB"), (2, "MiB"), (1, "KiB")) if largest >= 1 << 10 * power),
        ("B", 1),
    )

    def shown(size: int) -> str:
        written = f"{size / factor:.1f}" if factor > 1 else str(size)
        return f"{'< 0.1' if size and written == '0.0' else written} {unit}"

    return shown


def wait_for_needed(page: Any, text: str) -> None:
    """Until the verdict shows that memory."""
    page.wait_for_function("text => document.querySelector('.needed b')?.textContent === text", arg=text)


def downloaded(page: Any, button: str) -> str:
    with page.expect_download() as started:
        page.get_by_role("button", name=button, exact=True).click()
    return Path(started.value.path()).read_text(encoding="utf-8")


@cache
def _answer(command: str, question: tuple[tuple[str, str], ...]) -> str:
    options: dict[str, Any] = {
        name.replace("-", "_"): {"true": True, "false": False}.get(value, value) for name, value in question
    }
    kind, _, searched = command.partition(" ")
    found: Any = vramcast.plan(searched, **options) if searched else getattr(vramcast, kind)(**options)
    if isinstance(found, PlanAnswer):
        return plan_json(found, today=date.today())
    return to_json(found, today=date.today())


def asked(command: str, question: dict[str, str]) -> dict[str, Any]:
    """The document of a question, from the library."""
    document: dict[str, Any] = json.loads(_answer(command, tuple(question.items())))
    return document


@pytest.fixture
def opened(chromium: Any, server: str) -> Iterator[Opened]:
    """Opens a view of the page; what its console complains of, and what it asks of others, fails the test."""
    complaints: list[str] = []
    contexts = []

    def open_(view: str = "#/train", *, wait: str = ANSWER, script: str = "", **settings: Any) -> Any:
        context = chromium.new_context(**({"viewport": {"width": 1280, "height": 900}, "locale": "en-US"} | settings))
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(PATIENCE_MS)
        page.add_init_script(script)
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("console", lambda message: _complain(message, complaints))
        page.on("request", lambda request: _only_own(request.url, server, complaints))
        page.on("dialog", lambda dialog: complaints.append(f"a dialog: {dialog.message}"))
        page.goto(f"http://{server}/{view}")
        page.wait_for_selector(wait)
        return page

    yield open_
    for context in contexts:
        context.close()
    assert not complaints, complaints


def _complain(message: Any, complaints: list[str]) -> None:
    refused = "Failed to load resource" in message.text  # refusals of half-typed questions, which the browser notes
    if message.type in ("error", "warning") and not refused:
        complaints.append(message.text)


def _only_own(url: str, server: str, complaints: list[str]) -> None:
    if not url.startswith((f"http://{server}/", "blob:", "data:")):
        complaints.append(f"asked {url}")


@pytest.fixture(scope="session")
def axe() -> str:
    """The source of axe-core."""
    path = Path(os.environ.get("VRAMCAST_AXE", REPOSITORY / "node_modules" / "axe-core" / "axe.min.js"))
    if not path.is_file():
        pytest.skip("no axe-core: npm install --no-save axe-core, or name axe.min.js in VRAMCAST_AXE")
    return path.read_text(encoding="utf-8")
