"""What a user of `vramcast serve --find` meets."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.asking import serve
from vramcast.question.serving_options import GOALS


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


def test_an_answer_without_a_search_has_neither() -> None:
    answer = json.loads(serve("llama-3.2-1b", "--gpus", "l40s", "--context", "4k", "--json").stdout)
    assert "found" not in answer
    assert "tried" not in answer


def test_nothing_that_fits_exits_one_and_names_the_nearest() -> None:
    done = serve("deepseek-v3", "--gpus", "l4", "--context", "4k", "--find", "best-split", "--lang", "en")
    assert done.returncode == 1
    assert done.stdout.startswith("none of 1 plans fits; the nearest is\ndoes not fit: ")


def test_an_unknown_goal_lists_the_known_ones() -> None:
    done = serve("llama-3.1-8b", "--gpus", "l4", "--find", "cheapest")
    assert done.returncode == 2
    assert "smallest-gpu" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_job_file_can_ask_an_inverse_question(tmp_path: Path) -> None:
    job = tmp_path / "job.toml"
    job.write_text('model = "llama-3.2-1b"\ngpus = "l4"\ncontext = 4096\nfind = "most-users"\n')
    answer = json.loads(serve("--file", str(job), "--json").stdout)
    assert answer["found"]["value"] == answer["question"]["requests"]["concurrency"]


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
