"""How soon the static site shows an answer, and one of the visitor's own: `python -m benchmarks.static_site [SITE]`.

SITE is a folder that `vramcast web --build` wrote; without it one is built, with Pyodide fetched by npm or named in
VRAMCAST_PYODIDE. A browser without a cache opens it from a local host, then once more with what it kept. Seconds of the
clock, from the beginning of the navigation: the first answer on the front page; and, a question being typed as soon as
that is there, its answer, for which Python must have arrived and started. The median of several visits.
"""

from __future__ import annotations

import functools
import http.server
import os
import sys
import tempfile
import threading
import time
from pathlib import Path
from statistics import median
from typing import Any, Final

from playwright.sync_api import sync_playwright

from tests.web.page.conftest import ALONE, PATIENCE_MS, browser_path
from vramcast.web.static_site import build

VISITS: Final = 5
VERDICT: Final = ".start-verdict h2"
OWN: Final = "qwen3-14b"
"""A model of no prepared answer."""


class Quiet(http.server.SimpleHTTPRequestHandler):
    """Serves a folder, and writes no log."""

    def log_message(self, *given: object) -> None:
        """Nothing."""


def visit(page: Any, address: str) -> tuple[float, float]:
    """Seconds to the first answer and to the visitor's own."""
    begun = time.perf_counter()
    page.goto(address, wait_until="commit")
    page.wait_for_selector(VERDICT)
    first = time.perf_counter() - begun
    page.fill("[name=model]", OWN)
    page.wait_for_selector(f".go-whole[href*='{OWN}']")
    return first, time.perf_counter() - begun


def main() -> int:
    """The command line."""
    with tempfile.TemporaryDirectory() as scratch, sync_playwright() as started:
        site = Path(sys.argv[1]) if sys.argv[1:] else Path(scratch) / "site"
        if not sys.argv[1:]:
            pyodide = os.environ.get("VRAMCAST_PYODIDE")
            build(site, pyodide=Path(pyodide) if pyodide else None)
        host = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=str(site)))
        threading.Thread(target=host.serve_forever, daemon=True).start()
        address = f"http://127.0.0.1:{host.server_address[1]}/"
        browser = started.chromium.launch(executable_path=browser_path(), args=ALONE, timeout=PATIENCE_MS)
        times: dict[str, list[tuple[float, float]]] = {"nothing kept": [], "a second visit": []}
        for _ in range(VISITS):
            context = browser.new_context(locale="en-US")
            context.set_default_timeout(PATIENCE_MS)
            for found in times.values():
                page = context.new_page()
                found.append(visit(page, address))
                page.close()
            context.close()
        for name, found in times.items():
            first, own = (median(seconds) for seconds in zip(*found, strict=True))
            print(f"{name}: first answer {first:.2f} s, own answer {own:.2f} s")
        host.shutdown()
    return 0


if __name__ == "__main__":
    sys.exit(main())
