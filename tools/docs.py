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
ACCURACY: Final = re.compile(r"<!-- accuracy -->\n.*?<!-- /accuracy -->", re.S)
TRUTH_FILES: Final = ("megatron_b200.jsonl", "training.jsonl", "kernels.jsonl")
SECONDS: Final = 120


def documents() -> list[Path]:
    """The documents that show commands."""
    return [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


def regenerated(text: str) -> str:
    """The document with every command's present output; `lines=N` keeps the first N lines of it."""
    return ACCURACY.sub(_fresh_accuracy, BLOCK.sub(_fresh_block, text))


def _fresh_accuracy(match: re.Match[str]) -> str:
    """The accuracy table, where the measured runs are at hand."""
    folder = Path(os.environ.get("VRAMCAST_TRUTH") or ROOT.parent / "shared" / "truth")
    files = [folder / name for name in TRUTH_FILES]
    if not all(path.is_file() for path in files):
        return match[0]
    return f"<!-- accuracy -->\n{accuracy_table(files)}<!-- /accuracy -->"


def accuracy_table(files: list[Path]) -> str:
    """One line per group and level; single operators together."""
    from truth.score import score_file, statistics_of

    lines = ["| measured runs | level | cases | predicted | median error | 95 % below | worst | under by > 5 % |"]
    lines.append("|---|---|---|---|---|---|---|---|")
    scored = [item for path in files for item in score_file(path) if not item.mark]
    named = [("single operators" if "/" in item.group else item.group, item) for item in scored]
    for name, level in sorted({(name, item.level) for name, item in named}):
        record = statistics_of([item for other, item in named if (other, item.level) == (name, level)])
        if "worst" in record:
            lines.append(
                f"| {name} | {level} | {record['rows']} | {record['predicted']} | {record['median_abs_error']:.2%} | "
                f"{record['p95_abs_error']:.1%} | {record['worst']['error']:+.1%} | "
                f"{record['underestimated_over_5_percent_share']:.0%} |"
            )
        for peer, part in record.get("peers", {}).items():
            lines.append(f"| &nbsp;&nbsp;{peer} on the same rows | {level} | {record['rows']} | {record['rows']} | "
                         f"{part['median_abs_error']:.2%} | {part['max_abs_error']:.1%} (max) | | |")
    return "\n".join(lines) + "\n"


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
