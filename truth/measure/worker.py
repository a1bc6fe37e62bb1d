"""Measures one workload in this process, prints what it saw as JSON: `python -m truth.measure.worker NAME`."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Final

import torch

from truth.measure.run import STEPS, Steps, run
from truth.measure.table import WORKLOADS, Workload

PACKAGES: Final = ("torch", "timm", "torchvision", "transformers", "triton")
MOST_EVENTS: Final = 5_000_000
ACTIONS: Final = (
    "alloc", "free_requested", "free_completed", "segment_alloc", "segment_free", "segment_map", "segment_unmap",
    "snapshot", "oom",
)
"""Events name theirs by its index."""


class Card:
    """What a CUDA device says of its memory."""

    def __init__(self) -> None:
        self.facts: dict[str, Any] = {
            "gpu": torch.cuda.get_device_name(), "capability": list(torch.cuda.get_device_capability()),
            "cuda": torch.version.cuda, "cudnn": torch.backends.cudnn.version(),
        }
        torch.empty(1, device="cuda")
        torch.cuda.synchronize()
        self.facts["total_bytes"] = torch.cuda.mem_get_info()[1]
        self.facts["context_device_bytes"] = self.used_bytes()
        self.facts["context_process_bytes"] = process_bytes()
        torch.cuda.memory._record_memory_history(max_entries=MOST_EVENTS, stacks="python")

    @staticmethod
    def used_bytes() -> int:
        """Of the whole device, other processes included."""
        free, total = torch.cuda.mem_get_info()
        return int(total - free)

    @staticmethod
    def start_step() -> None:
        """Peaks from now on."""
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()

    @staticmethod
    def end_step() -> dict[str, int]:
        """Peaks since `start_step` [bytes]."""
        torch.cuda.synchronize()
        stats = torch.cuda.memory_stats()
        return {
            "peak_allocated_bytes": stats["allocated_bytes.all.peak"],
            "peak_requested_bytes": stats["requested_bytes.all.peak"],
            "peak_reserved_bytes": stats["reserved_bytes.all.peak"],
            "allocated_after_bytes": stats["allocated_bytes.all.current"],
        }

    def finish(self) -> tuple[dict[str, Any], list[list[Any]]]:
        """Facts of the whole run, and its events: action, size, address, stream, who asked."""
        stats = torch.cuda.memory_stats()
        facts = {
            **self.facts, "process_bytes": process_bytes(), "device_bytes": self.used_bytes(),
            "reserved_bytes": torch.cuda.memory_reserved(), "retries": stats["num_alloc_retries"],
        }
        recorded = torch.cuda.memory._snapshot()
        torch.cuda.memory._record_memory_history(enabled=None)
        facts["allocator_settings"] = {key: str(value) for key, value in recorded.get("allocator_settings", {}).items()}
        codes = {name: code for code, name in enumerate(ACTIONS)}
        events = [
            [codes[event["action"]], event["size"], event.get("addr", 0), event["stream"], _who(event.get("frames"))]
            for event in recorded["device_traces"][0]
        ]
        return facts, events


class Host:
    """A rehearsal without a card: nothing is measured."""

    facts: Final[dict[str, Any]] = {"gpu": None}

    @staticmethod
    def start_step() -> None:
        """Nothing to reset."""

    @staticmethod
    def end_step() -> dict[str, int]:
        """Nothing known."""
        return {}

    def finish(self) -> tuple[dict[str, Any], list[list[Any]]]:
        """No events."""
        return self.facts, []


def _who(frames: list[dict[str, Any]] | None) -> str:
    """The innermost line of Python."""
    frame = next((frame for frame in frames or () if str(frame.get("filename", "")).endswith(".py")), None)
    return f"{Path(frame['filename']).name}:{frame['line']}:{frame['name']}" if frame else ""


def process_bytes() -> int | None:
    """Device memory of this process as nvidia-smi tells it; None where it does not."""
    query = ["nvidia-smi", "--query-compute-apps=pid,used_memory", "--format=csv,noheader,nounits"]
    try:
        printed = subprocess.run(query, capture_output=True, text=True, timeout=20, check=True).stdout
        rows = [row.split(",") for row in printed.splitlines() if "," in row]
        used = {int(pid): int(mebibytes) for pid, mebibytes in rows}
    except (OSError, subprocess.SubprocessError, ValueError):
        return None
    # A container may number processes in its own way: then only a process that is alone can be told.
    found = used.get(os.getpid()) or (next(iter(used.values())) if len(used) == 1 else None)
    return found << 20 if found is not None else None


def installed() -> dict[str, str]:
    """Versions of what is installed."""
    versions = {"python": sys.version.split()[0]}
    for package in PACKAGES:
        try:
            versions[package] = version(package)
        except PackageNotFoundError:
            continue
    return versions


def measure(name: str, workload: Workload, device: str) -> dict[str, Any]:
    """One workload: its record and its events."""
    card = Card() if device == "cuda" else Host()
    torch.backends.cudnn.benchmark = workload.benchmarks_cudnn
    steps: list[dict[str, Any]] = []
    starts: list[float] = []

    def before() -> None:
        card.start_step()
        starts.append(time.perf_counter())

    def after() -> None:
        peaks = card.end_step()
        steps.append({"seconds": time.perf_counter() - starts[-1], **peaks})

    ran: Steps = run(workload, torch.device(device), before=before, after=after)
    facts, events = card.finish()
    record = {
        "workload": name, "settings": workload._asdict(), "versions": installed(), **facts, "steps": steps,
        "parameters": sum(parameter.numel() for parameter in ran.network.model.parameters()),
    }
    return {"record": record, "events": events}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("name", choices=WORKLOADS, metavar="NAME")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    asked = parser.parse_args()
    measured = measure(asked.name, WORKLOADS[asked.name], asked.device)
    assert len(measured["record"]["steps"]) == STEPS
    json.dump(measured, sys.stdout)


if __name__ == "__main__":
    main()
