"""The traced path against published recordings: `python -m truth.traced_snapshots FOLDER [--only NAME] [--gaps N]`.

The course's network runs in a simulation as it ran under the recording; its allocations and frees, by requested size
and in order, are held against the recorded ones, and so is the rise: the most that was allocated at once beyond what
was there before. Where the recording begins with nothing allocated, so are the peaks.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import torch

from truth.cs336.runs import RECORDED, Recorded
from truth.events import Aligned, Event, align, rise
from vramcast.catalogue.gpus import load_gpu
from vramcast.domain.snapshot import Action, Snapshot
from vramcast.recordings.replay import replay
from vramcast.recordings.start import RecordedDevice
from vramcast.sources.snapshots import read_snapshot
from vramcast.tracing.session import Session
from vramcast.tracing.tape import Tape

CARD: Final = "a100-sxm4-80gb"
"""The recordings do not name theirs; its cuBLAS workspace (8,519,680 bytes) is that of cards before Hopper."""
SAME_EVENTS: Final = 0.99
PEAK: Final = 0.005


class Peaks(NamedTuple):
    """Highest points of one run [bytes]."""

    allocated: int
    reserved: int


class Compared(NamedTuple):
    """One recording, predicted."""

    name: str
    has_bar: bool
    events: Aligned
    ours: Peaks | None  # None: the recording begins in the middle of a run
    theirs: Peaks | None
    rise: float  # error of the most allocated at once beyond what was there before, as a fraction
    operators: tuple[str, ...]  # of our allocations and frees, one each

    @property
    def is_within(self) -> bool:
        """Whether it meets the bar."""
        return (self.events.share or 0.0) >= SAME_EVENTS and all(abs(error) <= PEAK for error in self.errors)

    @property
    def errors(self) -> tuple[float, ...]:
        """Of the peaks, as fractions."""
        if self.ours is None or self.theirs is None:
            return ()
        return tuple(ours / theirs - 1 for ours, theirs in zip(self.ours, self.theirs, strict=True))


def recorded_events(snapshot: Snapshot) -> list[Event]:
    """Allocations and frees of the first device, in order."""
    trace = snapshot.devices[0].trace
    frees = {int(Action.ALLOC): False, int(Action.FREE_REQUESTED): True}
    both = zip(trace.actions, trace.sizes, strict=True)
    return [Event(frees[action], size) for action, size in both if action in frees]


def traced_events(tape: Tape, start: int, end: int) -> list[Event]:
    """Allocations and frees of a tape, from one event to another."""
    return [Event(event < 0, tape.blocks[abs(event) - 1].num_bytes) for event in tape.events[start:end]]


def compare(name: str, recorded: Recorded, snapshot: Snapshot) -> Compared:
    """Run what ran in a simulation, and hold the two against each other."""
    session = Session(load_gpu(CARD))
    device = session.device
    starts: list[int] = []
    with session.active():
        alive = recorded.run(torch.device("cuda", 0), lambda: starts.append(len(device.tape.events)))
        end = len(device.tape.events)
        peaks = Peaks(device.allocator.peak_allocated_bytes, device.allocator.peak_reserved_bytes)
        del alive
    events = traced_events(device.tape, starts[0], end)
    operators = tuple(device.tape.blocks[abs(event) - 1].operator for event in device.tape.events[starts[0] : end])
    happened = recorded_events(snapshot)
    aligned, risen = align(events, happened), rise(events) / rise(happened) - 1
    if not recorded.from_start:
        return Compared(name, recorded.has_bar, aligned, None, None, risen, operators)
    replayed = replay(RecordedDevice(snapshot, snapshot.devices[0]))
    assert replayed.peak_reserved_bytes is not None  # a snapshot lists segments
    real = Peaks(replayed.peak_allocated_bytes, replayed.peak_reserved_bytes)
    return Compared(name, recorded.has_bar, aligned, peaks, real, risen, operators)


def line(compared: Compared) -> str:
    """One recording in a table."""
    events = compared.events
    share = "too far apart" if events.share is None else f"{events.share:.2%}"
    peaks = "".join(f"{error:+11.3%}" for error in compared.errors) or f"{'-':>11}{'-':>11}"
    verdict = ("ok" if compared.is_within else "MISSED") if compared.has_bar else "no bar"
    peaks += f"{compared.rise:+11.3%}"
    return f"{compared.name:<36}{events.num_theirs:>8}{events.num_ours:>8}{share:>15}{peaks}  {verdict}"


def gap_lines(compared: Compared, snapshot: Snapshot, most: int) -> list[str]:
    """The first places where the two part, for a reader who looks for the cause."""
    theirs = recorded_events(snapshot)
    lines = []
    for gap in compared.events.gaps[:most]:
        lines.append(f"  at ours {gap.ours}, theirs {gap.theirs}:")
        for operator in compared.operators[gap.ours : gap.ours + gap.num_ours][:12]:
            lines.append(f"    only ours    {operator}")
        for event in theirs[gap.theirs : gap.theirs + gap.num_theirs][:12]:
            lines.append(f"    only theirs  {'free ' if event.is_free else 'alloc'} {event.num_bytes}")
    return lines


def main(argv: Sequence[str] | None = None) -> int:
    """Print the table; 1 where a bar is missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--only", default="", help="names that contain this")
    parser.add_argument("--gaps", type=int, default=0, help="places to show where the sequences part")
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args(argv)
    rows: list[dict[str, Any]] = []
    missed = False
    if not asked.json:
        heads = f"{'same, in order':>15}{'allocated':>11}{'reserved':>11}{'rise':>11}"
        print(f"{'recording':<36}{'events':>8}{'traced':>8}{heads}")
    for name, recorded in RECORDED.items():
        path = asked.folder / f"{name}.pickle.gz"
        if asked.only not in name or not path.exists():
            continue
        snapshot = read_snapshot(path)
        compared = compare(name, recorded, snapshot)
        missed = missed or (compared.has_bar and not compared.is_within)
        row = {"share": compared.events.share, "errors": compared.errors, "rise": compared.rise}
        rows.append({"recording": name, **row, "within": compared.is_within})
        if not asked.json:
            print(line(compared), *gap_lines(compared, snapshot, asked.gaps), sep="\n", flush=True)
    if asked.json:
        print(json.dumps(rows))
    return int(missed)


if __name__ == "__main__":
    sys.exit(main())
