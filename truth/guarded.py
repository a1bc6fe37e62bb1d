"""Jobs whose end is known, through the guard: would `vramcast run -- CMD` have refused those that ran out of memory?

Each row of `recipes.jsonl` becomes a command by our own writers, or a job file where none can say all of it, and is
judged on simulated cards. A row that ran out is a failing job; one that was measured ran, and fails by definition where
others hold so much of its cards that less is free than it allocated (what it reserved it could give back): that is
asked too, as `crowded`. Rows without a question are counted apart.

    python -m truth.guarded [--every N] [FILE]
"""

from __future__ import annotations

import argparse
import contextlib
import json
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple
from unittest import mock

from truth.contract import Refused
from truth.rows import asked
from vramcast.api import job_of, serve_job_of
from vramcast.catalogue.gpus import load_gpu
from vramcast.domain.observation import Card, GpuSample
from vramcast.domain.verdict import Fit
from vramcast.errors import Unsupported, VramcastError
from vramcast.formats.launch import STARTS
from vramcast.formats.registry import EMITTERS
from vramcast.formats.write import files_of, unsaid, write_configs
from vramcast.question.files import save_job
from vramcast.question.options import OPTIONS
from vramcast.question.tables import SERVE_OPTIONS
from vramcast.units import GIB, ceil_div
from vramcast.watch import guard, here
from vramcast.watch.here import DISTRIBUTIONS

PUBLISHED: Final = Path(__file__).with_name("published") / "recipes.jsonl"
BY_FORMAT: Final = {"huggingface": "llamafactory", "deepspeed": "llamafactory", "unsloth": "llamafactory"}
"""Engine -> the format whose command says the whole plan, where it is not of its own name."""


OTHER_CARDS: Final = {"H100 of 95 GiB": "h100-sxm-96gb"}
"""How a line of `unexpressed` begins that names the card on which a row ran -> that card."""

VERDICTS: Final = ("refused", "warned", "started")


class Case(NamedTuple):
    """One job whose end is known, and what the guard said of it."""

    kind: str  # "ran out", "crowded" or "ran"
    row: str
    verdict: str  # "refused", "warned", "started", or why it was not judged
    by: str = "-"  # what told the guard
    complete: bool = True


def cases(row: dict[str, Any], folder: Path) -> Iterator[Case]:
    """The jobs of one row."""
    measured, complete = row["measured"], is_complete(row)
    ends = {"oom": ("ran out",), "fits": ("ran",)}.get(measured["quantity"], ("ran", "crowded"))
    file = None
    try:
        asked.refuse_other_jobs(row)
        allocated = int(asked.UNITS.get(measured["unit"], GIB) * measured["value"])
        if measured["quantity"] not in asked.VERDICTS:
            asked.refuse_less_than_weights(row, folder, allocated)
        options = asked.question(row, folder)
        try:
            words = command_of(row["task"], options)
        except Unsupported:  # no writer says all of it: the guard is told by a job file
            file = Path("job.toml")
            table = SERVE_OPTIONS if row["task"] == "serve" else OPTIONS
            save_job(file, options, file=None, table=table)
            words = ("python", "train.py")
    except (VramcastError, Refused) as error:
        yield from (Case(end, row["id"], f"no question: {type(error).__name__}", "-", complete) for end in ends)
        return
    named = (card for text in row["ask"].get("unexpressed", ()) for start, card in OTHER_CARDS.items()
             if text.startswith(start))
    card, count = load_gpu(next(named, row["gpu"])), int(str(row["ask"]["gpus"]).split("x")[0])
    for end in ends:
        held = 0 if end != "crowded" else card.visible_bytes - ceil_div(allocated, 1 << 20) * (1 << 20)
        if end == "crowded" and (measured["quantity"] != "max_allocated" or held < 0):
            continue
        with mock.patch.object(here, "opened", return_value=((Simulated(card.name, count, held),), ())):
            verdict = judged(words, file, installed(str(options.get("engine")), words))
            yield Case(end, row["id"], verdict, "job file" if file else "command", complete)


def is_complete(row: dict[str, Any]) -> bool:
    """Whether a row says what decides over its run: of quality C are those with settings that had to be guessed, and
    what was read after loading is no peak of a step."""
    return row["quality"] != "C" and row["measured"]["quantity"] != asked.AFTER_LOADING


def installed(engine: str, words: tuple[str, ...]) -> dict[str, str]:
    """The environment of a machine on which the release that the row names is installed."""
    name, _, release = engine.partition("@")
    if not release or name not in DISTRIBUTIONS:
        return {"PATH": ""}
    path = Path("environment", "bin", guard.program_of(guard.Job.of(words, {})))
    packages = path.parents[1] / "lib" / "python3.12" / "site-packages"
    (packages / f"{DISTRIBUTIONS[name]}-{release}.dist-info").mkdir(parents=True, exist_ok=True)
    path.parent.mkdir(exist_ok=True)
    path.touch(mode=0o755)
    return {"PATH": str(path.parent.absolute())}


def command_of(task: str, options: dict[str, Any]) -> tuple[str, ...]:
    """The command that starts a plan's files, which are written where we are."""
    job: Any = serve_job_of(options) if task == "serve" else job_of(options)
    engine = job.engine.partition("@")[0]
    name = BY_FORMAT.get(engine, engine if engine in EMITTERS else "")
    write_configs(job, Path(), formats=(name,) if name else ())
    if left := unsaid(job, files_of(job, (name,) if name else ())[0]):
        raise Unsupported(left[0])
    start = next((start for file, start in STARTS if Path(file).is_file()), "")
    return tuple(start.split())


def judged(words: tuple[str, ...], file: Path | None, environment: dict[str, str]) -> str:
    """What becomes of a job."""
    found = guard.judged(guard.Job.of(words, environment), file=file, in_haste=True)
    if found.answer is None:
        return f"not judged: {found.why[:100]}"
    if found.refuses:
        return "refused"
    return "warned" if found.why or found.answer.verdict in (Fit.NOT, Fit.MAY_RUN_OUT) else "started"


class Simulated:
    """Cards of one kind of which others hold so much."""

    def __init__(self, name: str, count: int, held: int) -> None:
        cards = (Card(index=index, uuid=f"GPU-{index}", model=name) for index in range(count))
        self.gpus = tuple(GpuSample(time_s=0, card=card, memory_used_bytes=held) for card in cards)
        self.vendor = "nvidia"
        self.events = ()

    def read(self, time_s: float) -> Any:
        return self

    def close(self) -> None: ...


def run(path: Path, every: int = 1) -> list[Case]:
    """The cases of a file, of every Nth row."""
    found: list[Case] = []
    for line in path.read_text(encoding="utf-8").splitlines()[::every]:
        with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
            found += cases(json.loads(line), path.parent)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file", nargs="?", type=Path, default=PUBLISHED)
    parser.add_argument("--every", type=int, default=1)
    parser.add_argument("--rows", action="store_true", help="each case")
    given = parser.parse_args()
    found = run(given.file.resolve(), given.every)
    for case in found if given.rows else ():
        print(*case, sep="\t")
    for title, some in (("all rows", found), ("rows whose facts are complete", [one for one in found if one.complete])):
        print(title)
        print_counts(some)


def print_counts(found: list[Case]) -> None:
    """How many of each end had which verdict, and the two shares that have bars."""
    counted = Counter((one.kind, one.by, one.verdict.partition(":")[0]) for one in found)
    for (kind, by, verdict), count in sorted(counted.items()):
        print(f"{count:5} {kind:8} {by:8} {verdict}")
    known = [one for one in found if one.verdict in VERDICTS]
    for title, some in (("that fail", [one for one in known if one.kind != "ran"]),
                        ("that ran", [one for one in known if one.kind == "ran"])):
        refused = sum(one.verdict == "refused" for one in some)
        print(f"refused of those {title}: {refused} of {len(some)} ({refused / max(1, len(some)):.1%})")


if __name__ == "__main__":
    main()
