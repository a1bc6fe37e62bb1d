"""`vramcast compare`: how much more memory a change takes, and which part of it does."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

import click

from vramcast.cli.shared import (
    EXIT_DOES_NOT_FIT,
    Reporting,
    coloured,
    json_option,
    language_option,
    report_option,
)
from vramcast.errors import InvalidSpec, Note, SourceError, VramcastError
from vramcast.report.messages import words_here
from vramcast.report.written.compared import Comparison, limit_bytes, read_answer, read_answer_file, render

ASKED: Final = ("train", "serve", "rl", "trace")
"""Commands whose answer is one plan."""


class Refused(VramcastError):
    """The question has no answer; the sentence is that of the command that was asked, its first word the kind."""


@click.command("compare")
@click.argument("base")
@click.argument("head", nargs=-1, required=True, metavar="[HEAD | -- COMMAND ...]", type=click.UNPROCESSED)
@click.option(
    "--budget", metavar="SIZE|+SIZE|+N%",
    help="exit code 1 where more is needed than 22GiB, or than +2GiB or +5% above what was",
)
@report_option
@json_option
@language_option
def command(
    base: str, head: tuple[str, ...], budget: str | None, report_file: Path | None, as_json: bool, lang: str | None
) -> int:
    """How a peak changed from BASE to HEAD, and which entries, modules and functions changed it.

    BASE and HEAD are answers that `train`, `serve`, `rl` or `trace` wrote with --json. With a command behind --, BASE
    is a revision of git: the question is asked there and of the files as they are now. Exit code: 1 where HEAD does
    not fit or is past the budget.

    \b
    vramcast compare before.json after.json
    vramcast compare origin/main --budget +5% -- train --file job.toml
    vramcast compare v1.2 --report change.md -- trace train.py --gpu rtx-4090
    """
    if budget is not None:
        limit_bytes(budget, None)  # refused before any work
    reporting = Reporting(report_file, "compare").checked()
    found = (at_revision if head[0] in ASKED else of_files)(base, head)._replace(budget=budget)
    words = words_here(lang)
    failing = found.is_over or not found.after.fits
    if as_json:
        click.echo(json.dumps(found.document(), indent=1))
    else:
        click.echo(coloured(render(found, words), "bad" if failing else "good"), nl=False)
    reporting.write(found, words, as_json=as_json, asked={})
    return EXIT_DOES_NOT_FIT if failing else 0


def of_files(base: str, head: tuple[str, ...]) -> Comparison:
    """Two answers in files."""
    if len(head) > 1:
        commands = ", ".join(ASKED)
        raise InvalidSpec(
            "{} is neither one file nor a command; behind BASE stands HEAD.json, or -- and one of {}",
            " ".join(head)[:80], commands
        )
    return Comparison(read_answer_file(Path(base)), read_answer_file(Path(head[0])), names=(base, head[0]))


def at_revision(base: str, command: tuple[str, ...]) -> Comparison:
    """One question at a revision and of the files as they are."""
    try:
        after = read_answer(_asked(command, Path.cwd()), " ".join(command)[:80])
    except Refused as error:
        raise InvalidSpec("now: {}", error) from None
    try:
        with _checked_out(base) as folder:
            before = read_answer(_asked(command, folder), base)
    except Refused as error:
        return Comparison(None, after, refusal=str(error), names=(base, ""))
    return Comparison(before, after, names=(base, ""))


def _asked(command: tuple[str, ...], folder: Path) -> bytes:
    """The answer that a command prints in a folder; raises Refused with its sentence where it prints none."""
    words = [sys.executable, "-m", "vramcast", *_with_json(command)]
    done = subprocess.run(words, cwd=folder, stdin=subprocess.DEVNULL, capture_output=True, check=False)
    if done.returncode not in (0, EXIT_DOES_NOT_FIT) or not done.stdout:
        raise Refused(done.stderr.decode(errors="replace").strip()[-2000:])
    return done.stdout


def _with_json(command: tuple[str, ...]) -> list[str]:
    """The command with --json among its own options, not among a script's."""
    place = command.index("--") if "--" in command else len(command)
    return [*command[:place], "--json", *command[place:]]


@contextmanager
def _checked_out(revision: str) -> Iterator[Path]:
    """A revision's files in a folder of their own; inside it, the place of this one."""
    top = _git("rev-parse", "--show-toplevel")
    commit = _git("rev-parse", "--verify", "--quiet", "--end-of-options", f"{revision}^{{commit}}")
    with TemporaryDirectory(prefix="vramcast-") as temporary:
        tree = Path(temporary) / "tree"
        _git("worktree", "add", "--quiet", "--detach", str(tree), commit)
        try:
            place = tree / Path.cwd().resolve().relative_to(Path(top).resolve())
            if not place.is_dir():
                raise Refused(Note("{} has no folder {}", revision, place.relative_to(tree)))
            yield place
        finally:
            _git("worktree", "remove", "--force", str(tree))


def _git(*words: str) -> str:
    try:
        done = subprocess.run(["git", *words], capture_output=True, text=True, check=False)
    except OSError as error:
        raise SourceError("git cannot be run: {}; compare two answers that --json wrote", error.strerror) from None
    if done.returncode:
        reason = done.stderr.strip().partition("\n")[0] or Note(
            "no such revision: {}", words[-1].removesuffix("^{commit}")
        )
        raise SourceError("git {}: {}; a shallow clone lacks older commits: git fetch --unshallow", words[0], reason)
    return done.stdout.strip()
