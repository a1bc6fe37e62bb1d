"""Each step beside its prediction, to loggers of every kind."""

from pathlib import Path
from typing import Any

import pytest

import vramcast
from tests.watch.hook.conftest import GIB, FakeTorch
from vramcast.cli.main import answered
from vramcast.errors import InvalidSpec, SourceError

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
