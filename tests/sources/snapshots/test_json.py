"""The same snapshot as JSON says the same; other JSON is told apart by what is in it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.sources.snapshots.recordings import event, read, recording, resolved
from vramcast.errors import SourceError


def test_a_snapshot_as_json_says_what_its_pickle_says(tmp_path: Path) -> None:
    raw = recording(num_events=300)
    as_pickle, as_json = resolved(read(tmp_path, raw)), resolved(read(tmp_path, json.dumps(raw).encode()))
    assert as_json.pop("format") == "torch-json"
    assert as_pickle.pop("format") == "torch"
    assert as_json == as_pickle


def test_indented_json_with_a_byte_order_mark_is_read(tmp_path: Path) -> None:
    content = b"\xef\xbb\xbf" + json.dumps(recording(), indent=3).encode()
    assert len(read(tmp_path, content).devices[0].trace) == 12


def test_a_json_list_of_segments_is_a_snapshot_without_events(tmp_path: Path) -> None:
    device = read(tmp_path, json.dumps(recording()["segments"][:1]).encode()).devices[0]
    assert (len(device.trace), len(device.segments)) == (0, 1)


def test_other_keys_are_passed_over_however_deep(tmp_path: Path) -> None:
    raw: dict[str, Any] = {"categories": [[[{"a": "]}\\\""}]]], "note": None} | recording()
    assert len(read(tmp_path, json.dumps(raw).encode()).devices) == 2


@pytest.mark.parametrize("content", [b"[[1,2],[[3]]]", b"[[-1, 1, 16384, 0], [5, 2, 2048, 2]]"])
def test_a_memory_timeline_is_refused_with_what_would_work(tmp_path: Path, content: bytes) -> None:
    with pytest.raises(SourceError, match="no addresses; give the trace of export_chrome_trace"):
        read(tmp_path, content)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"device_traces": [[event("alloc", 2**70, 1)]]}, "addr is out of range"),
        ({"device_traces": [[event("alloc", 10**4000, 1)]]}, "cannot be used|out of range"),
        ({"device_traces": [[event("alloc", "here", 1)]]}, "cannot be used"),
        ({"device_traces": [[event("alloc", 1, -1)]]}, "size is out of range"),
        ({"device_traces": [5]}, "belongs"),
        ({"segments": {}}, "belongs"),
    ],
)
def test_what_breaks_a_rule_is_named_in_one_sentence(tmp_path: Path, change: dict[str, Any], sentence: str) -> None:
    with pytest.raises(SourceError, match=sentence):
        read(tmp_path, json.dumps(recording() | change).encode())


def test_an_element_of_unheard_size_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="one element has more than"):
        read(tmp_path, b'{"segments": ["' + b"a" * (40 * 2**20) + b'"]}')
