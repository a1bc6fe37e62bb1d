"""The proof that a change of the code moves no answer: `python -m tools.gold [PART ...] [--write]`.

Each line of a gold file is a command and the hash of all that it comes to: exit status, both outputs, files written. So
a refusal is held like a number, and a line that changes is a question whose answer did. The part `rows` holds the
measured rows instead, each by its predictions. `--write` takes what was found; without it the exit status is 1 where
anything differs, and `--show` prints a command's outputs. `traces` needs the extra `trace`, `rows` the truth files
beside the repository: parts that lack theirs are skipped, in a line that says so.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import shlex
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import chdir, redirect_stderr, redirect_stdout
from hashlib import blake2b
from importlib.util import find_spec
from itertools import islice
from pathlib import Path
from typing import Final, Protocol
from unittest.mock import patch

import time_machine

from truth import score
from vramcast.cli.main import main as vramcast

HERE: Final = Path(__file__).parent
REPOSITORY: Final = HERE.parents[1]
TRUTH: Final = REPOSITORY.parent / "shared" / "truth"
TODAY: Final = "2026-11-01T12:00:00+00:00"
"""Ages of prices are counted from here."""

ENVIRONMENT: Final = {"COLUMNS": "100", "LANG": "C.UTF-8", "NO_COLOR": "1", "HF_HUB_OFFLINE": "1", "TZ": "UTC"}
NEW: Final = "new"
"""In a gold file: a command that was never asked."""

Hashes = Mapping[str, str]


def outcome(command: str) -> tuple[int, str, str, dict[str, bytes]]:
    """Exit status, outputs and written files of a command of vramcast, asked in an empty folder.

    `< N` at its end: what it reads is the message of that row of oom_messages.jsonl.
    """
    command, _, row = command.partition(" < ")
    text = _message(int(row)) if row else ""
    given = io.TextIOWrapper(io.BytesIO(text.encode()), encoding="utf-8")
    out, err = io.StringIO(), io.StringIO()
    words = [word.replace("REPOSITORY", str(REPOSITORY)).replace("TRUTH", str(TRUTH)) for word in shlex.split(command)]
    with tempfile.TemporaryDirectory() as folder, chdir(folder), redirect_stdout(out), redirect_stderr(err):
        try:
            with (
                patch.object(sys, "argv", ["vramcast", *words]), patch.object(sys, "stdin", given),
                patch.object(sys.modules["__main__"], "__package__", ""),  # help names the program that was started
            ):
                vramcast()
            code = 0
        except SystemExit as end:
            code = int(end.code or 0)
        files = {
            path.relative_to(folder).as_posix(): path.read_bytes().replace(bytes(REPOSITORY), b"REPOSITORY")
            for path in sorted(Path(folder).rglob("*")) if path.is_file()
        }
    places = {sys.prefix: "ENVIRONMENT", str(REPOSITORY): "REPOSITORY"}
    printed = [text.getvalue() for text in (out, err)]
    for path, name in places.items():
        printed = [text.replace(path, name) for text in printed]
    return code, *printed, files


def _message(row: int) -> str:
    lines = (TRUTH / "oom_messages.jsonl").read_text(encoding="utf-8").splitlines()
    return str(json.loads(lines[row])["message"])


def answers(known: Hashes, *, every: int = 1) -> Iterator[tuple[str, str]]:
    """Each n-th command again, with the hash of what it comes to."""
    for command in islice(known, 0, None, every):
        code, out, err, files = outcome(command)
        whole = blake2b(digest_size=8)
        for part in (str(code), out, err, *(text for name, data in files.items() for text in (name, data.hex()))):
            whole.update(f"{len(part)} {part}".encode())
        yield command, whole.hexdigest()


def rows(_: Hashes, *, every: int = 1) -> Iterator[tuple[str, str]]:
    """Each measured row, or that of each n-th line of a file, with the hash of its predictions and refusals."""
    for path in score.PUBLISHED_FILES:
        found: dict[int, list[str]] = {}
        for item in score.score_file(path, every=every):
            found.setdefault(item.row, []).append(json.dumps(score.row_document(item), sort_keys=True))
        for row, texts in found.items():
            yield f"{path.name} {row}", blake2b("\n".join(texts).encode(), digest_size=8).hexdigest()


class Part(Protocol):
    """Asks again what a gold file holds."""

    def __call__(self, known: Hashes, *, every: int) -> Iterator[tuple[str, str]]:
        """Each n-th of it, with its hash."""


PARTS: Final[dict[str, Part]] = {
    "questions": answers, "files": answers, "texts": answers, "replays": answers, "traces": answers, "rows": rows,
}


def _lacking(part: str) -> str | None:
    if part == "traces" and find_spec("torch") is None:
        return "the extra `trace` is not installed"
    if part in ("texts", "replays") and not TRUTH.is_dir():
        return f"{TRUTH} is not there"
    return None


def read(part: str) -> dict[str, str]:
    """A gold file: what was asked -> hash."""
    path = HERE / f"{part}.gold"
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    return {asked: found for found, asked in (line.split(maxsplit=1) for line in lines)}


def held(part: str, *, write: bool, every: int = 1) -> int:
    """How many differ; with `write`, what was found is taken. Each N-th is asked; the others stay."""
    known, found = read(part), {}
    for asked, value in PARTS[part](known, every=every):
        found[asked] = value
        if known.get(asked, NEW) != value:
            print(f"{part}: {'new' if known.get(asked, NEW) == NEW else 'changed'}: {asked}", flush=True)
    gone = known.keys() - found.keys() if every == 1 else set()
    for asked in gone:
        print(f"{part}: gone: {asked}")
    differing = len(gone) + sum(known.get(asked) != value for asked, value in found.items())
    print(f"{part}: {differing} of {len(found)} differ")
    if write:
        kept = found if every == 1 else known | found
        text = "".join(f"{value} {asked}\n" for asked, value in kept.items())
        (HERE / f"{part}.gold").write_text(text, encoding="utf-8")
    return differing


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m tools.gold", description=__doc__.splitlines()[0])
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"of {', '.join(PARTS)}; by default all that can run")
    parser.add_argument("--write", action="store_true", help="take what was found as right")
    parser.add_argument("--every", type=int, default=1, metavar="N", help="ask only each N-th")
    parser.add_argument("--show", metavar="COMMAND", help="print what this command comes to")
    asked = parser.parse_args()
    if unknown := set(asked.parts) - PARTS.keys():
        parser.error(f"no part {', '.join(sorted(unknown))}: one of {', '.join(PARTS)}")
    os.environ.update(ENVIRONMENT)
    with time_machine.travel(TODAY, tick=True):
        if asked.show:
            print(*outcome(asked.show), sep="\n")
            return 0
        differing = 0
        for part in asked.parts or PARTS:
            if reason := _lacking(part):
                print(f"{part}: skipped, {reason}")
            else:
                differing += held(part, write=asked.write, every=asked.every)
    return 1 if differing and not asked.write else 0


if __name__ == "__main__":
    sys.exit(main())
