"""How many of a tool's own files get an answer: `python -m truth.tool_files CHECKOUT GLOB ... [-- OPTION ...]`.

CHECKOUT is a work tree of the tool's repository (none is kept here), each GLOB names its training files in it, and the
options are what a user would add: `--gpus`, and the model where files leave it out. Each file is asked as
`vramcast train --from FILE OPTION ...` (another command with `--command`) from its own folder. The share that is
answered stands last; refusals stand above it, most frequent first, with the files they are of.
"""

from __future__ import annotations

import argparse
import io
import multiprocessing
import os
import signal
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Sequence
from contextlib import chdir, redirect_stderr, redirect_stdout
from functools import partial
from pathlib import Path
from typing import Final
from unittest.mock import patch

from vramcast.cli.main import main as vramcast
from vramcast.cli.shared import EXIT_DOES_NOT_FIT

PROCESSES: Final = 2
SECONDS: Final = 120
"""A file that takes longer counts as refused."""

ANSWERED: Final = (0, EXIT_DOES_NOT_FIT)

SHOWN: Final = 3
"""Files named beside each refusal."""


def asked(file: Path, command: str, options: Sequence[str]) -> tuple[Path, int, str, float]:
    """The file, exit status, last lines on standard error and seconds of one question."""
    out, err = io.StringIO(), io.StringIO()
    words = ["vramcast", command, "--from", file.name, *options]
    start = time.perf_counter()
    signal.alarm(SECONDS)
    try:
        with chdir(file.parent), redirect_stdout(out), redirect_stderr(err), patch.object(sys, "argv", words):
            vramcast()
        code = 0
    except SystemExit as end:
        code = int(end.code or 0)
    except TimeoutError:
        return file, 124, f"longer than {SECONDS} s", time.perf_counter() - start
    finally:
        signal.alarm(0)
    return file, code, err.getvalue().strip(), time.perf_counter() - start


def _late(*_: object) -> None:
    raise TimeoutError


def _ready() -> None:
    signal.signal(signal.SIGALRM, _late)


def files_of(checkout: Path, globs: Sequence[str]) -> list[Path]:
    """The files that any of the globs names, each once; a glob that begins with `!` takes files out."""
    found = {path for glob in globs if not glob.startswith("!") for path in checkout.glob(glob) if path.is_file()}
    return sorted(found - {path for glob in globs if glob.startswith("!") for path in checkout.glob(glob[1:])})


def _sentence(text: str, name: str) -> str:
    return text.splitlines()[-1].replace(f" {name}:", "") if text else ""


def main() -> int:
    """The command line."""
    words = sys.argv[1:]
    cut = words.index("--") if "--" in words else len(words)
    parser = argparse.ArgumentParser(prog="python -m truth.tool_files", description=__doc__.splitlines()[0])
    parser.add_argument("checkout", type=Path)
    parser.add_argument("globs", nargs="+", metavar="GLOB", help="of training files; `!GLOB` takes files out")
    parser.add_argument("--command", default="train", help="which command of vramcast is asked (train)")
    parser.add_argument("--all", action="store_true", help="name every refused file")
    given = parser.parse_args(words[:cut])
    files = files_of(given.checkout.resolve(), given.globs)
    os.environ.update({"COLUMNS": "400", "NO_COLOR": "1", "HF_HUB_OFFLINE": "1"})
    refusals: defaultdict[str, list[Path]] = defaultdict(list)
    codes: Counter[int] = Counter()
    with multiprocessing.get_context("fork").Pool(PROCESSES, _ready, maxtasksperchild=50) as pool:
        ask = partial(asked, command=given.command, options=words[cut + 1:])
        for file, code, text, seconds in pool.imap_unordered(ask, files):
            codes[code] += 1
            if code not in ANSWERED:
                refusals[_sentence(text, file.name)].append(file.relative_to(given.checkout.resolve()))
            if seconds > SECONDS / 4:
                print(f"slow: {file} {seconds:.0f} s")
    for sentence, of in sorted(refusals.items(), key=lambda pair: (-len(pair[1]), pair[0])):
        print(f"{len(of):4} {sentence}")
        for path in sorted(of)[: None if given.all else SHOWN]:
            print(f"       {path}")
    answered = sum(codes[code] for code in ANSWERED)
    print(f"exit statuses: {dict(sorted(codes.items()))}")
    print(f"answered: {answered} of {len(files)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
