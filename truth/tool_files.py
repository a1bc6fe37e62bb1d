"""How many of a tool's own files get an answer: `python -m truth.tool_files CHECKOUT GLOB ... [-- OPTION ...]`.

CHECKOUT is a work tree of the tool's repository (none is kept here), each GLOB names its training files in it, and the
options are what a user would add: `--gpus`, and the model where files leave it out. Each file is asked as
`vramcast train --from FILE OPTION ...` (another command with `--command`) from its own folder. `--each REGEX` asks a
file of several recipes once for each that the expression's group finds, as `--args NAME`. `--lines REGEX` asks the
commands that it finds in the blocks of code of documents, each behind `--` as `truth.documented` reads them. `--or`
says what is asked again with, where degrees contradict the cards or want more, as `--or "--gpus 16x8xh100-sxm-80gb"`.
The share that is answered stands last, beside how many of the others the tool itself stops at, as their refusal says;
refusals stand above it, most frequent first, with the files they are of.
"""

from __future__ import annotations

import argparse
import io
import multiprocessing
import os
import re
import shlex
import signal
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from contextlib import chdir, redirect_stderr, redirect_stdout
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final, NamedTuple
from unittest.mock import patch

from truth.documented import commands_of, laid, scripted
from vramcast.cli.main import main as vramcast
from vramcast.cli.shared import EXIT_DOES_NOT_FIT

PROCESSES: Final = 2
SECONDS: Final = 120
"""A file that takes longer counts as refused."""

ANSWERED: Final = (0, EXIT_DOES_NOT_FIT)

CONTRADICTORY: Final = 2
"""The exit status of questions whose degrees do not divide the cards."""

MORE_CARDS: Final = "use more GPUs"
"""What the refusal of degrees says that leave no rank to shard over."""

APART: Final = {
    "of models that only the hub describes": re.compile("HF_HUB_OFFLINE is set"),
    "at which the tool itself stops": re.compile(r"\bstops\b"),
}
"""What the refusals of some files say: the hub is not asked here, and what its tool raises at has no answer."""

SHOWN: Final = 3
"""Files named beside each refusal."""


class Question(NamedTuple):
    """One call of vramcast."""

    name: str  # as it is shown
    folder: Path  # where it is asked
    words: tuple[str, ...]


def asked(question: Question, otherwise: Sequence[str] = (), also: str = "") -> tuple[Question, int, str, float]:
    """The question, exit status, last lines on standard error and seconds."""
    found = _asked(question, ())
    if also and found[1] not in ANSWERED and f"vramcast {also} " in found[2]:
        question = question._replace(words=(also, *question.words[1:]))
        found = _asked(question, ())
    for more in otherwise:
        if found[1] == CONTRADICTORY or MORE_CARDS in found[2]:
            found = _asked(question, shlex.split(more))
    return found


def _asked(question: Question, more: Sequence[str]) -> tuple[Question, int, str, float]:
    out, err = io.StringIO(), io.StringIO()
    start = time.perf_counter()
    command, *rest = question.words  # of options given twice the later counts
    cut = rest.index("--") if "--" in rest else len(rest)
    words = ["vramcast", command, *rest[:cut], *more, *rest[cut:]]
    signal.alarm(SECONDS)
    try:
        with chdir(question.folder), redirect_stdout(out), redirect_stderr(err), patch.object(sys, "argv", words):
            vramcast()
        code = 0
    except SystemExit as end:
        code = int(end.code or 0)
    except TimeoutError:
        return question, 124, f"longer than {SECONDS} s", time.perf_counter() - start
    finally:
        signal.alarm(0)
    return question, code, err.getvalue().strip(), time.perf_counter() - start


def _late(*_: object) -> None:
    raise TimeoutError


def _ready() -> None:
    signal.signal(signal.SIGALRM, _late)


def files_of(checkout: Path, globs: Sequence[str]) -> list[Path]:
    """The files that any of the globs names, each once; a glob that begins with `!` takes files out."""
    found = {path for glob in globs if not glob.startswith("!") for path in checkout.glob(glob) if path.is_file()}
    return sorted(found - {path for glob in globs if glob.startswith("!") for path in checkout.glob(glob[1:])})


def questions_of(
    files: Iterable[Path], checkout: Path, given: argparse.Namespace, options: Sequence[str], drafts: Path
) -> list[Question]:
    """What is asked of the files.

    Args:
        drafts: where files are laid that documents show
    """
    asking = list[Question]()
    for file in files:
        name, words = str(file.relative_to(checkout)), (given.command, "--from", file.name, *options)
        if given.lines:
            for number, found in enumerate(commands_of(file, given.lines)):
                folder = laid(found.files, checkout, drafts / f"{len(asking)}-{number}")
                shown = f"{name}: {found.command[:150]}"
                if script := scripted(found.command, file.parent):
                    asking.append(Question(shown, file.parent, (given.command, *script, *options)))
                else:
                    asking.append(
                        Question(shown, folder, (given.command, *options, "--", found.variables + found.command))
                    )
        elif given.each:
            found_in = re.findall(given.each, file.read_text(errors="replace"), re.MULTILINE)
            asking += (Question(f"{name} {one}", file.parent, (*words, "--args", one)) for one in found_in)
        else:
            asking.append(Question(name, file.parent, words))
    return asking


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
    parser.add_argument("--also", metavar="COMMAND", help="the one that is asked where a refusal names it, as rl")
    parser.add_argument("--each", metavar="REGEX", help="finds the recipes in a file; each is asked by its name")
    parser.add_argument("--lines", metavar="REGEX", help="finds commands in blocks of code; they are asked instead")
    parser.add_argument(
        "--or",
        dest="otherwise",
        action="append",
        default=[],
        metavar="OPTIONS",
        help="what a question that is refused as contradictory is asked again with",
    )
    parser.add_argument("--all", action="store_true", help="name every refused file")
    given = parser.parse_args(words[:cut])
    checkout = given.checkout.resolve()
    os.environ.update({"COLUMNS": "400", "NO_COLOR": "1", "HF_HUB_OFFLINE": "1"})
    refusals: defaultdict[str, list[str]] = defaultdict(list)
    codes: Counter[int] = Counter()
    pools = multiprocessing.get_context("fork")
    with TemporaryDirectory() as drafts, pools.Pool(PROCESSES, _ready, maxtasksperchild=50) as pool:
        files = files_of(checkout, given.globs)
        questions = questions_of(files, checkout, given, words[cut + 1 :], Path(drafts))
        for question, code, text, seconds in pool.imap_unordered(
            partial(asked, otherwise=given.otherwise, also=given.also or ""), questions
        ):
            codes[code] += 1
            if code not in ANSWERED:
                refusals[_sentence(text, Path(question.name).name)].append(question.name)
            if seconds > SECONDS / 4:
                print(f"slow: {question.name} {seconds:.0f} s")
    for sentence, of in sorted(refusals.items(), key=lambda pair: (-len(pair[1]), pair[0])):
        print(f"{len(of):4} {sentence}")
        for path in sorted(of)[: None if given.all else SHOWN]:
            print(f"       {path}")
    answered = sum(codes[code] for code in ANSWERED)
    print(f"exit statuses: {dict(sorted(codes.items()))}")
    counted = {what: sum(len(of) for sentence, of in refusals.items() if said.search(sentence))
               for what, said in APART.items()}
    print(f"answered: {answered} of {len(questions)}", *(f"{count} {what}" for what, count in counted.items() if count),
          sep=", ")
    return 0


if __name__ == "__main__":
    sys.exit(main())
