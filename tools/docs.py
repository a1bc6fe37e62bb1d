"""Regenerate what the documents show: `python -m tools.docs [--check]`.

In README.md and docs/*.md, every console block that starts with `$ vramcast` shows the real output of that command,
and every `<!-- report LINES: vramcast ... -->` the beginning of the report that it writes.
With --check nothing is written, and a difference is an error. Where a command needs a library that is not installed
(PyTorch), its output stays as it is.
"""

from __future__ import annotations

import argparse
import io
import os
import re
import shlex
import subprocess
import sys
from contextlib import chdir, redirect_stderr, redirect_stdout, suppress
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final
from unittest.mock import patch

from vramcast.cli.main import main as vramcast

ROOT: Final = Path(__file__).resolve().parent.parent
BLOCK: Final = re.compile(
    r"^```console(?P<lines> lines=\d+)?\n\$ (?P<command>vramcast [^\n]*)\n(?P<output>.*?)^```$", re.M | re.S
)
ACCURACY: Final = re.compile(r"<!-- (?P<what>(?:serving )?accuracy) -->\n.*?<!-- /(?P=what) -->", re.S)
FORMATS: Final = re.compile(r"<!-- (?P<what>formats|example) -->\n.*?<!-- /(?P=what) -->", re.S)
OPTIONS: Final = re.compile(r"<!-- allocator options -->\n.*?<!-- /allocator options -->", re.S)
FAILURES: Final = re.compile(r"<!-- failure (?P<what>families|figures|facts) -->\n.*?<!-- /failure (?P=what) -->", re.S)
WATCH: Final = re.compile(r"<!-- watch (?P<what>metrics|schema) -->\n.*?<!-- /watch (?P=what) -->", re.S)
WEB: Final = re.compile(r"<!-- web (?P<what>routes|example) -->\n.*?<!-- /web (?P=what) -->", re.S)
RELEASES: Final = re.compile(r"<!-- rl releases -->\n.*?<!-- /rl releases -->", re.S)
STEP_TIMES: Final = re.compile(r"<!-- step times -->\n.*?<!-- /step times -->", re.S)
REPORT: Final = re.compile(r"<!-- report (?P<lines>\d+): (?P<command>vramcast [^\n]*) -->\n.*?<!-- /report -->", re.S)
TRACED: Final = ("torchvision", "timm", "transformers", "diffusers")
"""Libraries of targets that documents trace."""

SECONDS: Final = 900  # on a machine that is busy with other tests, too


def documents() -> list[Path]:
    """The documents that show commands."""
    return [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


def shown_again(text: str, *, only_traces: bool = False) -> str:
    """The document with every command's present output; `lines=N` keeps the first N lines of it."""
    if only_traces:
        return BLOCK.sub(lambda match: _fresh_block(match) if libraries_of(match["command"]) else match[0], text)
    return REPORT.sub(_fresh_report, BLOCK.sub(_fresh_block, text))


def tabled_again(text: str) -> str:
    """The document with every table that is made from code, data or the measured rows."""
    for pattern, fresh in (
        (ACCURACY, _fresh_accuracy), (STEP_TIMES, _fresh_step_times), (FORMATS, _fresh_formats),
        (OPTIONS, _fresh_options), (FAILURES, _fresh_failures), (WATCH, _fresh_watch), (WEB, _fresh_web),
        (RELEASES, _fresh_releases),
    ):
        text = pattern.sub(fresh, text)
    return text


def _fresh_formats(match: re.Match[str]) -> str:
    """The table of formats that are written, and a file as an example."""
    from tools.formats import example, formats_table

    what = match["what"]
    return f"<!-- {what} -->\n{formats_table() if what == 'formats' else example()}<!-- /{what} -->"


def _fresh_options(match: re.Match[str]) -> str:
    """The options of the allocator, by the version that brought them."""
    from vramcast.allocator.settings import OPTIONS as KEYS

    rows = [
        f"| `{key}` | {'.'.join(map(str, option.since))} | {'simulated' if option.acts else 'read; changes no size'} |"
        for key, option in KEYS.items()
    ]
    table = "\n".join(["| option | since | |", "|---|---|---|", *rows])
    return f"<!-- allocator options -->\n{table}\n<!-- /allocator options -->"


def _fresh_failures(match: re.Match[str]) -> str:
    """What is recognised in texts about memory that ran out."""
    from tools import failures

    tables = {"families": failures.families_table, "figures": failures.figures_table, "facts": failures.facts_table}
    return f"<!-- failure {match['what']} -->\n{tables[match['what']]()}<!-- /failure {match['what']} -->"


def _fresh_watch(match: re.Match[str]) -> str:
    """What `vramcast watch` exports and records."""
    from tools import watch

    tables = {"metrics": watch.metrics_table, "schema": watch.schema_table}
    return f"<!-- watch {match['what']} -->\n{tables[match['what']]()}<!-- /watch {match['what']} -->"


def _fresh_web(match: re.Match[str]) -> str:
    """The routes of the JSON API, and a question with its reply."""
    from tools import web

    texts = {"routes": web.routes_table, "example": web.example}
    return f"<!-- web {match['what']} -->\n{texts[match['what']]()}<!-- /web {match['what']} -->"


def _fresh_releases(match: re.Match[str]) -> str:
    """What holds in which release of verl."""
    from tools.post_training import releases_table

    return f"<!-- rl releases -->\n{releases_table()}<!-- /rl releases -->"


def _fresh_report(match: re.Match[str]) -> str:
    """The first lines of the report that a command writes as Markdown; the date stands at its end."""
    with TemporaryDirectory() as folder:
        path = Path(folder) / "report.md"
        output_of(f"{match['command']} --report {path}")
        lines = path.read_text(encoding="utf-8").splitlines()[: int(match["lines"])]
    shown = "\n".join(("````markdown", *lines, "````"))
    return f"<!-- report {match['lines']}: {match['command']} -->\n{shown}\n<!-- /report -->"


def _fresh_accuracy(match: re.Match[str]) -> str:
    """How right the predictions are, of training or of serving."""
    from truth import tables

    what = match["what"]
    table = tables.serving_table() if what == "serving accuracy" else tables.training_table()
    return f"<!-- {what} -->\n{table}<!-- /{what} -->"


def _fresh_step_times(_: re.Match[str]) -> str:
    """Published step times beside ours."""
    from benchmarks.step_time import markdown, published, stated
    from truth.score import PUBLISHED

    lines = "\n".join(markdown([*published(), *stated(PUBLISHED)]))
    return f"<!-- step times -->\n{lines}\n<!-- /step times -->"


def _fresh_block(match: re.Match[str]) -> str:
    if not all(find_spec(library) for library in libraries_of(match["command"])):
        return match[0]
    output = output_of(match["command"])
    limit = match["lines"] or ""
    if limit:
        output = "".join(output.splitlines(keepends=True)[: int(limit.partition("=")[2])])
    return f"```console{limit}\n$ {match['command']}\n{output}```"


def libraries_of(command: str) -> list[str]:
    """What a command cannot run without: traces need torch and the library of their target."""
    words = shlex.split(command)[1:]
    targets = [word for word in words[1:2] if ":" in word or words[0] == "trace"]
    if words[0] not in ("trace", "layers") or not targets:
        return []
    scheme = targets[0].partition(":")[0].partition(".")[0]
    return ["torch", *([scheme] if scheme in TRACED else [])]


@cache  # a trace that two documents show takes long
def output_of(command: str) -> str:
    """What a command prints, standard output and errors together, ended by one newline."""
    words, out, err = shlex.split(command), io.StringIO(), io.StringIO()
    environment = {"COLUMNS": "110", "LC_ALL": "C.UTF-8", "NO_COLOR": "1"}
    if libraries_of(command):  # a trace leaves its mark on torch: it gets a process of its own
        done = subprocess.run(
            [sys.executable, "-m", *words], cwd=ROOT, env=os.environ | environment, capture_output=True, text=True,
            timeout=SECONDS, check=False,
        )
        return (done.stdout + done.stderr).rstrip() + "\n"
    with (
        chdir(ROOT), redirect_stdout(out), redirect_stderr(err), patch.dict(os.environ, environment),
        patch.object(sys, "argv", words), suppress(SystemExit),
        patch.object(sys.modules["__main__"], "__package__", ""),  # help names the program that was started
    ):
        vramcast()
    return (out.getvalue() + err.getvalue()).rstrip() + "\n"


def main(arguments: list[str] | None = None) -> int:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m tools.docs", description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="write nothing; fail on a difference")
    options = parser.parse_args(arguments)
    stale = []
    for path in documents():
        text = path.read_text(encoding="utf-8")
        fresh = tabled_again(shown_again(text))
        if fresh != text:
            stale.append(path.relative_to(ROOT).as_posix())
            if not options.check:
                path.write_text(fresh, encoding="utf-8")
    if stale:
        print(("stale: " if options.check else "rewritten: ") + ", ".join(stale))
    return 1 if stale and options.check else 0


if __name__ == "__main__":
    sys.exit(main())
