"""`vramcast rl`: its answer as text and as JSON, job files, exit codes."""

import json
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from tests.cli.asking import vramcast
from vramcast import api
from vramcast.estimate.post_training import answer
from vramcast.search.post_training import placements

ASKED = ("rl", "qwen2.5-1.5b", "--gpus", "8xh100-sxm-80gb", "--samples", "4", "--reference")


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


@pytest.mark.parametrize(("model", "fixed"), [
    ("qwen2.5-1.5b", {"ulysses": 1, "memory-fraction": 0.4, "samples": 4, "reference": True, "mini-batch": 1024}),
    ("qwen2.5-7b", {"memory-fraction": 0.4, "samples": 4, "micro-batch": 16, "offload-parameters": "none"}),
    ("qwen2.5-7b", {"rollout-tp": 1, "samples": 8, "micro-batch": 4, "ahead": True, "rollout-gpus": 4,
                    "offload-parameters": "cpu", "recompute": "full", "ulysses": 1}),
])
def test_the_fastest_step_is_the_fastest_of_all_that_fit_and_its_options_ask_for_it(
    model: str, fixed: dict[str, Any],
) -> None:
    asked = {"model": model, "gpus": "8xh100-sxm-80gb", **fixed}
    job = api.post_training_job_of(asked)
    found = api.post_training_answer(asked | {"find": "fastest-step"})
    assert found.found is not None and found.found.what is not None and found.time is not None
    words = found.found.what.split()
    told = {name[2:]: value for name, value in zip(words[::2], words[1::2], strict=True)}
    again = api.post_training_answer(asked | told)
    assert (again.fullest.needed_bytes, again.time) == (found.fullest.needed_bytes, found.time)
    every = placements(job, fixed)
    assert len(every) == found.found.num_tried > 8
    for one in every:
        if one.step_s >= found.time.step_s - 1e-3:
            break
        rollout = replace(job.rollout, gpus=one.engine.gpus, tp=one.engine.tp, memory_fraction=one.engine.fraction)
        other = answer(replace(one.trainer.job, rollout=rollout), with_changes=False)
        assert not other.fits or other.high_bytes > other.capacity_bytes


def test_a_search_ahead_chooses_the_cards_of_the_engine_and_its_table_is_no_wider_than_a_terminal() -> None:
    asked = ("plan", "rl", "qwen2.5-1.5b", "--gpus", "4xh100-sxm-80gb", "--ahead", "--micro-batch", "4")
    done = vramcast(*asked, "--lang", "en")
    assert done.returncode == 0 and "--rollout-gpus" in done.stdout, done.stderr
    table = done.stdout.partition("Tried:")[2].partition("\n\n")[0].splitlines()[1:]
    assert table[0].startswith("  all with --") and max(map(len, table)) <= 100
    refused = vramcast("rl", "qwen2.5-1.5b", "--gpus", "4xh100-sxm-80gb", "--ahead")
    assert refused.returncode == 2 and "--ahead needs --rollout-gpus" in refused.stderr


def test_a_verdict_says_what_it_rests_on() -> None:
    trust = json.loads(vramcast(*ASKED, "--json").stdout)["trust"]
    assert trust["runs"] >= trust["own_engine"] > 0 and 0.99 < trust["chance_to_fit"] <= 1
    assert f"the {trust['runs']} measured trainings most like its update, {trust['own_engine']} with pytorch" in (
        vramcast(*ASKED, "--lang", "en").stdout)
