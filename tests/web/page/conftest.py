"""A real server and a real browser: the page is tested as visitors meet it.

VRAMCAST_CHROMIUM names the browser where it is not on the path, VRAMCAST_AXE the file axe.min.js of npm's axe-core
where it is not in node_modules of the repository. What is missing skips the tests that need it.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

REPOSITORY = Path(__file__).parents[3]
BROWSERS = ("chromium", "chromium-browser", "google-chrome", "chrome")
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


@pytest.fixture
def opened(chromium: Any, server: str) -> Iterator[Opened]:
    """Opens a view of the page; what its console complains of, and what it asks of others, fails the test."""
    complaints: list[str] = []
    contexts = []

    def open_(view: str = "#/train", *, wait: str = ANSWER, **settings: Any) -> Any:
        context = chromium.new_context(**({"viewport": {"width": 1280, "height": 900}, "locale": "en-US"} | settings))
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(PATIENCE_MS)
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
