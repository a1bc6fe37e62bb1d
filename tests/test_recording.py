"""The recording of the documents is what its tool writes."""

import gzip
from pathlib import Path

import pytest

from tools import recording


def test_the_shown_recording_is_up_to_date(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shown = gzip.decompress(recording.PATH.read_bytes())
    monkeypatch.setattr(recording, "PATH", tmp_path / recording.PATH.name)
    recording.main()
    assert gzip.decompress(recording.PATH.read_bytes()) == shown
