"""The memory history that a script asks for, as torch keeps it; what it writes is there when the trace is over."""

import pickle
from pathlib import Path

import pytest
import torch

from vramcast.catalogue.gpus import load_gpu
from vramcast.domain.trace_job import ScriptJob
from vramcast.recordings.replay import Outcome, replay
from vramcast.recordings.start import RecordedDevice
from vramcast.sources.snapshots import read_snapshot
from vramcast.tracing.script_parts import run_script
from vramcast.tracing.script_watch import MOST_STEPS, NOT_DUMPED
from vramcast.tracing.session import Session


def made(size):
    return torch.empty(size, device="cuda")


def events():
    (trace,) = torch.cuda.memory._snapshot()["device_traces"]
    return trace


def live_frames():
    segments = torch.cuda.memory._snapshot()["segments"]
    return [block["frames"] for segment in segments for block in segment["blocks"] if block["state"] != "inactive"]


def test_until_it_is_switched_on_nothing_is_kept(running):
    held = made(1000)
    assert events() == [] and live_frames() == [[]]
    assert not torch._C._cuda_isHistoryEnabled()
    del held


def test_only_the_newest_are_kept_and_none_of_what_is_skipped(running):
    torch.cuda.memory._record_memory_history(max_entries=3)
    held = [made(size) for size in (1000, 2000, 3000, 4000)]
    assert [event["size"] for event in events()] == [8000, 12000, 16000]
    torch.cuda.memory._record_memory_history("state")
    assert len(events()) == 1
    torch.cuda.memory._record_memory_history(clear_history=True, skip_actions=["free_requested"])
    held.clear()
    assert {event["action"] for event in events()} == {"free_completed"}


def test_the_older_way_to_ask_is_understood(running):
    torch.cuda.memory._record_memory_history(True, trace_alloc_max_entries=100, trace_alloc_record_context=True)
    held = made(1000)
    assert [event["action"] for event in events()] == ["segment_alloc", "alloc"]
    torch.cuda.memory._record_memory_history(False)
    assert events() == []
    del held


def test_a_dump_opens_in_torchs_own_viewer_and_replays_exactly(session, tmp_path):
    from torch.cuda import _memory_viz

    path = tmp_path / "run.pickle"
    with session.active():
        module = torch.nn.Linear(512, 512).cuda()
        optimizer = torch.optim.AdamW(module.parameters())
        torch.cuda.memory._record_memory_history(max_entries=100_000)
        for _ in range(3):
            module(torch.randn(64, 512, device="cuda")).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
        torch.cuda.memory._dump_snapshot(str(path))
    document = pickle.loads(path.read_bytes())
    for plot in (_memory_viz.trace_plot, _memory_viz.segment_plot):
        assert "<html>" in plot(document) or "<script" in plot(document)
    assert "alloc" in _memory_viz.trace(document)
    snapshot = read_snapshot(path)
    replayed = replay(RecordedDevice(snapshot, snapshot.devices[0]))
    assert replayed.outcome is Outcome.EXACT and replayed.allocations > 20


def test_a_failure_says_what_was_free():
    with Session(load_gpu("a100-sxm-80gb"), capacity_bytes=64 << 20).active():
        torch.cuda.memory._record_memory_history()
        with pytest.raises(torch.OutOfMemoryError):
            made(100 << 20)
        (event,) = (event for event in events() if event["action"] == "oom")
        assert event["device_free"] == 64 << 20 and "addr" not in event


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


@pytest.fixture
def own_folder(tmp_path, monkeypatch, forked):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run(steps):
    Path("script.py").write_text(SCRIPT.format(steps=steps))
    return run_script(ScriptJob(path="script.py", arguments=(), gpu=load_gpu("a100-sxm-80gb"), time_limit_s=600))


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
