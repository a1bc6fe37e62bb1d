"""The scorer counts every row."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from truth.score import PUBLISHED_FILES, main, percentile, score_row, summarise
from vramcast.question import as_options

ROW = {
    "group": "somebody", "domain": "llm", "spec_quality": "A", "model": "llama-3.2-1b", "gpu": "H100-80GB", "n_gpus": 1,
    "parallelism": {"tp": 1}, "micro_batch": 1, "seq_len": 512, "precision": "bf16-mixed", "optimizer": "AdamW",
    "recompute": "none", "peft": "none", "framework": "HF Trainer", "metric": "max_memory_allocated (GiB)",
    "measured_gib": 25.0,
}


def test_an_unknown_group_is_read_generally_and_gets_an_interval() -> None:
    (item,) = score_row(ROW, file="x.jsonl", number=1)
    assert item.prediction is not None
    assert item.prediction.interval is not None
    assert item.level == "allocated"


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"model": "unheard-of-9b"}, "unheard-of-9b"),
        ({"seq_len": None}, "seq_len"),
        ({"framework": "homemade"}, "homemade"),
        ({"gpu": "abacus"}, "abacus"),
        ({"domain": "diffusion"}, "tracing"),
    ],
)
def test_what_cannot_be_predicted_is_counted_with_its_reason(change: dict[str, object], words: str) -> None:
    (item,) = score_row(ROW | change, file="x.jsonl", number=1)
    assert item.prediction is None
    assert words in (item.refused or "")


def test_groups_carry_the_documented_fields() -> None:
    rows = [ROW, ROW | {"model": "unheard-of-9b"}, ROW | {"scope": "too few fields"}, ROW | {"suspect": "odd"}]
    scored = [item for number, row in enumerate(rows, 1) for item in score_row(row, file="x.jsonl", number=number)]
    plain, *marked = summarise(scored)
    assert (plain["group"], plain["level"], plain["rows"], plain["predicted"]) == ("somebody", "allocated", 2, 1)
    assert sum(plain["refused"].values()) == 1
    assert {"median_abs_error", "p95_abs_error", "underestimated_share", "interval_coverage", "worst"} <= set(plain)
    assert {record["mark"] for record in marked} == {"scope", "suspect"}


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


ASKED = {
    "id": "somebody/one", "group": "somebody", "task": "train", "quality": "A",
    "ask": {"model": "llama-3.2-1b", "gpus": "1xh100-sxm-80gb", "options": {"engine": "pytorch", "seq-len": 512}},
    "measured": {"quantity": "max_allocated", "value": 20.0, "unit": "GiB"},
}


def test_a_row_with_its_question_is_asked_as_the_command_line_asks_it() -> None:
    from vramcast import train

    (item,) = score_row(ASKED, file="x.jsonl", number=1)
    phases = train("llama-3.2-1b", gpus="1xh100-sxm-80gb", engine="pytorch", seq_len=512).fullest.phases
    assert item.prediction is not None
    assert item.prediction.predicted == max(peak.allocated_bytes for peak in phases.values())
    assert (item.level, item.grade, item.prediction.measured) == ("allocated", "A", 20 * 2**30)


def test_a_run_that_died_is_held_against_the_verdict() -> None:
    died = ASKED | {"measured": {"quantity": "oom", "value": 1, "unit": ""}}
    (item,) = score_row(died, file="x.jsonl", number=1)
    assert item.prediction is not None
    assert (item.level, item.prediction.predicted, item.prediction.measured) == ("fits", 1.0, 0.0)


def _refused(**changes: Any) -> str:
    row = ASKED | changes
    row["ask"] = ASKED["ask"] | changes.get("ask", {})  # type: ignore[operator]
    (item,) = score_row(row, file="x.jsonl", number=1)
    return item.refused or ""


UNKNOWN = "samples shorter than max_seq_length, padded to the longest of the batch: lengths unknown (asked at ...)"


def test_what_a_row_does_not_say_is_named_and_not_scored() -> None:
    said = {"unexpressed": [UNKNOWN]}
    assert "at least measured" in _refused(ask=said)
    assert "LESS THAN measured" in _refused(ask=said, measured=ASKED["measured"] | {"value": 500.0})  # type: ignore[operator]
    other = {"unexpressed": ["torchao generate.py (gpt-fast), not transformers: static cache"]}
    assert "a tool that is not modelled" in _refused(ask=other)
    less = ASKED["measured"] | {"value": 1.0}  # type: ignore[operator]
    assert "less was measured than the model's parameters take" in _refused(measured=less)


def test_a_dynamic_checkpoint_is_known_by_release_and_name() -> None:
    options = {"engine": "unsloth", "seq-len": 512, "peft": "lora", "base-weights": "nf4-dq"}
    for framework, name, mixed in (
        ("unsloth 2025.3.1", "unsloth/Llama-3.2-1B", True), ("unsloth 2024.8", "unsloth/Llama-3.2-1B", False),
        ("unsloth 2025.3.1", "unsloth/Llama-3.2-1B-bnb-4bit", False),
        ("unsloth 2025.3.1", "unsloth/Llama-3.2-1B-unsloth-bnb-4bit", True),
    ):
        said = _refused(framework=framework, ask={"options": options}, config={"values": {"model_name": name}})
        assert ("dynamic 4-bit checkpoint" in said) is mixed, name


def test_a_row_may_name_a_model_beside_its_file(tmp_path: Path) -> None:
    row = ASKED | {"ask": ASKED["ask"] | {"model": "recipe_configs/none.json"}}  # type: ignore[operator]
    (item,) = score_row(row, file="x.jsonl", number=1, folder=tmp_path)
    assert str(tmp_path) in (item.refused or "")


def test_recomputation_that_a_row_denies_is_not_torchtitans_default() -> None:
    from truth.rows.torchtitan import job_of

    row = {
        "model": "llama-3-8b", "gpu": "H100", "n_gpus": 8, "parallelism": {}, "precision": "bf16",
        "framework": "torchtitan 2025-02-06 eager",
    }
    assert job_of(row).plan.recompute == "selective"
    assert job_of(row | {"recompute": "none"}).plan.recompute == "none"


class Asked(BaseException):
    """What an adapter asks, before it is answered."""


def stop(job: Any, **_: Any) -> None:
    raise Asked(job)


def test_runs_are_asked_with_options_that_users_have(monkeypatch: pytest.MonkeyPatch) -> None:
    """Their cards apart, of which a file of one's own can say more than a name."""
    monkeypatch.setattr(as_options, "CARDS", ())
    for name in ("colossalai", "generic", "huggingface", "litgpt", "megatron_bridge", "torchtitan"):
        monkeypatch.setattr(f"truth.rows.{name}.answer", stop)
    asked = 0
    for number, line in enumerate(PUBLISHED_FILES[1].read_text(encoding="utf-8").splitlines(), start=1):
        try:
            list(score_row(json.loads(line), file="training.jsonl", number=number))
        except Asked as found:
            (job,) = found.args
            assert as_options.train_options(job, {}, model=job.model.name), number
            asked += 1
    assert asked > 100
