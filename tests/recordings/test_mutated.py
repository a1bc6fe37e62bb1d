"""Recordings with events and blocks that no allocator wrote are replayed or refused, never a bug of ours."""

import copy
import pickle
import random
from pathlib import Path
from typing import Any, Final

import pytest

import vramcast
from vramcast.errors import VramcastError

EXAMPLE: Final = Path(__file__).parents[2] / "docs" / "examples" / "fragmented.pickle"
INTEGERS: Final = (0, 1, -1, 512, 513, 2**20, 2**21, 10 * 2**20, 2**31, 2**40, 2**63 - 1, -5)
ACTIONS: Final = (
    "alloc", "free_requested", "free_completed", "segment_alloc", "segment_free", "segment_map", "segment_unmap", "oom",
)


def changed_event(events: list[dict[str, Any]], draw: random.Random) -> None:
    index = draw.randrange(len(events))
    event = events[index]
    match draw.randrange(6):
        case 0:
            event["addr"] = draw.choice((draw.choice(events).get("addr", 0), draw.choice(INTEGERS)))
        case 1:
            event["size"] = draw.choice((draw.choice(events).get("size", 0), draw.choice(INTEGERS)))
        case 2:
            event["action"] = draw.choice(ACTIONS)
        case 3:
            events.insert(draw.randrange(len(events)), dict(event))
        case 4:
            del events[index]
        case _:
            event["stream"] = draw.choice((0, 1, 7, 2**40))


def changed_segment(segment: dict[str, Any], draw: random.Random) -> None:
    blocks = segment.get("blocks") or [segment]
    name = draw.choice(("address", "total_size", "allocated_size", "size", "requested_size", "stream"))
    draw.choice((segment, draw.choice(blocks)))[name] = draw.choice(INTEGERS)


@pytest.mark.parametrize("seed", range(60))
def test_a_changed_recording_is_replayed_or_refused(seed: int, tmp_path: Path) -> None:
    draw = random.Random(seed)
    original = pickle.loads(EXAMPLE.read_bytes())
    for _ in range(5):
        recording = copy.deepcopy(original)
        for _ in range(draw.choice((1, 2, 8))):
            if draw.random() < 0.7:
                changed_event(recording["device_traces"][0], draw)
            else:
                changed_segment(draw.choice(recording["segments"]), draw)
        path = tmp_path / "changed.pickle"
        path.write_bytes(pickle.dumps(recording))
        try:
            assert str(vramcast.replay(path, leaks=True, all_confs=seed % 4 == 0))
        except VramcastError as error:
            assert "\n" not in str(error)


def test_an_empty_request_that_landed_elsewhere_is_nowhere(tmp_path: Path) -> None:
    recording = pickle.loads(EXAMPLE.read_bytes())
    for event in recording["device_traces"][0]:
        if event["action"] == "alloc":
            event["size"] = 0
    path = tmp_path / "empty.pickle"
    path.write_bytes(pickle.dumps(recording))
    assert str(vramcast.replay(path))
