"""The scorer counts every row."""

import json
from pathlib import Path
from typing import Any

import pytest

from truth.score import PUBLISHED_FILES, main, percentile, score_row
from vramcast.question import whole_command

ROW = {
    "group": "somebody", "domain": "llm", "spec_quality": "A", "model": "llama-3.2-1b", "gpu": "H100-80GB", "n_gpus": 1,
    "parallelism": {"tp": 1}, "micro_batch": 1, "seq_len": 512, "precision": "bf16-mixed", "optimizer": "AdamW",
    "recompute": "none", "peft": "none", "framework": "HF Trainer", "metric": "max_memory_allocated (GiB)",
    "measured_gib": 25.0,
}


def test_the_command_prints_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text(json.dumps(ROW) + "\n\n")
    assert main([str(path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["groups"][0]["rows"] == 1


@pytest.mark.parametrize("text", ["{broken", "[1, 2]"])
def test_a_broken_line_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text(json.dumps(ROW) + "\n" + text + "\n")
    assert main([str(path)]) == 2
    assert "rows.jsonl line 2" in capsys.readouterr().err


def test_a_missing_file_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["no-such-file.jsonl"]) == 2
    assert "no-such-file.jsonl" in capsys.readouterr().err


def test_percentiles_interpolate() -> None:
    assert percentile([0.0, 1.0], 0.95) == pytest.approx(0.95)
    assert percentile([3.0], 0.95) == 3.0


class Asked(BaseException):
    """What an adapter asks, before it is answered."""


def stop(job: Any, **_: Any) -> None:
    raise Asked(job)


def test_runs_are_asked_with_options_that_users_have(monkeypatch: pytest.MonkeyPatch) -> None:
    """Their cards apart, of which a file of one's own can say more than a name."""
    monkeypatch.setattr(whole_command, "CARDS", ())
    for name in ("colossalai", "generic", "huggingface", "litgpt", "megatron_bridge", "torchtitan"):
        monkeypatch.setattr(f"truth.rows.{name}.answer", stop)
    asked = 0
    for number, line in enumerate(PUBLISHED_FILES[1].read_text(encoding="utf-8").splitlines(), start=1):
        try:
            list(score_row(json.loads(line), file="training.jsonl", number=number))
        except Asked as found:
            (job,) = found.args
            assert whole_command.train_options(job, {}, model=job.model.name), number
            asked += 1
    assert asked > 100
