"""Scripts that record their own memory history: what they write is there when the trace is over."""

from __future__ import annotations

from pathlib import Path

import pytest

from vramcast.catalogue.gpus import load_gpu
from vramcast.domain.trace_job import ScriptJob
from vramcast.recordings.replay import Outcome, replay
from vramcast.recordings.start import RecordedDevice
from vramcast.sources.snapshots import read_snapshot
from vramcast.tracing.script_watch import MOST_STEPS, NOT_DUMPED
from vramcast.tracing.scripts import run_script

pytestmark = pytest.mark.usefixtures("forked")
SCRIPT = """
import torch
module = torch.nn.Linear(256, 256).cuda()
optimizer = torch.optim.SGD(module.parameters())
torch.cuda.memory._record_memory_history(max_entries=100000)
for step in range({steps}):
    module(torch.randn(8, 256, device="cuda")).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
torch.cuda.memory._dump_snapshot("history.pickle")
torch.cuda.memory._record_memory_history(enabled=None)
for step in range(1000):
    module(torch.randn(8, 256, device="cuda")).sum().backward()
    optimizer.step()
"""


@pytest.fixture(autouse=True)
def own_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run(steps):
    Path("script.py").write_text(SCRIPT.format(steps=steps))
    return run_script(ScriptJob(path="script.py", arguments=(), gpu=load_gpu("a100-sxm-80gb"), time_limit_s=100))


def test_a_run_goes_on_until_the_script_has_written_its_history(own_folder):
    record = run(7)
    assert record.steps == 8  # and ends at the next step
    snapshot = read_snapshot(own_folder / "history.pickle")
    replayed = replay(RecordedDevice(snapshot, snapshot.devices[0]))
    assert replayed.outcome is Outcome.EXACT
    assert NOT_DUMPED not in str(record.assumptions)


def test_a_history_that_comes_too_late_is_told(own_folder):
    record = run(10_000)
    assert record.steps == MOST_STEPS
    assert not (own_folder / "history.pickle").exists()
    assert NOT_DUMPED in str(record.assumptions)
