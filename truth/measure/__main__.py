"""Starts a process for every workload and keeps what it prints. See the package."""

from __future__ import annotations

import argparse
import gzip
import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, Final

import truth.measure
from truth.measure.table import WORKLOADS, Workload

MOST_PART_BYTES: Final = 12 << 20
"""Of one file of events, compressed: larger ones are split, so that results travel and can be committed."""
LEAST_S: Final = 15.0
"""A workload that has less time left is not started."""
LEVELS: Final = ("allocated", "requested", "reserved")
STARTS: Final = '{"record"'


class Results:
    """The files of one run; a second run adds to them."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder, self._part = folder, len(list(folder.glob("events.*.jsonl.gz")))

    def add(self, measured: dict[str, Any]) -> None:
        """One workload."""
        record, events = measured["record"], measured["events"]
        with (self._folder / "runs.jsonl").open("a") as runs:
            runs.write(json.dumps(record) + "\n")
        if not events:
            return
        path = self._folder / f"events.{self._part}.jsonl.gz"
        with gzip.open(path, "at") as file:
            file.write(json.dumps({"workload": record["workload"], "events": events}) + "\n")
        if path.stat().st_size > MOST_PART_BYTES:
            self._part += 1


def measured_in_process(name: str, workload: Workload, device: str, timeout_s: float) -> dict[str, Any] | str:
    """What a process of its own measured, or why it did not."""
    environment = dict(os.environ)
    if workload.alloc_conf:
        environment["PYTORCH_CUDA_ALLOC_CONF"] = workload.alloc_conf
    command = [sys.executable, "-m", "truth.measure.worker", name, "--device", device]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=timeout_s, env=environment, check=False)
    except subprocess.TimeoutExpired:
        return f"took longer than {timeout_s:.0f} s"
    start = done.stdout.find(STARTS)  # libraries may print before
    if done.returncode or start < 0:
        lines = done.stderr.strip().splitlines()
        return lines[-1][:200] if lines else f"exit {done.returncode} without a message"
    measured: dict[str, Any] = json.loads(done.stdout[start:])
    return measured


def line(record: dict[str, Any], num_events: int) -> str:
    """One workload for a reader."""
    last = record["steps"][-1]
    peaks = ", ".join(f"{level} {last[key]}" for level in LEVELS if (key := f"peak_{level}_bytes") in last)
    return f"{record['workload']}: {peaks or 'rehearsed'}, step {last['seconds']:.3f} s, {num_events} events"


def main() -> int:
    """Measure what was asked for; 1 where something failed."""
    form = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=truth.measure.__doc__, formatter_class=form)
    parser.add_argument("--out", type=Path, help="folder of the results")
    parser.add_argument("--only", default="", help="regular expression that names contain")
    parser.add_argument("--budget-s", type=float, default=3600.0, help="of all workloads together [s]")
    parser.add_argument("--timeout-s", type=float, default=180.0, help="of one workload [s]")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--list", action="store_true", help="name the workloads")
    asked = parser.parse_args()
    names = [name for name in WORKLOADS if re.search(asked.only, name)]
    if asked.list:
        print(*names, sep="\n")
        return 0
    if asked.out is None:
        parser.error("--out is needed: the folder of the results")
    results, start, failed, done = Results(asked.out), time.perf_counter(), 0, 0
    for number, name in enumerate(names):
        left_s = asked.budget_s - (time.perf_counter() - start)
        if left_s < LEAST_S:
            print(f"the budget is spent; not measured: {', '.join(names[number:])}")
            break
        measured = measured_in_process(name, WORKLOADS[name], asked.device, min(asked.timeout_s, left_s))
        if isinstance(measured, str):
            failed += 1
            print(f"{name}: not measured, {measured}", flush=True)
            continue
        done += 1
        results.add(measured)
        print(line(measured["record"], len(measured["events"])), flush=True)
    print(f"{done} of {len(names)} workloads in {time.perf_counter() - start:.0f} s, {failed} failed")
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
