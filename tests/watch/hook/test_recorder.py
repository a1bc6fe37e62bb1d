"""The hook in a training process: its recorder and loggers."""

import pickle
import sqlite3
import sys
from pathlib import Path
from typing import Any

import pytest

import vramcast
from tests.watch.hook.conftest import GIB, FakeTorch
from vramcast.cli.main import answered
from vramcast.domain.observation import EventKind
from vramcast.errors import InvalidSpec, SourceError, Unsupported
from vramcast.watch.hook import writer
from vramcast.watch.recording import read_run

# The hook records what torch says and never gets in the way of training.


def test_a_step_has_the_highest_peak_of_its_phases_and_each_phase_its_own(tmp_path: Path, torch: FakeTorch) -> None:
    with vramcast.record_memory(tmp_path / "run.sqlite") as memory:
        torch.hold(100, 120)
        memory.mark("load")
        for _ in range(2):
            torch.hold(300)
            memory.mark("forward")
            torch.hold(200, 500)
            memory.mark("backward")
            torch.hold(250, 260)
            memory.mark("optimizer")
            memory.step()
    run = read_run(tmp_path / "run.sqlite")
    found = {(one.step, one.phase): (one.allocated_bytes, one.peak_allocated_bytes) for one in run.torch}
    assert found[0, "load"] == (100, 120)
    assert found[1, "forward"] == (300, 300)
    assert found[2, "backward"] == (200, 500)
    assert found[2, "optimizer"] == (250, 260)
    assert found[2, "step"] == (250, 500)
    last = run.torch[-1]
    assert (last.num_alloc_retries, last.num_ooms, last.inactive_split_bytes) == (2, 1, 7)
    assert last.device_used_bytes == torch.reserved + (1 << 29)
    assert last.step_s is not None and last.step_s >= 0
    assert last.gpu_uuid == "GPU-aaaa-bbbb"
    assert run.info.writer == "hook" and run.info.versions["torch"] == "2.13.0+fake"


def test_the_highest_of_several_micro_batches_counts(tmp_path: Path, torch: FakeTorch) -> None:
    with vramcast.record_memory(tmp_path / "run.sqlite") as memory:
        for peak in (900, 400):
            torch.hold(100, peak)
            memory.mark("forward")
        memory.step()
    found = {one.phase: one.peak_allocated_bytes for one in read_run(tmp_path / "run.sqlite").torch}
    assert found == {"forward": 900, "step": 900}


def test_peaks_that_the_program_reads_itself_are_left_alone_when_asked(tmp_path: Path, torch: FakeTorch) -> None:
    with vramcast.record_memory(tmp_path / "run.sqlite", reset_peaks=False) as memory:
        torch.hold(10, 99)
        memory.mark("forward")
        memory.step()
    assert torch.resets == 0
    assert [one.peak_allocated_bytes for one in read_run(tmp_path / "run.sqlite").torch] == [99]


def test_a_build_of_torch_without_cards_is_asked_for_no_history(
    tmp_path: Path, torch: FakeTorch, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    torch.is_initialized = False
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.delattr(torch.cuda.memory, "_record_memory_history")
    with vramcast.record_memory(tmp_path / "run.sqlite", snapshot_at_oom=tmp_path / "oom.pickle") as memory:
        memory.step()
    assert "used no CUDA device" in caplog.text and "Error" not in caplog.text


def test_what_waits_for_a_full_disk_is_written_when_there_is_room(
    tmp_path: Path, torch: FakeTorch, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    write = writer.Recorder.write_torch
    full = [True]

    def written(self: Any, *args: Any) -> None:
        if full[0]:
            raise sqlite3.OperationalError("database or disk is full")
        write(self, *args)

    monkeypatch.setattr(writer.Recorder, "write_torch", written)
    with vramcast.record_memory(tmp_path / "run.sqlite") as memory:
        memory.step()
        assert not memory.flush()
        full[0] = False
        memory.step()
        assert memory.flush()
    assert [one.step for one in read_run(tmp_path / "run.sqlite").torch] == [1, 2]
    assert "disk is full" in caplog.text and "again" in caplog.text


def test_a_torch_that_fails_ends_the_recording_and_not_the_training(
    tmp_path: Path, torch: FakeTorch, caplog: pytest.LogCaptureFixture
) -> None:
    def lost(device: int) -> Any:
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    with vramcast.record_memory(tmp_path / "run.sqlite") as memory:
        memory.step()
        torch.cuda.mem_get_info = lost
        memory.step()
        memory.step()
    assert caplog.text.count("illegal memory access") == 1
    assert len(read_run(tmp_path / "run.sqlite").torch) == 1


def test_memory_that_runs_out_leaves_a_snapshot_and_says_what_reads_it(
    tmp_path: Path, torch: FakeTorch, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "oom.pickle"
    recorder = vramcast.record_memory(tmp_path / "run.sqlite", snapshot_at_oom=path)
    with pytest.raises(torch.OutOfMemoryError), recorder as memory:
        memory.step()
        memory.mark("forward")
        torch.observers[0](0, 1, 2, 3)  # torch calls this before it raises
        assert path.exists()
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.\nmore")
    assert pickle.loads(path.read_bytes()) == {"segments": [], "device_traces": [[]]}
    assert f"vramcast oom --snapshot {path}" in caplog.text and "step 2, backward" in caplog.text
    events = read_run(tmp_path / "run.sqlite").events
    assert [event.kind for event in events] == [EventKind.OUT_OF_MEMORY, EventKind.SNAPSHOT]
    assert events[0].text == "CUDA out of memory. Tried to allocate 2.00 GiB."
    assert torch.history == [{"max_entries": 100_000, "stacks": "python"}, {"enabled": None}]


def test_an_error_that_memory_caused_counts_and_any_other_does_not(
    tmp_path: Path, torch: FakeTorch, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(ValueError, match="other"), vramcast.record_memory(tmp_path / "a.sqlite") as memory:
        memory.step()
        raise ValueError("other")
    assert "out of memory" not in caplog.text
    with pytest.raises(ValueError, match="wrapped"), vramcast.record_memory(tmp_path / "b.sqlite"):
        try:
            raise torch.OutOfMemoryError("CUDA out of memory.")
        except RuntimeError as error:
            raise ValueError("wrapped") from error
    assert "out of memory in step 1, load" in caplog.text


def test_an_exception_that_nobody_catches_is_told_after_its_traceback(
    tmp_path: Path, torch: FakeTorch, caplog: pytest.LogCaptureFixture
) -> None:
    memory = vramcast.record_memory(tmp_path / "run.sqlite", snapshot_at_oom=tmp_path / "oom.pickle")
    memory.start()
    memory.step()
    error = torch.OutOfMemoryError("CUDA out of memory.")
    sys.excepthook(type(error), error, None)
    memory.close()
    assert (tmp_path / "oom.pickle").exists()
    assert caplog.text.count("out of memory in step") == 1


def test_a_snapshot_that_cannot_be_written_is_said_and_the_error_comes_through(
    tmp_path: Path, torch: FakeTorch, caplog: pytest.LogCaptureFixture
) -> None:
    lost = tmp_path / "nowhere" / "oom.pickle"
    with pytest.raises(torch.OutOfMemoryError), vramcast.record_memory(tmp_path / "run.sqlite", snapshot_at_oom=lost):
        raise torch.OutOfMemoryError("CUDA out of memory.")
    assert "could not be written" in caplog.text


def test_history_that_the_user_records_already_is_left_as_it_is(tmp_path: Path, torch: FakeTorch) -> None:
    torch._C._cuda_isHistoryEnabled = lambda: True
    with vramcast.record_memory(tmp_path / "run.sqlite", snapshot_at_oom=tmp_path / "oom.pickle") as memory:
        memory.step()
    assert torch.history == []


def test_history_without_a_place_for_the_snapshot_is_refused(tmp_path: Path, torch: FakeTorch) -> None:
    with pytest.raises(InvalidSpec, match="give snapshot_at_oom"):
        vramcast.record_memory(tmp_path / "run.sqlite", history=True)


def test_the_recording_speaks_the_language_of_the_locale(
    tmp_path: Path, torch: FakeTorch, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LC_ALL", "zh_CN.UTF-8")
    with vramcast.record_memory(tmp_path / "run.sqlite") as memory:
        memory.mark("load")
    assert "没有任何训练步" in caplog.text


def test_a_callback_of_a_framework_that_is_missing_says_what_to_install(
    tmp_path: Path, torch: FakeTorch, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("transformers", "lightning", "lightning.pytorch", "pytorch_lightning"):
        monkeypatch.setitem(sys.modules, name, None)
    memory = vramcast.record_memory(tmp_path / "run.sqlite")
    with pytest.raises(Unsupported, match="pip install transformers"):
        memory.transformers()
    with pytest.raises(Unsupported, match="pip install lightning"):
        memory.lightning()


# Each step beside its prediction, to loggers of every kind.

MEASURED, PREDICTED, ERROR = (f"vramcast/allocated_{what}" for what in ("measured_GiB", "predicted_GiB", "error"))


class TensorBoard:
    """A SummaryWriter, as far as it is called."""

    def __init__(self) -> None:
        self.steps: dict[int, dict[str, float]] = {}

    def add_scalar(self, tag: str, scalar_value: float, global_step: int) -> None:
        self.steps.setdefault(global_step, {})[tag] = scalar_value


class MLflow(TensorBoard):
    """The module, or a logger of Lightning."""

    add_scalar = property()  # type: ignore[assignment]

    def log_metrics(self, metrics: dict[str, float], step: int | None = None) -> None:
        assert step is not None
        self.steps[step] = metrics


class Wandb(TensorBoard):
    """A run, whose own count of steps goes on by itself."""

    add_scalar = property()  # type: ignore[assignment]

    def define_metric(self, name: str, step_metric: str | None = None) -> None:
        assert (name, step_metric, self.steps) == ("vramcast/*", "vramcast/step", {})

    def log(self, data: dict[str, float]) -> None:
        self.steps[int(data.pop("vramcast/step"))] = data


def steps(memory: Any, torch: FakeTorch) -> None:
    with memory:
        for allocated in (1, 2):
            torch.hold(allocated * GIB)
            memory.step()


@pytest.mark.parametrize("kind", [TensorBoard, MLflow, Wandb])
def test_steps_are_logged_beside_the_answer_that_json_wrote(
    kind: type[TensorBoard], tmp_path: Path, torch: FakeTorch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert answered(["train", "gpt2", "--gpus", "t4", "--json"]) == 0
    (tmp_path / "answer.json").write_text(capsys.readouterr().out)
    expected = vramcast.train("gpt2", gpus="t4").peak.allocated_bytes / GIB
    logger = kind()
    steps(vramcast.record_memory(tmp_path / "run.sqlite", predicted=tmp_path / "answer.json", log=logger), torch)
    assert [one[MEASURED] for one in logger.steps.values()] == [1.0, 2.0] and list(logger.steps) == [1, 2]
    assert logger.steps[2][PREDICTED] == expected and logger.steps[2][ERROR] == pytest.approx(expected / 2 - 1)


def test_a_logger_that_fails_ends_neither_training_nor_the_recording(
    tmp_path: Path, torch: FakeTorch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(figures: dict[str, float], step: int) -> None:
        raise ConnectionError("no server")

    memory = vramcast.record_memory(tmp_path / "run.sqlite", log=broken)
    steps(memory, torch)
    assert caplog.text.count("steps are no longer logged: ConnectionError: no server") == 1 and not memory.broken


def test_what_cannot_be_logged_to_or_predicts_nothing_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidSpec, match="log=int is nothing to log to"):
        vramcast.record_memory(tmp_path / "run.sqlite", log=3)
    (tmp_path / "answer.json").write_text("{}")
    with pytest.raises(SourceError, match="no answer to one plan"):
        vramcast.record_memory(tmp_path / "run.sqlite", predicted=tmp_path / "answer.json")
