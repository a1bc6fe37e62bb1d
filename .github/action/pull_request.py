"""What the GitHub Action does: `vramcast compare`; its report goes into the job's summary and one comment."""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import shlex
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

LONGEST = 65_000
"""Characters of a comment; GitHub refuses longer ones."""
PAGE = 100
TIMEOUT_S = 30


def main() -> int:
    """The exit code of `vramcast compare`, whether the comment could be written or not."""
    command, budget = os.environ["COMMAND"], os.environ.get("BUDGET")
    with TemporaryDirectory() as folder:
        path = Path(folder) / "change.md"
        words = [sys.executable, "-m", "vramcast", "compare", os.environ["BASE"], "--report", str(path)]
        words += ["--budget", budget] if budget else []
        code = subprocess.run([*words, "--", *shlex.split(command)], check=False).returncode
        if not path.is_file():
            return code or 1
        text = path.read_text(encoding="utf-8")
    with Path(os.environ["GITHUB_STEP_SUMMARY"]).open("a", encoding="utf-8") as summary:
        summary.write(text)
    event = json.loads(Path(os.environ["GITHUB_EVENT_PATH"]).read_text(encoding="utf-8"))
    if "pull_request" in event and os.environ.get("TOKEN"):
        try:
            comment(event["pull_request"]["number"], command, text)
        except (urllib.error.URLError, OSError) as error:  # as for pull requests of forks, whose token only reads
            print(f"::warning::vramcast: no comment on the pull request ({error}); its text is in the summary")
    return code


def comment(number: int, command: str, text: str) -> None:
    """Write the one comment of this command, over the one of an earlier run."""
    mark = f"<!-- vramcast {hashlib.sha256(command.encode()).hexdigest()[:12]} -->"
    body = {"body": f"{mark}\n{text}"[:LONGEST]}
    issues = f"/repos/{os.environ['GITHUB_REPOSITORY']}/issues"
    for page in itertools.count(1):
        found = asked("GET", f"{issues}/{number}/comments?per_page={PAGE}&page={page}")
        for one in found:
            if (one["body"] or "").startswith(mark):
                asked("PATCH", f"{issues}/comments/{one['id']}", body)
                return
        if len(found) < PAGE:
            break
    asked("POST", f"{issues}/{number}/comments", body)


def asked(method: str, path: str, body: dict[str, str] | None = None) -> Any:
    """A reply of GitHub's API."""
    request = urllib.request.Request(
        os.environ["GITHUB_API_URL"] + path, method=method, data=None if body is None else json.dumps(body).encode(),
        headers={"Authorization": f"Bearer {os.environ['TOKEN']}", "Accept": "application/vnd.github+json"},
    )
    with urllib.request.urlopen(request, timeout=TIMEOUT_S) as reply:
        return json.load(reply)


if __name__ == "__main__":
    sys.exit(main())
