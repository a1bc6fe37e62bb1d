"""Workspaces of cuDNN convolutions, fitted to measured runs: `python -m truth.fit_cudnn FILE [--write] [--jobs N]`.

cuDNN does not publish what its plans need. Every run of the rows with tensor cores that have a bar is traced once with
workspaces as large as the tensors they move; played through the allocator again with other shares, its peak tells how
well they fit. One share after the other takes the value of `GRID` with the least loss, from `START`, until none
changes. What a process holds outside the allocator is, as in `truth.traced_vision`, the median of what is left.

How far to trust it: the networks are split in half in several ways, each half is fitted alone and scored on the other.
`low` and `high` of a share are the least and largest value among those fits. --write replaces the fitted rows of
`catalogue/cudnn_workspaces.csv`.
"""

from __future__ import annotations

import argparse
import csv
import io
import json
import statistics
import sys
from array import array
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, NamedTuple, get_args
from unittest.mock import patch

from truth.traced_vision import FAR, Question, question_of, trained
from vramcast.allocator import Allocator, Settings
from vramcast.catalogue.contexts import WORKSPACES as FILE
from vramcast.catalogue.contexts import Kernel, Phase
from vramcast.units import MIB

HARNESS: Final = "GPUMemNet"
"""Whose rows have TF32, and torch 2."""
SINCE: Final = (2, 0)
BATCHES: Final = (16, 64)
"""Of the rows that are fitted; the others are held out."""
FULL_MIB: Final = 36_000
"""Rows above are left out: there the card limits the cache."""
GRID: Final = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0)
START: Final = 1.0
"""Every tensor converted once."""
LEAST_GAIN: Final = 1e-4
ROUNDS: Final = 3
CLIPPED: Final = 0.12
"""Larger errors count no more: some runs found a plan that no share explains."""
SPLITS: Final = 2

Place = tuple[str, str]  # kernel, phase
PLACES: Final[tuple[Place, ...]] = tuple((kernel, phase) for kernel in get_args(Kernel) for phase in get_args(Phase))
Shares = Mapping[Place, float]


class Recording(NamedTuple):
    """What one run asked of the allocator, and which of it were workspaces."""

    model: str
    batch: int
    measured_mib: float
    events: array[int]  # of the tape
    sizes: array[int]  # by block [bytes]
    workspaces: Mapping[int, Place]  # by block, as large as the tensors moved


class Score(NamedTuple):
    """How well shares fit some runs."""

    loss: float
    outside_mib: float
    median_error: float
    far_below: float  # share of rows


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m truth.fit_cudnn")
    parser.add_argument("file", type=Path)
    parser.add_argument("--write", action="store_true", help="replace the fitted rows of the table")
    parser.add_argument("--jobs", type=int, default=2, help="processes")
    options = parser.parse_args(arguments)
    rows = [json.loads(line) for line in options.file.read_text(encoding="utf-8").splitlines()]
    asked = [(question_of(row), row["measured_peak_mib"]) for row in rows if is_fitted(row)]
    with ProcessPoolExecutor(options.jobs) as pool:
        found = list(pool.map(recorded, asked, chunksize=4))
    report(fit_all([run for run in found if run is not None], options.jobs), write=options.write)
    return 0


def is_fitted(row: Mapping[str, Any]) -> bool:
    """Whether a row is among the runs that are fitted or held out."""
    return row["source"].startswith(HARNESS) and "suspect" not in row and row["measured_peak_mib"] < FULL_MIB


def recorded(asked: tuple[Question, float]) -> Recording | None:
    """A run traced with workspaces as large as the tensors they move; None where it has none."""
    question, measured = asked
    with patch("vramcast.tracing.rules.convolution.workspace_share", lambda *_: 1.0):
        tape = trained(question).device.tape
    workspaces = {}
    for block in tape.blocks:
        if block.category == "temporaries" and block.name.startswith("cuDNN "):
            _, kernel, _, phase = block.name.split()
            workspaces[block.index] = (kernel, phase)
    if not workspaces:
        return None
    sizes = array("q", [block.num_bytes for block in tape.blocks])
    return Recording(question.model, question.batch, measured, array("q", tape.events), sizes, workspaces)


class Fit:
    """Plays runs under shares, in several processes, none twice."""

    def __init__(self, runs: Sequence[Recording], pool: ProcessPoolExecutor) -> None:
        self.runs, self._pool = runs, pool
        self._places = [sorted(set(run.workspaces.values())) for run in runs]
        self._known: dict[tuple[int, tuple[float, ...]], float] = {}

    def reserved(self, shares: Shares, indices: Sequence[int]) -> list[float]:
        """Peaks of some runs [MiB]; shares of kernels that a run has not do not matter to it."""
        keys = [(index, tuple(shares[place] for place in self._places[index])) for index in indices]
        missing = [key for key in keys if key not in self._known]
        work = [(index, dict(zip(self._places[index], values, strict=True))) for index, values in missing]
        self._known.update(zip(missing, self._pool.map(peak_mib, work, chunksize=4), strict=True))
        return [self._known[key] for key in keys]

    def score(self, shares: Shares, indices: Sequence[int], outside_mib: float | None = None) -> Score:
        """Errors of some runs."""
        found = self.reserved(shares, indices)
        measured = [self.runs[index].measured_mib for index in indices]
        if outside_mib is None:
            outside_mib = statistics.median(real - mine for real, mine in zip(measured, found, strict=True))
        errors = [(mine + outside_mib) / real - 1 for real, mine in zip(measured, found, strict=True)]
        absolute = [abs(error) for error in errors]
        return Score(
            statistics.fmean(min(error, CLIPPED) for error in absolute), outside_mib, statistics.median(absolute),
            sum(error < -FAR for error in errors) / len(errors),
        )

    def best(self, indices: Sequence[int]) -> tuple[dict[Place, float], Score]:
        """Coordinate descent over the grid."""
        shares = dict.fromkeys(PLACES, START)
        score = self.score(shares, indices)
        for _ in range(ROUNDS):
            before = score
            for place in PLACES:
                for value in GRID:
                    tried = self.score({**shares, place: value}, indices)
                    if tried.loss < score.loss - LEAST_GAIN:
                        shares, score = {**shares, place: value}, tried
            if score == before:
                break
        return shares, score


_runs: list[Recording] = []  # of the processes that play them: too large to be sent with every question


def _remember(runs: list[Recording]) -> None:
    _runs[:] = runs


def peak_mib(asked: tuple[int, Shares]) -> float:
    """Peak reserved of a run under shares [MiB]."""
    index, shares = asked
    run = _runs[index]
    allocator = Allocator(settings=Settings(version=SINCE))
    handles: dict[int, int] = {}
    for event in run.events:
        block = abs(event) - 1
        if event < 0:
            if block in handles:
                allocator.free(handles.pop(block))
            continue
        num_bytes = run.sizes[block]
        if block in run.workspaces:
            num_bytes = round(num_bytes * shares[run.workspaces[block]])
        if num_bytes:
            handles[block] = allocator.allocate(num_bytes)
    return allocator.peak_reserved_bytes / MIB


class Fitted(NamedTuple):
    """The shares, how far halves of the networks disagree, and errors."""

    shares: dict[Place, float]
    low: dict[Place, float]
    high: dict[Place, float]
    networks: int
    fitted: Score
    held_out: Score  # other batches
    halves: list[Score]  # each on the networks it has not seen


def fit_all(runs: list[Recording], jobs: int, say: Callable[[str], object] = print) -> Fitted:
    """The fit to all networks and to halves of them."""
    names = sorted({run.model for run in runs})
    with ProcessPoolExecutor(jobs, initializer=_remember, initargs=(runs,)) as pool:
        fit = Fit(runs, pool)
        inside = [index for index, run in enumerate(runs) if run.batch in BATCHES]
        outside = [index for index, run in enumerate(runs) if run.batch not in BATCHES]
        shares, score = fit.best(inside)
        say(f"all networks: {score}")
        found, halves = [shares], []
        for split in range(SPLITS):
            for half in (0, 1):
                mine = {name for place, name in enumerate(names) if (place >> split) % 2 == half}
                part, own = fit.best([index for index in inside if runs[index].model in mine])
                others = [index for index, run in enumerate(runs) if run.model not in mine]
                found.append(part)
                halves.append(fit.score(part, others, own.outside_mib))
                say(f"half {half} of split {split}: {own}; on the others {halves[-1]}")
        low, high = ({place: pick(each[place] for each in found) for place in PLACES} for pick in (min, max))
        return Fitted(shares, low, high, len(names), score, fit.score(shares, outside, score.outside_mib), halves)


def report(fitted: Fitted, *, write: bool) -> None:
    """Print; replace the rows of the table where asked."""
    for place in PLACES:
        print(f"{' '.join(place):<20}{fitted.low[place]:>6g}{fitted.shares[place]:>6g}{fitted.high[place]:>6g}")
    print(f"batches {BATCHES}: {fitted.fitted}\nother batches: {fitted.held_out}")
    if write:
        FILE.write_text(table(FILE.read_text(encoding="utf-8"), fitted), encoding="utf-8")


def table(text: str, fitted: Fitted) -> str:
    """The table with the fitted rows replaced."""
    since = ".".join(map(str, SINCE))
    unseen = statistics.fmean(score.median_error for score in fitted.halves)
    source = (
        f"fitted to {fitted.networks} timm networks trained on an A100 with TF32 by truth/fit_cudnn.py (batches "
        f"{' and '.join(map(str, BATCHES))}): median {fitted.fitted.median_error:.1%}; other batches "
        f"{fitted.held_out.median_error:.1%}; networks of the other half {unseen:.1%}; low and high: fits to halves"
    )
    kept = [cells for cells in csv.reader(text.splitlines()) if cells[0] != since]
    checked = datetime.now(UTC).date().isoformat()
    new = [
        [
            since, *place, *(f"{values[place]:g}" for values in (fitted.low, fitted.shares, fitted.high)), source,
            checked, "medium",
        ]
        for place in PLACES
    ]
    return _as_csv([*kept, *new])


def _as_csv(rows: Iterable[Sequence[str]]) -> str:
    out = io.StringIO()
    csv.writer(out, lineterminator="\n").writerows(rows)
    return out.getvalue()


if __name__ == "__main__":
    sys.exit(main())
