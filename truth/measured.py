"""The traced path against runs measured by this project: `python -m truth.measured [FOLDER...] [--only REGEX]`.

Every workload of the folders (default: truth/measured/*) runs again, the same code, in a simulation of the same card,
and is compared: peaks of the last step at three levels, and every allocation and free of the whole run in order.
`--rehearse CARD` runs the workloads in the simulation alone and prints what it predicts.
"""

from __future__ import annotations

import argparse
import gzip
import json
import re
import statistics
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import torch

from truth.events import Aligned, Event, align
from truth.measure.run import run
from truth.measure.table import WORKLOADS, Workload
from vramcast.allocator import Settings
from vramcast.catalogue.gpus import load_gpu
from vramcast.domain.device import FALLBACK_CONTEXT_BYTES
from vramcast.domain.snapshot import Action
from vramcast.tracing.extensions.stand_ins import prepare_torchvision
from vramcast.tracing.session import Session

FOLDER: Final = Path(__file__).parent / "measured"
LEVELS: Final = ("allocated", "reserved", "device")
KINDS: Final = {int(Action.ALLOC): False, int(Action.FREE_REQUESTED): True}
"""Actions that are compared, and whether they free."""


class Bar(NamedTuple):
    """At least this share of the runs may be at most so far off, as a fraction."""

    level: str
    within: float
    share: float


BARS: Final = (
    Bar("allocated", 0.0, 0.60), Bar("allocated", 0.005, 0.95), Bar("reserved", 0.02, 0.95), Bar("device", 0.03, 0.95)
)


class Predicted(NamedTuple):
    """One workload in the simulation."""

    peaks: Mapping[str, int]  # of the last step, by level [bytes]
    events: list[Event]
    unseen: tuple[str, ...]  # operators that nobody has read


class Scored(NamedTuple):
    """One measured run, predicted."""

    workload: str
    errors: Mapping[str, float]  # by level, fractions; a level that was not measured is absent
    events: Aligned
    unseen: tuple[str, ...]


def predict(workload: Workload, card: str) -> Predicted:
    """Run a workload in a simulation.

    Raises: whatever the workload raises where it cannot be simulated
    """
    prepare_torchvision()
    gpu = load_gpu(card)
    session = Session(gpu, settings=Settings.parse(workload.alloc_conf))
    device = session.device
    with session.active(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        alive = run(
            workload, torch.device("cuda", 0), before=device.allocator.reset_peaks, after=lambda: None
        )
        allocated, reserved = device.allocator.peak_allocated_bytes, device.allocator.peak_reserved_bytes
        end = len(device.tape.events)
        del alive
    context = gpu.context_bytes or FALLBACK_CONTEXT_BYTES
    peaks = {"allocated": allocated, "reserved": reserved, "device": reserved + context}
    blocks = device.tape.blocks
    events = [Event(event < 0, blocks[abs(event) - 1].num_bytes) for event in device.tape.events[:end]]
    return Predicted(peaks, events, tuple(session.simulation.unseen))


def measured_runs(folder: Path) -> Iterator[tuple[dict[str, Any], list[Event]]]:
    """The records of one folder, with the allocations and frees of each."""
    events = {}
    for path in sorted(folder.glob("events.*.jsonl.gz")):
        with gzip.open(path, "rt") as file:
            for line in file:
                row = json.loads(line)
                events[row["workload"]] = [
                    Event(KINDS[action], size) for action, size, *_ in row["events"] if action in KINDS
                ]
    for line in (folder / "runs.jsonl").read_text().splitlines():
        record = json.loads(line)
        yield record, events.get(record["workload"], [])


def score(record: dict[str, Any], events: list[Event]) -> Scored:
    """One measured run against the simulation."""
    predicted = predict(WORKLOADS[record["workload"]], record["gpu"])
    last = record["steps"][-1]
    real = {
        "allocated": last["peak_allocated_bytes"], "reserved": last["peak_reserved_bytes"],
        "device": record["process_bytes"],
    }
    errors = {level: predicted.peaks[level] / real[level] - 1 for level in LEVELS if real[level]}
    return Scored(record["workload"], errors, align(predicted.events, events), predicted.unseen)


def holds(bar: Bar, scored: Sequence[Scored]) -> tuple[float, bool]:
    """The share of runs within a bar, and whether that is enough."""
    errors = [abs(one.errors[bar.level]) for one in scored if bar.level in one.errors]
    share = sum(error <= bar.within for error in errors) / len(errors) if errors else 0.0
    return share, share >= bar.share


def line(scored: Scored) -> str:
    """One run in a table."""
    errors = "".join(f"{scored.errors[level]:+11.3%}" if level in scored.errors else f"{'-':>11}" for level in LEVELS)
    share = "too far apart" if scored.events.share is None else f"{scored.events.share:.2%}"
    return f"{scored.workload:<44}{errors}{share:>15}{len(scored.unseen):>8}"


def summary(scored: Sequence[Scored]) -> Iterator[str]:
    """The bars, and whether they hold."""
    for bar in BARS:
        share, is_enough = holds(bar, scored)
        verdict = "ok" if is_enough else "MISSED"
        yield f"{bar.level} within {bar.within:.1%}: {share:.0%} of the runs (bar {bar.share:.0%})  {verdict}"
    shares = [one.events.share or 0.0 for one in scored]
    yield f"events that are the same, in order: median {statistics.median(shares):.2%}"


def rehearse(names: Sequence[str], card: str) -> int:
    """Predict without a measured run; 1 where a workload cannot be simulated."""
    failed = 0
    for name in names:
        predicted = _tried(name, lambda name=name: predict(WORKLOADS[name], card))  # type: ignore[misc]
        if predicted is None:
            failed += 1
            continue
        peaks = "".join(f"{predicted.peaks[level] / 2**20:>12.1f}" for level in LEVELS)
        print(f"{name:<44}{peaks} MiB{len(predicted.events):>9} events{len(predicted.unseen):>5} unread", flush=True)
    print(f"{len(names) - failed} of {len(names)} workloads simulated")
    return int(failed > 0)


def _tried(name: str, work: Callable[[], Any]) -> Any:
    """The result, or None and a line that says why there is none: a workload must not stop the others."""
    try:
        return work()
    except Exception as error:
        first = (str(error).splitlines() or [""])[0][:120]
        print(f"{name:<44}not simulated: {type(error).__name__}: {first}", flush=True)
        return None


def main(argv: Sequence[str] | None = None) -> int:
    """Print tables; 1 where a bar is missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", nargs="*", type=Path)
    parser.add_argument("--only", default="", help="regular expression that names contain")
    parser.add_argument("--rehearse", metavar="CARD", help="predict only")
    asked = parser.parse_args(argv)
    if asked.rehearse:
        return rehearse([name for name in WORKLOADS if re.search(asked.only, name)], asked.rehearse)
    folders = asked.folders or sorted(path.parent for path in FOLDER.glob("*/runs.jsonl"))
    if not folders:
        print("no measured runs yet: `python -m truth.measure --out FOLDER` on a machine with a GPU makes them")
        return 0
    missed = False
    for folder in folders:
        print(f"{folder.name:<44}{'allocated':>11}{'reserved':>11}{'device':>11}{'same events':>15}{'unread':>8}")
        scored = []
        for record, events in measured_runs(folder):
            if not re.search(asked.only, record["workload"]):
                continue
            one = _tried(record["workload"], lambda record=record, events=events: score(record, events))  # type: ignore[misc]
            if one is not None:
                scored.append(one)
                print(line(one), flush=True)
        print(*summary(scored), sep="\n")
        missed = missed or not all(holds(bar, scored)[1] for bar in BARS)
    return int(missed)


if __name__ == "__main__":
    sys.exit(main())
