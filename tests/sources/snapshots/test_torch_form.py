"""Snapshots of every version of torch say the same things under different keys."""

from __future__ import annotations

import gzip
import pickle
from pathlib import Path
from typing import Any

import pytest

from tests.sources.snapshots.recordings import HEAP, MIB, TRUTH, block, event, frame, read, recording, resolved, segment
from vramcast.domain.snapshot import Action, Annotation, Frame
from vramcast.errors import SourceError
from vramcast.sources.snapshots import read_snapshot


@pytest.mark.parametrize("path", sorted(TRUTH.glob("*.pickle.gz")), ids=lambda path: path.name[:40])
def test_every_event_and_block_of_a_real_snapshot_is_what_the_pickle_says(path: Path) -> None:
    with gzip.open(path) as file:
        raw = pickle.load(file)
    snapshot = read_snapshot(path)
    assert [device.device for device in snapshot.devices] == [i for i, t in enumerate(raw["device_traces"]) if t]
    for device in snapshot.devices:
        expected = raw["device_traces"][device.device]
        trace = device.trace
        assert len(trace) == len(expected)
        for index, row in enumerate(expected):
            assert Action(trace.actions[index]).name.lower() == row["action"]
            values = (trace.addresses[index], trace.sizes[index], trace.streams[index], trace.times_us[index])
            assert values == (row["addr"], row["size"], row["stream"], row["time_us"])
            assert snapshot.stacks[trace.stacks[index]] == _frames(row)
        rows = sorted((row for row in raw["segments"] if row["device"] == device.device), key=lambda r: r["address"])
        assert [(s.address, s.size_bytes) for s in device.segments] == [(r["address"], r["total_size"]) for r in rows]
        blocks = [one for held in device.segments for one in held.blocks]
        for view, row in zip(blocks, (b for r in rows for b in r["blocks"]), strict=True):
            assert (view.address, view.size_bytes, view.is_free) == (
                row["address"], row["size"], row["state"] == "inactive",
            )  # fmt: skip
            if not view.is_free:
                assert view.requested_bytes == row["requested_size"]
                assert snapshot.stacks[view.stack] == _frames(row)


def _frames(row: dict[str, Any]) -> tuple[Frame, ...]:
    return tuple(Frame(f["name"], f["filename"], f["line"]) for f in row["frames"])


def test_an_oom_event_says_what_the_driver_had_free(tmp_path: Path) -> None:
    trace = read(tmp_path, recording()).devices[0].trace
    assert (trace.actions[-1], trace.addresses[-1], trace.sizes[-1]) == (Action.OOM, 12 * MIB, 30 * MIB)


def test_a_recording_of_two_devices_keeps_them_apart(tmp_path: Path) -> None:
    devices = read(tmp_path, recording()).devices
    assert [(device.device, len(device.trace), len(device.segments)) for device in devices] == [(0, 12, 1), (1, 12, 1)]
    assert devices[1].trace.streams[1] == 2**40


def test_blocks_without_addresses_follow_one_another(tmp_path: Path) -> None:
    """torch 2.0 and 2.1 write no address of a block."""
    blocks = read(tmp_path, recording()).devices[0].segments[0].blocks
    assert [(one.address, one.size_bytes, one.is_free) for one in blocks] == [
        (HEAP, MIB, False), (HEAP + MIB, 19 * MIB, True),
    ]  # fmt: skip


def test_torch_2_0_keeps_request_and_stack_in_a_history(tmp_path: Path) -> None:
    history = [{"addr": HEAP, "real_size": 1000, "frames": [frame("forward")]}]
    old = {"size": 1024, "state": "active_allocated", "history": history}
    rest = {"size": MIB - 1024, "state": "inactive"}
    row = {"device": 0, "address": HEAP, "total_size": MIB, "stream": 0, "segment_type": "small", "blocks": [old, rest]}
    snapshot = read(tmp_path, {"segments": [row], "device_traces": [[]]})
    view = snapshot.devices[0].segments[0].blocks[0]
    assert (view.requested_bytes, snapshot.stacks[view.stack][0].name) == (1000, "forward")


def test_a_list_of_segments_alone_is_a_snapshot_without_events(tmp_path: Path) -> None:
    """What torch.cuda.memory_snapshot() returns."""
    device = read(tmp_path, recording()["segments"][:1]).devices[0]
    assert (len(device.trace), len(device.segments), device.has_segments) == (0, 1, True)


def test_a_freed_block_that_another_stream_uses_awaits_its_free(tmp_path: Path) -> None:
    rows = [segment(HEAP, [block(MIB, "active_pending_free"), block(MIB, "active_awaiting_free")])]
    blocks = read(tmp_path, rows).devices[0].segments[0].blocks
    assert all(one.awaits_free and not one.is_free for one in blocks)


def test_memory_that_no_block_claims_is_free(tmp_path: Path) -> None:
    rows = [segment(HEAP, [block(MIB)], total_size=2 * MIB)]
    assert read(tmp_path, rows).devices[0].segments[0].blocks[1].is_free


def test_pools_metadata_and_compile_contexts_are_kept(tmp_path: Path) -> None:
    raw = recording(num_devices=1)
    raw["device_traces"][0] += [
        event("alloc", HEAP, 1, pool_id=(0, 3)),
        event("alloc", HEAP, 1, user_metadata="rollout"),
        event("alloc", HEAP, 1, compile_context="Torch-Compiled Region: 0/0"),
        event("alloc", HEAP, 1, user_metadata="rollout", category="activation"),
    ]
    snapshot = read(tmp_path, raw)
    trace = snapshot.devices[0].trace
    assert snapshot.pools[trace.pools[-4]] == (0, 3)
    assert [snapshot.labels[label] for label in trace.labels[-4:]] == [
        "", "rollout", "Torch-Compiled Region: 0/0", "activation",
    ]  # fmt: skip


def test_annotations_become_spans(tmp_path: Path) -> None:
    raw = recording()
    raw["external_annotations"].append({"stage": "START", "name": "save", "device": 1, "time_us": 40})
    assert read(tmp_path, raw).annotations == (Annotation("step", 0, 10, 30), Annotation("save", 1, 40, 40))


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


def test_rebuilt_divisions_mean_the_same_table(tmp_path: Path) -> None:
    from vramcast.allocator import Settings

    table = [0, 0, 0, 0, 0, 0, 0, 0, 4, 2, 1, 8, 8, 8, 8, 8]
    raw = recording()
    raw["allocator_settings"] = {"roundup_power2_divisions": {str(2**i): value for i, value in enumerate(table)}}
    assert Settings.parse(read(tmp_path, raw).alloc_conf).roundup_power2_divisions == tuple(table)


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_every_pickle_protocol_reads_the_same(tmp_path: Path, protocol: int) -> None:
    raw = recording(num_events=2503)
    expected = resolved(read(tmp_path, raw))
    assert resolved(read(tmp_path, pickle.dumps(raw, protocol=protocol))) == expected


@pytest.mark.parametrize("num_events", [2, 3, 1000, 1001, 1002, 2001])
def test_lists_may_end_with_a_batch_of_one(tmp_path: Path, num_events: int) -> None:
    """Pickles write lists in batches of 1000, and a single last element in another way."""
    devices = read(tmp_path, recording(num_events=num_events)).devices
    assert [len(device.trace) for device in devices] == [num_events, num_events]
    assert [device.trace.actions[-1] for device in devices] == [Action.OOM, Action.OOM]


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
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
    ],
)
def test_what_breaks_a_rule_is_named_in_one_sentence(tmp_path: Path, change: dict[str, Any], sentence: str) -> None:
    with pytest.raises(SourceError, match=sentence):
        read(tmp_path, recording() | change)
