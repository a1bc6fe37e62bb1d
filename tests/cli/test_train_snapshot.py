"""`vramcast train --snapshot` writes a recording that agrees with the answer."""

import json
import subprocess
import sys
from pathlib import Path

from vramcast.recordings.replay import replay
from vramcast.recordings.start import RecordedDevice
from vramcast.sources.snapshots import read_snapshot

TRAIN = [
    sys.executable, "-m", "vramcast", "train", "llama-3.2-1b", "--gpus", "h100-sxm-80gb", "--engine", "pytorch",
    "--seq-len", "512", "--json", "--snapshot",
]  # fmt: skip


def test_the_snapshot_replays_to_the_reserved_bytes_of_the_answer(tmp_path: Path) -> None:
    path = tmp_path / "run.pickle"
    done = subprocess.run([*TRAIN, str(path)], capture_output=True, text=True, timeout=180, check=True)
    snapshot = read_snapshot(path)
    replayed = replay(RecordedDevice(snapshot, snapshot.devices[0]))
    phases = json.loads(done.stdout)["ranks"][0]["phases"].values()
    assert replayed.peak_reserved_bytes == max(phase["reserved_bytes"] for phase in phases)
    assert replayed.addresses_matched == replayed.allocations
    assert replayed.final_blocks_matched


def test_a_snapshot_that_cannot_be_written_is_said_in_one_sentence(tmp_path: Path) -> None:
    done = subprocess.run([*TRAIN, str(tmp_path)], capture_output=True, text=True, timeout=180, check=False)
    assert done.returncode == 5
    assert done.stderr.count("\n") == 1
