"""Regenerate what the documents show: `python -m tools.docs [--check]`.

In README.md and docs/*.md, every console block that starts with `$ vramcast` shows the real output of that command.
With --check nothing is written, and a difference is an error.
"""

from __future__ import annotations

import argparse
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parent.parent
BLOCK: Final = re.compile(
    r"^```console(?P<lines> lines=\d+)?\n\$ (?P<command>vramcast [^\n]*)\n(?P<output>.*?)^```$", re.M | re.S
)
SECONDS: Final = 120


def documents() -> list[Path]:
    """The documents that show commands."""
    return [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


def regenerated(text: str) -> str:
    """The document with every command's present output; `lines=N` keeps the first N lines of it."""
    return BLOCK.sub(_fresh_block, text)


def _fresh_block(match: re.Match[str]) -> str:
    output = output_of(match["command"])
    limit = match["lines"] or ""
    if limit:
        output = "".join(output.splitlines(keepends=True)[: int(limit.partition("=")[2])])
    return f"```console{limit}\n$ {match['command']}\n{output}```"


def output_of(command: str) -> str:
    """What a command prints, standard output and errors together, ended by one newline."""
    arguments = [sys.executable, "-m", "vramcast", *shlex.split(command)[1:]]
    environment = {**os.environ, "COLUMNS": "110", "LC_ALL": "C.UTF-8", "NO_COLOR": "1"}
    done = subprocess.run(
        arguments, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=SECONDS, check=False
    )
    return (done.stdout + done.stderr).rstrip() + "\n"


def main(arguments: list[str] | None = None) -> int:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m tools.docs", description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="write nothing; fail on a difference")
    options = parser.parse_args(arguments)
    stale = []
    for path in documents():
        text = path.read_text(encoding="utf-8")
        fresh = regenerated(text)
        if fresh != text:
            stale.append(path.relative_to(ROOT).as_posix())
            if not options.check:
                path.write_text(fresh, encoding="utf-8")
    if stale:
        print(("stale: " if options.check else "rewritten: ") + ", ".join(stale))
    return 1 if stale and options.check else 0


if __name__ == "__main__":
    sys.exit(main())
