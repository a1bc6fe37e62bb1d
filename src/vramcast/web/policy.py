"""What the page may load, wherever it is served from: the Content-Security-Policy."""

from __future__ import annotations

import base64
import hashlib
from importlib.resources import files
from typing import Final

IN_BROWSER: Final = {"script-src": "'wasm-unsafe-eval'", "worker-src": "'self'"}
"""What Python in the browser needs beside the rest."""


def content_policy(*, in_browser: bool = False) -> str:
    """What the page may load: its own files, and inside a frame of its own the report of a recording.

    Such a frame inherits this policy, so the one script and the one style of that report stand here by their hashes.

    Args:
        in_browser: the policy of the static site, which runs Python in a worker and says it in the page itself
    """
    folder = files("vramcast.report") / "page"
    script, style = (_hash("\n" + (folder / name).read_text(encoding="utf-8")) for name in ("page.js", "page.css"))
    allowed = {
        "default-src": "'none'",
        "script-src": f"'self' '{script}'",
        "style-src": f"'self' '{style}'",
        "img-src": "'self' data: blob:",
        "connect-src": "'self'",
        "frame-src": "'self' blob:",
        "base-uri": "'none'",
        "form-action": "'none'",
    }
    if in_browser:
        allowed |= {name: f"{allowed.get(name, '')} {more}".strip() for name, more in IN_BROWSER.items()}
    else:
        allowed["frame-ancestors"] = "'none'"  # which a page cannot say of itself
    return "; ".join(f"{name} {value}" for name, value in allowed.items())


def _hash(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
