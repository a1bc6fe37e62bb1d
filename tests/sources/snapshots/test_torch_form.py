"""Snapshots of every version of torch say the same things under different keys."""

from pathlib import Path
from typing import Any

import pytest

from tests.sources.snapshots.recordings import HEAP, MIB, block, event, read, recording, segment
from vramcast.domain.snapshot import Annotation
from vramcast.errors import SourceError


def test_memory_that_no_block_claims_is_free(tmp_path: Path) -> None:
    rows = [segment(HEAP, [block(MIB)], total_size=2 * MIB)]
    assert read(tmp_path, rows).devices[0].segments[0].blocks[1].is_free


def test_what_a_program_records_itself_is_an_annotation_of_its_device(tmp_path: Path) -> None:
    raw = recording()
    raw["device_traces"][0] = []
    raw["device_traces"][1].insert(3, event("user_defined", 0, 0, user_metadata="epoch 2", time_us=77))
    snapshot = read(tmp_path, raw)
    assert Annotation("epoch 2", 1, 77, 77) in snapshot.annotations
    assert len(snapshot.devices[-1].trace) == 12


def test_unknown_actions_are_counted_and_said(tmp_path: Path) -> None:
    raw = recording()
    raw["device_traces"][0] += [event("segment_teleport", 1, 1), event("segment_teleport", 1, 1)]
    assert read(tmp_path, raw).remarks == ("2 events of the unknown action 'segment_teleport' were left out",)


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}, "expandable_segments:True"),
        ({"PYTORCH_CUDA_ALLOC_CONF": "", "max_split_size": -1, "expandable_segments": False}, ""),
        ({"max_split_size": 128 * MIB, "garbage_collection_threshold": 0.8},
         "max_split_size_mb:128,garbage_collection_threshold:0.8"),
        ({"roundup_power2_divisions": {str(2**power): 4 for power in range(16)}}, "roundup_power2_divisions:4"),
        ({"roundup_power2_divisions": {str(2**power): 0 for power in range(16)}}, ""),
        (None, ""),
        ({"PYTORCH_CUDA_ALLOC_CONF": "max_split_size_mb:64", "expandable_segments": True},
         "max_split_size_mb:64,expandable_segments:True"),  # set one after the other
        ({"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True", "expandable_segments": False},
         "expandable_segments:False"),  # the driver has none
    ],
)  # fmt: skip
def test_settings_are_rebuilt_where_their_text_is_missing(tmp_path: Path, settings: Any, expected: str) -> None:
    raw = recording()
    raw["allocator_settings"] = settings
    assert read(tmp_path, raw).alloc_conf == expected


@pytest.mark.parametrize(("change", "sentence"), [
    ({"segments": 5}, "segments must be a list"),
    ({"device_traces": [5]}, "a device trace must be a list of events"),
    ({"segments": [5]}, "a segment must be a dict"),
    ({"segments": [segment(-1, [block(MIB)])]}, "address of a segment is out of range"),
    ({"segments": [segment(HEAP, [block(MIB)]), segment(HEAP + 512, [block(MIB)])]}, "overlap"),
    ({"segments": [segment(HEAP, [block(MIB)], total_size=512)]}, "do not tile"),
    ({"segments": [segment(HEAP, [block(MIB, address=HEAP + 1)])]}, "do not tile"),
    ({"segments": [segment(HEAP, [block(MIB, "melted")])]}, "has the state 'melted'"),
    ({"device_traces": [[event("alloc", 2**64, 1)]]}, "addr is out of range"),
    ({"device_traces": [[event("alloc", 1, -1)]]}, "size is out of range"),
    ({"device_traces": [[event("alloc", 1, 1.5)]]}, "size must be an integer"),
    ({"device_traces": [[event("alloc", 1, 1, frames="main")]]}, "frames must be a list"),
    ({"device_traces": [[event("alloc", 1, 1, frames=[5])]]}, "a frame must be a dict"),
    ({"device_traces": [[event("alloc", 1, 1, pool_id=(1,))]]}, "a pool id must be a pair"),
])
def test_what_breaks_a_rule_is_named_in_one_sentence(tmp_path: Path, change: dict[str, Any], sentence: str) -> None:
    with pytest.raises(SourceError, match=sentence):
        read(tmp_path, recording() | change)
