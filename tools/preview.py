"""The picture of links to the page: `python -m tools.preview` draws the front page as web/page/preview.png has it.

Needs the extras web and page-tests, and a Chromium. Drawn anew where the front page has changed to the eye.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Final

from playwright.sync_api import sync_playwright

from tests.web.page.conftest import ALONE, PATIENCE_MS, browser_path

PICTURE: Final = Path(__file__).parents[1] / "src/vramcast/web/page/preview.png"
SIZE: Final = {"width": 1200, "height": 630}
"""What networks show of a link [pixels]."""


def main() -> int:
    """The command line."""
    command = [sys.executable, "-m", "vramcast", "web", "--port", "0", "--no-open"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server, sync_playwright() as started:
        try:
            assert server.stdout is not None
            found = re.search(r"http://\S+", server.stdout.readline())
            assert found is not None
            browser = started.chromium.launch(executable_path=browser_path(), args=ALONE, timeout=PATIENCE_MS)
            page = browser.new_page(viewport=SIZE, color_scheme="light", locale="en-US")
            page.set_default_timeout(PATIENCE_MS)
            page.goto(found[0])
            page.wait_for_selector(".live-list li:nth-child(4) .badge")
            page.evaluate("document.fonts.ready")
            page.screenshot(path=PICTURE)
        finally:
            server.terminate()
    return 0


if __name__ == "__main__":
    sys.exit(main())
