"""The same snapshot as JSON says the same; other JSON is told apart by what is in it."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.sources.snapshots.recordings import read, recording
from vramcast.errors import SourceError


def test_indented_json_with_a_byte_order_mark_is_read(tmp_path: Path) -> None:
    content = b"\xef\xbb\xbf" + json.dumps(recording(), indent=3).encode()
    assert len(read(tmp_path, content).devices[0].trace) == 12


def test_other_keys_are_passed_over_however_deep(tmp_path: Path) -> None:
    raw: dict[str, Any] = {"categories": [[[{"a": "]}\\\""}]]], "note": None} | recording()
    assert len(read(tmp_path, json.dumps(raw).encode()).devices) == 2


@pytest.mark.parametrize("content", [b"[[1,2],[[3]]]", b"[[-1, 1, 16384, 0], [5, 2, 2048, 2]]"])
def test_a_memory_timeline_is_refused_with_what_would_work(tmp_path: Path, content: bytes) -> None:
    with pytest.raises(SourceError, match="no addresses; give the trace of export_chrome_trace"):
        read(tmp_path, content)


def test_an_element_of_unheard_size_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="one element has more than"):
        read(tmp_path, b'{"segments": ["' + b"a" * (40 * 2**20) + b'"]}')
