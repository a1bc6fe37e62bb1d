"""The suite of measured workloads is complete, and its scoring program compares what was really run."""

import gzip
import json

import pytest

from truth.measure.table import WORKLOADS

NETWORKS = {"mlp", "convnet", "lstm", "gpt", "moe", "unet", "timm", "transformers"}


def test_the_suite_holds_at_least_eighty_workloads_of_every_kind():
    assert len(WORKLOADS) >= 80
    assert {workload.network for workload in WORKLOADS.values()} == NETWORKS
    assert any(workload.compiled for workload in WORKLOADS.values())
    assert any(workload.accumulate > 1 for workload in WORKLOADS.values())
    assert any(workload.optimizer is None for workload in WORKLOADS.values())


def test_a_run_that_was_simulated_scores_as_exact_against_itself(tmp_path):
    pytest.importorskip("torch")
    from truth.measured import KINDS, measured_runs, predict, score

    predicted = predict(WORKLOADS["mlp_sgd"], "a100-sxm4-80gb")
    step = {f"peak_{level}_bytes": predicted.peaks[level] for level in ("allocated", "reserved")}
    record = {
        "workload": "mlp_sgd", "gpu": "a100-sxm4-80gb", "steps": [step], "process_bytes": predicted.peaks["device"],
    }
    codes = {is_free: code for code, is_free in KINDS.items()}
    events = [[codes[event.is_free], event.num_bytes, 0, 0, ""] for event in predicted.events]
    (tmp_path / "runs.jsonl").write_text(json.dumps(record) + "\n")
    with gzip.open(tmp_path / "events.0.jsonl.gz", "wt") as file:
        file.write(json.dumps({"workload": "mlp_sgd", "events": events}) + "\n")
    ((read, found),) = measured_runs(tmp_path)
    scored = score(read, found)
    assert set(scored.errors.values()) == {0.0}
    assert scored.events.share == 1.0
