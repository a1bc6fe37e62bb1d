"""What a user of `vramcast serve` meets."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from tests.cli.asking import serve


def test_a_plan_that_fits_exits_zero_and_its_ledger_adds_up() -> None:
    done = serve("llama-3.1-8b", "--gpus", "2xl40s", "--context", "32k", "--concurrency", "4", "--json")
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    assert answer["schema"] == 1
    assert answer["fits"] is True
    assert answer["question"]["plan"]["tp"] == 2
    for rank in answer["ranks"]:
        assert sum(entry["bytes"] for entry in rank["ledger"]) == rank["peak"]["device_bytes"]
        assert rank["peak"]["allocated_bytes"] <= rank["peak"]["reserved_bytes"] <= rank["peak"]["device_bytes"]
    capacity = answer["capacity"]
    assert capacity["kv_tokens"] > 4 * 32768
    assert capacity["concurrency"] >= 4
    assert 32768 <= capacity["longest_context"] <= 131072
    assert 0.5 < capacity["safe_fraction"] < 1.0


def test_a_load_that_the_cache_cannot_hold_exits_one_and_says_what_is_short() -> None:
    done = serve("llama-3.1-8b", "--gpus", "l40s", "--context", "128k", "--concurrency", "64", "--lang", "en")
    assert done.returncode == 1, done.stderr
    assert done.stdout.startswith("does not fit: ")
    assert " of 64 sequences of 131,072 tokens: they take 1024.00 GiB, the cache has " in done.stdout


def test_a_model_larger_than_the_cards_does_not_fit() -> None:
    done = serve("llama-3.1-70b", "--gpus", "l40s", "--json")
    assert done.returncode == 1, done.stderr
    assert json.loads(done.stdout)["fits"] is False


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["llama-3.1-8b", "--find", "most-users"], 2, "which GPUs?"),
        (["llama-3.1-8b", "--write", "configs"], 2, "which GPUs?"),
        (["--gpus", "l40s"], 2, "which model?"),
        (["llama-3.1-8b", "--gpus", "l40s", "--engine", "vlm"], 4, "did you mean vllm"),
        (["llama-3.1-8b", "--gpus", "l40s", "--engine", "vllm@0.1"], 2, "known are versions 0.2 to"),
        (["llama-3.1-8b", "--gpus", "l40s", "--engine", "vllm@newest"], 2, "must be written like"),
        (["llama-3.1-8b", "--gpus", "l40s", "--tp", "4"], 2, "needs 4 GPUs"),
        (["llama-3.1-8b", "--gpus", "l40s", "--memory-fraction", "1.5"], 2, "above 0 and up to 1"),
        (["llama-3.1-8b", "--gpus", "l40s", "--context", "long"], 2, "whole number"),
        (["llama-3.1-8b", "--gpus", "l40s", "--weights", "fp7"], 4, "weight format"),
        (["llama-3.1-8b", "--gpus", "l40s", "--kv-dtype", "fp9"], 4, "cache dtype"),
        (["llama-3.1-8b", "--gpus", "l40s", "--draft-tokens", "4"], 2, "--draft-tokens needs --draft"),
        (["llama-3.1-8b", "--gpus", "3xl40s", "--tp", "3"], 2, "tp=3"),
        (["llama-3.1-8b", "--gpus", "l40s", "--gpu-layers", "3"], 3, "gpu-layers=3 says nothing to vllm"),
        (["llama-3.1-8b", "--gpus", "l4", "--engine", "llama.cpp", "--memory-fraction", "0.9"], 3, "says nothing to"),
    ],
)
def test_a_question_that_cannot_be_answered_gets_one_sentence(arguments: list[str], code: int, words: str) -> None:
    done = serve(*arguments)
    assert (done.returncode, done.stdout) == (code, "")
    assert words in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1


def test_weights_beyond_the_budget_are_named_with_what_is_missing() -> None:
    done = serve("llama-3.1-70b", "--gpus", "h200", "--lang", "en")
    assert done.returncode == 1, done.stderr
    assert "nothing is left for the cache: weights 131" in done.stdout


def test_the_report_exists_in_chinese() -> None:
    done = serve("qwen3-8b", "--gpus", "h100", "--context", "16k", "--lang", "zh")
    assert done.stdout.startswith("放得下")
    assert "缓存可容纳" in done.stdout


def test_a_serving_process_imports_neither_torch_nor_numpy_nor_rich() -> None:
    code = (
        "import sys; from vramcast.cli.main import group; "
        "group.main(['serve','llama-3.1-8b','--gpus','h100'], standalone_mode=False); "
        "print([name for name in ('torch','numpy','rich','yaml') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=180, check=False)
    assert done.stdout.strip().endswith("[]"), done.stdout[-200:] + done.stderr
