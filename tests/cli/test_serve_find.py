"""What a user of `vramcast serve --find` meets."""

import json
from pathlib import Path

import pytest

from tests.cli.asking import serve
from vramcast.question.tables import GOALS


@pytest.mark.parametrize("goal", GOALS)
@pytest.mark.parametrize("language", ["en", "zh"])
def test_every_goal_is_answered_in_both_languages(goal: str, language: str) -> None:
    done = serve("llama-3.1-8b", "--gpus", "l40s", "--context", "8k", "--find", goal, "--lang", language)
    assert done.returncode == 0, done.stderr
    first, second = done.stdout.splitlines()[:2]
    assert "(" in first or "（" in first
    word, _, _ = second.replace("：", ": ").partition(": ")
    assert word in {"en": ("fits", "fits closely"), "zh": ("放得下", "放得下但很紧")}[language]


def test_json_says_what_was_found_and_what_was_tried() -> None:
    done = serve("llama-3.1-8b", "--context", "32k", "--concurrency", "4", "--find", "smallest-gpu", "--json")
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    found, tried = answer["found"], answer["tried"]
    assert found["goal"] == "smallest-gpu"
    assert found["what"] == f"--gpus 1x{found['value']}"
    assert found["nearest_failing"]["fits"] is False
    assert any(plan["what"] == found["what"] and plan["fits"] for plan in tried)
    assert all(plan["reason"] for plan in tried if not plan["fits"])
    assert answer["question"]["gpus"] == f"1x{found['value']}"


def test_explain_says_where_the_time_goes_and_what_rates_rest_on() -> None:
    done = serve("llama-3.1-8b", "--gpus", "2xl40s", "--context", "8k", "--explain", "--lang", "en")
    where = done.stdout.split("Where the time goes")[1].split("\n\n")[0]
    assert "decode: reading weights" in where
    assert "communication" in where
    assert "GB/s" in where


def test_a_log_and_a_search_are_two_questions(tmp_path: Path) -> None:
    log = tmp_path / "vllm.log"
    log.write_text("INFO vLLM API server version 0.19.0\n")
    done = serve("llama-3.1-8b", "--gpus", "l4", "--reconcile", str(log), "--find", "most-users")
    assert done.returncode == 2
    assert "give one of them" in done.stderr
