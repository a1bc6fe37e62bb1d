"""`vramcast serve --reconcile`, from a log to a calibrated question."""

import json
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.cli.asking import serve
from tests.sources.logs.samples import FOLDER, sample
from vramcast.engines.serving.table import SERVING

LOG = str(FOLDER / "vllm-v1.log")
ASKED = ["--reconcile", LOG, "--gpus", "h100-sxm-80gb"]
AS_LOGGED = ["--engine", "vllm@0.19.1", "--context", "8k", "--max-sequences", "512", "--memory-fraction", "0.92"]

ENGINE_OF = {"sglang": "sglang", "tensorrt-pytorch": "tensorrt-llm", "llamacpp": "llama.cpp", "vllm-newest": "vllm"}
"""Log -> engine, where the engine is modelled."""


def test_the_report_begins_with_what_differs_most() -> None:
    done = serve(*ASKED, "--lang", "en")
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0].startswith("largest difference: ")
    assert lines[1] == "  vllm-v1.log: vllm 0.19.1, Worker_TP1"
    assert any(line.startswith("  KV cache ") and "61.00 GiB" in line for line in lines)
    assert "--save-calibration" in lines[-1]


@pytest.mark.parametrize("name", ENGINE_OF)
def test_logs_of_every_modelled_engine_are_reconciled(name: str) -> None:
    engine = ENGINE_OF[name]
    if find_spec(SERVING[engine].module) is None:
        pytest.skip(f"{engine} is not modelled yet")
    gpus = [] if name == "llamacpp" else ["--gpus", "h100-sxm-80gb"]
    done = serve("--reconcile", str(FOLDER / f"{name}.log"), *gpus, "--json")
    assert done.returncode in (0, 1), done.stderr
    found = json.loads(done.stdout)
    assert found["question"]["engine"].startswith(engine)
    assert {"weights", "kv cache"} <= {entry["entry"] for entry in found["reconciliation"]["entries"]}


def test_a_saved_calibration_brings_the_same_question_to_what_was_measured(tmp_path: Path) -> None:
    path = tmp_path / "run.toml"
    saved = serve(*ASKED, "--save-calibration", str(path), "--lang", "en")
    assert saved.stdout.splitlines()[-1] == f"Saved: ask with --calibration {path}"
    asked = ["llama-3.1-8b", "--gpus", "2xh100-sxm-80gb", *AS_LOGGED]
    done = serve(*asked, "--calibration", str(path), "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["startup"]["non-torch"] == pytest.approx(2.61 * 2**30, rel=0.002)
    sentence = "calibrated by run.toml: non-torch 2.61 GiB instead"
    assert any(text.startswith(sentence) for text in found["assumptions"])
    assert found["question"]["calibration"] == "run.toml"
    assert found["capacity"]["kv_tokens"] < json.loads(serve(*asked, "--json").stdout)["capacity"]["kv_tokens"]
    again = json.loads(serve(*ASKED, "--calibration", str(path), "--json").stdout)["reconciliation"]
    assert all(abs(entry["relative"]) < 0.002 for entry in again["entries"] if entry["entry"] in again["corrections"])


def test_an_out_of_memory_log_shows_the_message_beside_the_prediction() -> None:
    done = serve("--reconcile", str(FOLDER / "vllm-oom.log"), "--gpus", "h100", "--lang", "en")
    assert "Out of memory, after start-up" in done.stdout
    assert "request that failed" in done.stdout
    assert "predicted for this process" in done.stdout


@pytest.mark.parametrize(("arguments", "code", "words"), [
    (["--reconcile", "none.log"], 5, "none.log"),
    (["--reconcile", LOG, "--gpus", "h1000"], 4, "h100"),
    (["--reconcile", str(FOLDER / "vllm-v0.log")], 2, "--gpus"),
    (["--reconcile", LOG, "--gpus", "h100", "--engine", "sglang"], 2, "contradicts"),
    (["--reconcile", __file__, "--gpus", "h100"], 5, "looked for"),
    (["llama-3.1-8b", "--gpus", "h100", "--save-calibration", "x.toml"], 2, "--reconcile"),
    (["llama-3.1-8b", "--gpus", "h100", "--calibration", "none.toml"], 5, "none.toml"),
    ([*ASKED, "--calibration", "x.toml", "--save-calibration", "y.toml"], 2, "leave out --calibration"),
])
def test_bad_input_gets_one_sentence_and_its_exit_code(arguments: list[str], code: int, words: str) -> None:
    done = serve(*arguments)
    assert done.returncode == code, done.stderr
    assert done.stdout == ""
    assert words in done.stderr
    assert done.stderr.count("\n") == 1


def test_several_startups_are_said(tmp_path: Path) -> None:
    path = tmp_path / "twice.log"
    path.write_text(sample("vllm-v1") * 2, encoding="utf-8")
    done = serve("--reconcile", str(path), "--gpus", "h100", "--lang", "en")
    assert "the log holds 2 start-ups; this is the last one" in done.stdout
