"""`vramcast rl`: its answer as text and as JSON, job files, exit codes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.asking import vramcast

ASKED = ("rl", "qwen2.5-1.5b", "--gpus", "8xh100-sxm-80gb", "--samples", "4", "--reference")


def test_json_has_the_card_its_processes_and_every_stage() -> None:
    done = vramcast(*ASKED, "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    card, *processes = found["ranks"]
    assert [rank["role"] for rank in (card, *processes)] == ["card", "trainer", "engine"]
    assert list(card["phases"]) == [
        "init", "engine_start", "update_weights", "generate", "old_log_prob", "ref_log_prob", "update_actor",
    ]
    assert sum(entry["bytes"] for entry in card["ledger"]) == card["peak"]["device_bytes"] == found["needed_bytes"]
    assert found["resting"]["trainer"].keys() == card["phases"].keys()
    assert sum(found["time"]["seconds"].values()) == pytest.approx(found["time"]["step_s"])
    assert found["host"]["parts"] and "shortfall" not in found


def test_a_plan_that_does_not_fit_exits_one_and_its_changes_can_be_put_into_the_question() -> None:
    asked = ("rl", "qwen2.5-7b", "--gpus", "4xa100-sxm4-80gb", "--micro-batch", "32", "--json")
    done = vramcast(*asked)
    assert done.returncode == 1, done.stderr
    found = json.loads(done.stdout)
    assert {change["fits"] for change in found["changes"]} == {False, True}
    for change in found["changes"]:
        more = [word for name, value in change["apply"].items()
                for word in ((f"--{name}",) if value is True else (f"--{name}", value))]
        assert json.loads(vramcast(*asked, *more).stdout)["needed_bytes"] == change["device_bytes"]


def test_an_engine_that_cannot_start_is_the_reason_given_first() -> None:
    done = vramcast("rl", "qwen2.5-7b", "--gpus", "8xa100-sxm4-80gb", "--algorithm", "ppo", "--memory-fraction", "0.95",
                    "--rollout", "vllm@0.12", "--lang", "en")
    assert done.returncode == 1
    assert done.stdout.startswith("does not fit: ") and "the engine finds" in done.stdout
    assert "-" not in done.stdout.splitlines()[0].partition("beyond")[2]


@pytest.mark.parametrize("options", [
    (), ("--peft", "lora", "--lora-rank", "32", "--no-sleep"), ("--rollout-gpus", "4", "--ahead", "--entropy"),
    ("--framework", "nemo-rl", "--tp", "2", "--memory-fraction", "0.6", "--engine-option", "kv_cache_memory_bytes=1GB"),
    ("--mean-response-len", "200", "--micro-tokens", "9k", "--alloc-conf", "expandable_segments:True"),
])
def test_a_question_that_was_saved_has_the_same_answer(options: tuple[str, ...], tmp_path: Path) -> None:
    path = tmp_path / "job.toml"
    saved = vramcast(*ASKED, *options, "--save", str(path), "--json")
    again = vramcast("rl", "--file", str(path), "--json")
    assert path.is_file() == (saved.returncode < 2) and saved.stdout == again.stdout


def test_the_text_shows_the_stages_in_both_languages() -> None:
    english, chinese = (vramcast(*ASKED, "--lang", language).stdout for language in ("en", "zh"))
    assert "reference log-probs" in english and "trainer" in english
    assert "参考模型对数概率" in chinese and "训练进程" in chinese
    assert [line.split()[-1] for line in english.splitlines() if line.endswith(" s")] == [
        line.split()[-1] for line in chinese.splitlines() if line.endswith(" s")]


def test_a_run_of_so_many_steps_has_a_length_and_a_price() -> None:
    found = json.loads(vramcast(*ASKED, "--steps", "500", "--price", "2.5usd", "--json").stdout)
    assert found["run_hours"] == pytest.approx(500 * found["time"]["step_s"] / 3600, rel=1e-3)
    assert found["price"]["per_run"] == pytest.approx(20 * found["run_hours"], rel=1e-3)
