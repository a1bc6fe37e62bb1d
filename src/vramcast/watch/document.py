"""`--json`: one document per reading and line, unknown absent, integers in bytes."""

from __future__ import annotations

import json
import sys
from typing import Any

import msgspec

from vramcast.domain.observation import GpuSample, Reading
from vramcast.watch.expected import Expected
from vramcast.watch.following import Following


class JsonLines:
    """Documents onto standard output."""

    name = "-"

    def __init__(self, expected: dict[str, Expected], *, pretty: bool) -> None:
        self._expected = expected
        self._pretty = pretty

    def write(self, reading: Reading, following: Following) -> None:
        """One document."""
        found = document(reading, following, self._expected)
        sys.stdout.write(json.dumps(found, indent=1 if self._pretty else None, ensure_ascii=False) + "\n")
        sys.stdout.flush()

    def close(self) -> None:
        """Every document is written already."""


def document(reading: Reading, following: Following, expected: dict[str, Expected]) -> dict[str, Any]:
    """One reading with what came of it."""
    return {
        "schema": 1, "time_s": reading.time_s,
        "gpus": [_gpu(sample, following, expected.get(sample.card.uuid)) for sample in reading.gpus],
        "events": [msgspec.to_builtins(event) for event in reading.events],
    }


def _gpu(sample: GpuSample, following: Following, expected: Expected | None) -> dict[str, Any]:
    plain: dict[str, Any] = msgspec.to_builtins(sample)
    followed = following.cards[sample.card.uuid]
    found: dict[str, Any] = plain.pop("card") | {name: value for name, value in plain.items() if name != "time_s"}
    found["processes"] = [_process(sample.card.uuid, process, following) for process in plain.get("processes", ())]
    found["processes_known"] = sample.processes_known
    extra = {
        "unaccounted_bytes": sample.unaccounted_bytes, "peak_bytes": followed.peak_bytes,
        "growth_bytes_per_s": followed.slope.per_s if followed.slope else None, "runs_out_in_s": followed.runs_out_in_s,
        "expected": msgspec.to_builtins(expected) if expected else None,
    }
    return found | {name: value for name, value in extra.items() if value is not None}


def _process(uuid: str, process: dict[str, Any], following: Following) -> dict[str, Any]:
    slope = following.growth.get((uuid, process["pid"]))
    found = {"holder": "alive"} | process
    return found if slope is None else found | {"growth_bytes_per_s": slope.per_s}
