"""How many public scripts get an answer as they stand: `python -m truth.public_scripts CHECKOUTS [WORD ...]`.

CHECKOUTS holds work trees of the repositories that `public_scripts.csv` names, each in OWNER/NAME (none is kept here).
Each row is asked as `vramcast trace --sandbox COMMAND` from its folder of that work tree, with the packages of the
Python that runs this, in a fork of one process that has loaded torch, as loading it takes longer than many of them.
Versions that its instructions pin and that differ from those lie in `CHECKOUTS/.packages/NAME==VERSION`, as `pip
install --no-deps --target` puts them there.
WORDs choose the rows that have one of them, `--part 1/4` every fourth. With `--record FILE` what a row came to is kept
in a line of it, and rows that were answered there are not asked again. The share that is answered stands last, above
it every other one with its sentence.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import re
import shlex
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from signal import SIGKILL
from typing import Any, Final, NamedTuple

from vramcast.catalogue.gpus import load_gpu
from vramcast.cli.main import EXIT_INTERNAL, answered
from vramcast.cli.shared import EXIT_DOES_NOT_FIT

TABLE: Final = Path(__file__).with_suffix(".csv")
ANSWERED, CRASHED, REFUSED = "answered", "crashed", "refused"
KINDS: Final = {
    "lacks a package": re.compile(r"which this Python does not have|wants another version of it|not installed|"
                                  r"is enough, as compiled modules"),
    "lacks data": re.compile(r"which is not there|data are not there|files that are not there|"
                             r"fetches something that does not answer"),
    "too slow": re.compile(r"was still running after"),
    "blamed": re.compile(r"the script itself failed|exited with"),
}
"""What a refusal is about, by its words; any other is "refused"."""
GRACE_S: Final = 60  # beyond its time limit, for what comes before and after the script


class Script(NamedTuple):
    """A row of the table."""

    repository: str
    commit: str  # of the work tree that was tried
    folder: str  # within it, from where a reader of its instructions would start it
    command: str  # behind `vramcast trace`
    packages: str = ""  # "timm==0.3.2 ...": versions that its instructions pin


def kind_of(code: int, sentence: str) -> str:
    """What an exit status and the last line on standard error say."""
    if code in (0, EXIT_DOES_NOT_FIT):
        return ANSWERED
    if code == EXIT_INTERNAL or code < 0 or sentence.startswith("Traceback"):
        return CRASHED
    return next((kind for kind, words in KINDS.items() if words.search(sentence)), REFUSED)


def chosen(rows: Sequence[Script], words: Sequence[str], part: str) -> list[Script]:
    """Rows that have one of the words, of which a share: "2/4" is every fourth from the second."""
    first, of = map(int, part.split("/"))
    named = [row for row in rows if not words or any(word in f"{row.repository} {row.command}" for word in words)]
    return named[first - 1::of]


def read_table() -> list[Script]:
    with TABLE.open(encoding="utf-8", newline="") as file:
        return [Script(**row) for row in csv.DictReader(file)]


def asked(script: Script, checkouts: Path, time_limit_s: int) -> tuple[str, str, float]:
    """Trace one: what kind of outcome, the last line on standard error, seconds."""
    words = ["trace", "--sandbox", "--time-limit", str(time_limit_s), *shlex.split(script.command)]
    start = time.perf_counter()
    with tempfile.TemporaryDirectory(prefix="vramcast-public-") as name:
        errors = Path(name) / "errors"
        process = os.fork()
        if not process:
            sys.path[1:1] = [str(checkouts / ".packages" / pinned) for pinned in script.packages.split()]
            _become(checkouts / script.repository / script.folder, Path(name) / "output", errors)
            os._exit(answered(words))
        code = _wait(process, time_limit_s + GRACE_S)
        sentence = (errors.read_text(encoding="utf-8", errors="replace").strip().splitlines() or [""])[-1]
    return kind_of(code, sentence), sentence, time.perf_counter() - start


def _become(folder: Path, output: Path, errors: Path) -> None:
    """This fork is the command: of its own process group, in the script's folder, its output in files."""
    os.setpgid(0, 0)
    os.chdir(folder)
    os.environ.update(COLUMNS="400", NO_COLOR="1", OMP_NUM_THREADS="1")
    flags = os.O_WRONLY | os.O_CREAT
    for number, file in enumerate((os.open(os.devnull, os.O_RDONLY), os.open(output, flags), os.open(errors, flags))):
        os.dup2(file, number)
    sys.stdout, sys.stderr = os.fdopen(1, "w"), os.fdopen(2, "w", buffering=1)


def _wait(process: int, limit_s: float) -> int:
    """Its exit status; one that takes longer is ended, with all that it started."""
    end = time.monotonic() + limit_s
    while time.monotonic() < end:
        found, status = os.waitpid(process, os.WNOHANG)
        if found:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.1)
    try:
        os.killpg(process, SIGKILL)
    except ProcessLookupError:  # a fork within the group of the command
        os.kill(process, SIGKILL)
    return os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])


def _load_torch() -> None:
    """Load what every trace needs, and let scripts run in forks of it."""
    import torch

    from vramcast.tracing import child, run, script_parts  # noqa: F401 (which loads the rest, as the command does)
    from vramcast.tracing.session import Session

    with Session(load_gpu("t4")).active():  # which loads the rest
        pass

    def forked(job: Any, folder: Path) -> int:
        process = os.fork()
        if not process:
            output = os.open(folder / script_parts.OUTPUT, os.O_WRONLY | os.O_CREAT)
            os.dup2(output, 1)
            os.dup2(output, 2)
            torch.set_num_threads(1)  # the others did not come along
            vars(sys.modules["__main__"]).pop("__file__", None)  # the script is, not this file
            try:
                child.start(str(folder))
            finally:  # where that fails nothing above may go on in this fork
                traceback.print_exc()
                sys.stderr.flush()
                os._exit(1)
        return _wait(process, job.time_limit_s - job.spent_s + 2 * script_parts.GRACE_S)

    script_parts._wait = forked


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m truth.public_scripts", description=__doc__.splitlines()[0])
    parser.add_argument("checkouts", type=Path, help="folder with OWNER/NAME of every repository")
    parser.add_argument("words", nargs="*", metavar="WORD", help="of rows that are asked; by default all")
    parser.add_argument("--part", default="1/1", help="2/4: every fourth row, from the second")
    parser.add_argument("--record", type=Path, help="file of outcomes: what was answered is not asked again")
    parser.add_argument("--time-limit", type=int, default=300, help="seconds that each script may run (300)")
    given = parser.parse_intermixed_args()
    checkouts: Path = given.checkouts.resolve()
    rows = chosen(read_table(), given.words, given.part)
    there = [row for row in rows if (checkouts / row.repository / row.folder).is_dir()]
    record: Path | None = given.record
    lines = record.read_text(encoding="utf-8").splitlines() if record is not None and record.is_file() else []
    before = {(*line[:-2],) for line in map(json.loads, lines) if line[-2] == ANSWERED}
    kinds: Counter[str] = Counter()
    _load_torch()
    for row in there:
        if row in before:
            kinds[ANSWERED] += 1
            continue
        kind, sentence, seconds = asked(row, checkouts, given.time_limit)
        kinds[kind] += 1
        print(f"{kind:16}{seconds:5.0f} s  {row.repository}/{row.folder} {row.command}", flush=True)
        if kind != ANSWERED:
            print(f"    {sentence}", flush=True)
        if record is not None:
            with record.open("a", encoding="utf-8") as file:
                file.write(json.dumps([*row, kind, sentence]) + "\n")
    print(f"work trees that are not there: of {len(rows) - len(there)} rows")
    print(", ".join(f"{kind}: {count}" for kind, count in kinds.most_common()))
    print(f"{ANSWERED}: {kinds[ANSWERED]} of {len(there)}")
    return 1 if kinds[CRASHED] else 0


if __name__ == "__main__":
    sys.exit(main())
