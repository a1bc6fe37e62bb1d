"""Reading a snapshot of a million events: seconds and peak memory, beside what the standard viewer does first.

    python benchmarks/snapshot.py [--events 1000000] [--frames 8 50] [--keep FOLDER] [--peer PYTHON]

The file is what `torch.cuda.memory._dump_snapshot()` writes: protocol 4, one dict an event, its stack a list of frames
that were written before. The peer is `torch.cuda._memory_viz`'s loader, `pickle.load`, in a process of its own; with
--peer a Python that has torch also runs its `trace_plot`. Each figure is of a fresh process.
"""

from __future__ import annotations

import argparse
import pickle
import random
import subprocess
import sys
import tempfile
from pathlib import Path
from time import perf_counter
from typing import Any

_OURS = """
from pathlib import Path
from vramcast.sources.snapshots import read_snapshot
snapshot = read_snapshot(Path(path))
count = sum(len(device.trace) for device in snapshot.devices)
"""
_PEER = """
import pickle
with open(path, "rb") as file:
    snapshot = pickle.load(file)
count = sum(map(len, snapshot["device_traces"]))
"""
_PLOT = _PEER + """
from torch.cuda._memory_viz import trace_plot
trace_plot(snapshot)
"""
_MEASURED = """
import resource, sys, time
path = sys.argv[1]
start = time.perf_counter()
{body}
seconds = time.perf_counter() - start
try:  # what getrusage says includes the memory of the process that started this one
    peak = [line for line in open("/proc/self/status") if line.startswith("VmHWM")][0].split()[1]
except OSError:
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
print(count, seconds, int(peak) * 1024)
"""


def snapshot_of(num_events: int, num_frames: int) -> dict[str, Any]:
    """Steps of training: every stack has `num_frames` frames of a few thousand, and a few hundred stacks come again."""
    rng = random.Random(0)
    frames = [
        {"name": f"function_{i}", "filename": f"/site-packages/torch/nn/modules/module_{i % 97}.py", "line": i}
        for i in range(3000)
    ]
    stacks = [[frames[rng.randrange(3000)] for _ in range(num_frames)] for _ in range(400)]
    events: list[dict[str, Any]] = []
    time_us = 1_760_000_000_000_000
    while len(events) < num_events:
        address, size = 0x7F0000000000 + 512 * rng.randrange(2**24), 512 * rng.randrange(1, 2**14)
        for action in ("alloc", "free_requested", "free_completed"):
            time_us += rng.randrange(1, 50)
            events.append(_event(action, address, size, time_us, list(stacks[rng.randrange(400)])))
    block = {"address": 0x7F0000000000, "size": 2**35, "requested_size": 0, "state": "inactive", "frames": []}
    segment = {
        "device": 0, "address": 0x7F0000000000, "total_size": 2**35, "allocated_size": 0, "active_size": 0,
        "requested_size": 0, "stream": 0, "segment_type": "large", "segment_pool_id": (0, 0), "is_expandable": False,
        "frames": [], "blocks": [block],
    }  # fmt: skip
    settings = {"PYTORCH_CUDA_ALLOC_CONF": ""}
    return {
        "segments": [segment], "device_traces": [events[:num_events]], "allocator_settings": settings,
        "external_annotations": [],
    }  # fmt: skip


def _event(action: str, address: int, size: int, time_us: int, stack: list[Any]) -> dict[str, Any]:
    # torch makes a new text for every compile context, so the pickle holds each of them
    return {
        "action": action, "addr": address, "size": size, "stream": 0, "time_us": time_us,
        "compile_context": "".join(("N", "/A")), "user_metadata": "", "frames": stack,
    }  # fmt: skip


def measured(body: str, path: Path, python: str = sys.executable) -> str:
    """Events, seconds, events a second and peak memory of reading the file in a fresh process."""
    program = _MEASURED.format(body=body)
    done = subprocess.run([python, "-c", program, str(path)], capture_output=True, text=True, check=False)
    if done.returncode:
        return f"failed: {done.stderr.strip().splitlines()[-1][:100]}"
    count, seconds, peak = (float(word) for word in done.stdout.split())
    ratio = peak / path.stat().st_size
    return f"{seconds:6.2f} s  {count / seconds:9,.0f} events/s  peak {peak / 2**20:7,.0f} MiB ({ratio:.2f} x the file)"


def main() -> None:
    """Write the files and print a line for each reader."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--events", type=int, default=1_000_000)
    parser.add_argument("--frames", type=int, nargs="+", default=[8, 50])
    parser.add_argument("--keep", type=Path, help="write the files here and leave them")
    parser.add_argument("--peer", help="a Python with torch")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        for frames in options.frames:
            path = (options.keep or Path(folder)) / f"{options.events}_events_{frames}_frames.pickle"
            start = perf_counter()
            with path.open("wb") as file:
                pickle.dump(snapshot_of(options.events, frames), file, protocol=4)
            size, seconds = path.stat().st_size / 2**20, perf_counter() - start
            print(f"{options.events:,} events, {frames} frames each: {size:,.0f} MiB (written in {seconds:.0f} s)")
            print(f"  vramcast             {measured(_OURS, path)}")
            print(f"  pickle.load          {measured(_PEER, path)}")
            if options.peer:
                print(f"  and viewer trace_plot {measured(_PLOT, path, options.peer)}")


if __name__ == "__main__":
    main()
