"""What a user of `vramcast serve` meets, and of searches for a deployment or for models that fit."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest
from click.testing import CliRunner

from tests.cli.asking import serve, vramcast
from vramcast.cli.main import group
from vramcast.question.tables import GOALS

# What a user of `vramcast serve` meets.


def test_a_model_larger_than_the_cards_does_not_fit() -> None:
    done = serve("llama-3.1-70b", "--gpus", "l40s", "--json")
    assert done.returncode == 1, done.stderr
    assert json.loads(done.stdout)["fits"] is False


@pytest.mark.parametrize("name", ["--model", "--model-path", "--model_name_or_path", "--model-id"])
def test_the_model_in_another_tools_option_is_the_model(name: str) -> None:
    """Before that of a command, and never passed over."""
    done = serve(name, "qwen3-8b", "--gpus", "l40s", "--json", "--", "vllm", "serve", "Qwen/Qwen3-32B")
    assert json.loads(done.stdout)["question"]["model"] == "qwen3-8b", done.stderr
    done = serve("qwen3-14b", name, "qwen3-8b", "--gpus", "l40s")
    assert done.returncode == 2 and "qwen3-14b" in done.stderr and "qwen3-8b" in done.stderr


@pytest.mark.parametrize(("arguments", "code", "words"), [
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
    (["qwen3-8b", "--gpus", "m4-max-64gb", "--weights", "awq-int4"], 2, "no format of GGUF files"),
    (["llama-3.1-8b", "--gpus", "l40s", "--kv-dtype", "fp9"], 4, "cache dtype"),
    (["llama-3.1-8b", "--gpus", "l40s", "--draft-tokens", "4"], 2, "--draft-tokens needs --draft"),
    (["llama-3.1-8b", "--gpus", "3xl40s", "--tp", "3"], 2, "tp=3"),
    (["llama-3.1-8b", "--gpus", "l40s", "--gpu-layers", "3"], 3, "gpu-layers=3 says nothing to vllm"),
    (["llama-3.1-8b", "--gpus", "l4", "--engine", "llama.cpp", "--memory-fraction", "0.9"], 3, "says nothing to"),
])
def test_a_question_that_cannot_be_answered_gets_one_sentence(arguments: list[str], code: int, words: str) -> None:
    done = serve(*arguments)
    assert (done.returncode, done.stdout) == (code, "")
    assert words in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1


def test_a_serving_process_imports_neither_torch_nor_numpy_nor_rich() -> None:
    code = (
        "import sys; from vramcast.cli.main import group; "
        "group.main(['serve','llama-3.1-8b','--gpus','h100'], standalone_mode=False); "
        "print([name for name in ('torch','numpy','rich','yaml') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=180, check=False)
    assert done.stdout.strip().endswith("[]"), done.stdout[-200:] + done.stderr


# What a user of `vramcast serve --find` meets.

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


# Deployments for a rate and a promise, from the command line.

def test_a_loose_promise_is_kept_by_replicas_whose_queue_does_not_grow() -> None:
    asked = ["plan", "serve", "llama-3.1-8b", "--on", "l40s", "--input-len", "512", "--output-len", "128",
             "--rate", "60", "--slo", "ttft<5s,tpot<100ms", "--num-requests", "300", "--json"]
    result = CliRunner().invoke(group, asked, prog_name="vramcast", catch_exceptions=False)
    assert result.exit_code == 0, result.output
    assert '"slo_share"' in json.dumps(json.loads(result.output))


# `models --fits`: my card, which models?

def test_models_are_listed_in_the_most_precise_form_that_fits() -> None:
    document = json.loads(vramcast("models", "qwen3", "--fits", "rtx-4090", "--json").stdout)
    forms = {row["model"]: row["form"] for row in document["models"]}
    assert forms["qwen3-4b"] == "as stored" and forms["qwen3-14b"] == "fp8" and forms["qwen3-32b"] == "int4"
    assert "qwen3-235b-a22b" not in forms
    sizes = [row["parameters"] for row in document["models"]]
    assert sizes == sorted(sizes, reverse=True)
    for row in document["models"][:3]:
        weights = {"as stored": [], "fp8": ["--weights", "fp8"], "int4": ["--weights", "awq-int4"]}[row["form"]]
        same = ("serve", row["model"], "--gpus", "rtx-4090", "--context", "8k", "--json", *weights)
        assert json.loads(vramcast(*same).stdout)["fits"]


def test_training_goes_down_to_adapters_over_four_bits() -> None:
    document = json.loads(vramcast("models", "qwen3", "--fits", "24gb", "--for", "train", "--json").stdout)
    forms = {row["model"]: row["form"] for row in document["models"]}
    assert forms["qwen3-0.6b"] == "all weights" and forms["qwen3-8b"] in ("LoRA", "QLoRA")
    assert "unknown NVIDIA card" in document["assumptions"][0]


def test_a_card_without_vllm_is_asked_for_llama_cpp() -> None:
    shown = vramcast("models", "qwen3-8b", "--fits", "m3-max-64gb")
    assert shown.returncode == 0 and "under llama.cpp" in shown.stdout


@pytest.mark.parametrize(("arguments", "code", "words"), [
    (["qwen3-235b-a22b", "--fits", "8gb"], 1, "0 of 1 models fit"),
    (["nosuch", "--fits", "8gb"], 4, "unknown model"),
    (["--fits", "4060 ti"], 2, "name one of them"), (["--fits", "4090", "--for", "fun"], 4, "unknown purpose"),
    (["--context", "8k"], 2, "give --fits"),
    (["llama-3.1-8b", "--fits", "tpu-v5e"], 3, "a TPU runs programs of XLA"),
])
def test_what_does_not_fit_or_is_not_asked_well_is_one_sentence(arguments: list[str], code: int, words: str) -> None:
    found = vramcast("models", *arguments)
    assert found.returncode == code and words in found.stdout + found.stderr


# `vramcast pack`: jobs as people have them, on cards that they may share.

SERVER = "vllm serve Qwen/Qwen3-0.6B --max-model-len 4096 --gpu-memory-utilization 0.3"
SFT = "\n".join((
    "base_model: Qwen/Qwen3-0.6B", "adapter: lora", "lora_r: 8", "lora_target_linear: true", "sequence_len: 1024",
    "micro_batch_size: 1",
))


def test_files_commands_and_lists_share_cards(tmp_path: Path) -> None:
    (tmp_path / "sft.yaml").write_text(SFT)
    (tmp_path / "job.toml").write_text('model = "gpt2"\nseq-len = 512\ngpus = "h100-sxm-80gb"\n')
    lines = ("# tonight", SERVER, "", '"vramcast train gpt2 --seq-len 512"', str(tmp_path / "sft.yaml"))
    (tmp_path / "jobs.txt").write_text("\n".join(lines))
    found = vramcast("pack", str(tmp_path / "jobs.txt"), str(tmp_path / "job.toml"), str(tmp_path / "sft.yaml"),
                     "--gpus", "3xa10", "--json")
    answer = json.loads(found.stdout)
    assert found.returncode == 0, found.stdout
    names = {job["name"]: job for card in answer["cards"] for job in card["jobs"]}
    assert {"job.toml", "sft.yaml", "sft.yaml (2)", "vramcast train gpt2 --seq-len 512"} <= names.keys()
    alone = json.loads(vramcast("train", "gpt2", "--seq-len", "512", "--gpus", "a10", "--json").stdout)
    assert names["job.toml"]["needed_bytes"] == alone["needed_bytes"]
    for card in answer["cards"]:
        assert card["claimed_bytes"] == sum(job["claimed_bytes"] for job in card["jobs"]) <= card["capacity_bytes"]
    assert [card["chance_to_run_out"] <= 0.01 for card in answer["cards"] if card["jobs"]] == [True] * answer["used"]
    assert f"{SERVER[:57]}..." in answer["warnings"][0]


WITHOUT: Final = {
    "python nothere.py --lr 1": "nothere.py is not here",
    "nothere.yaml": "no such file; a command stands in quotes",
    "echo hello": "nothing is known of what it does",
    "vramcast train gpt2 --seq-lenn 5": "No such option",
    "vramcast train llama-3-70b --gpus 2x8xh100-sxm-80gb": "it takes 2 machines",
    "vramcast train llama-3-70b": "can be used",
    "vllm serve 'Qwen": "a quotation mark is not closed",
}
"""Job -> why it has no card."""


def test_a_job_without_an_answer_says_why_and_stops_nothing() -> None:
    found = vramcast("pack", *WITHOUT, "vramcast train gpt2 --seq-len 512", "--gpus", "a10", "--used", "2GiB")
    assert found.returncode == 1
    assert f"1 of {1 + len(WITHOUT)} jobs on 1 of 1 GPUs" in found.stdout
    for job, why in WITHOUT.items():
        line = next(line for line in found.stdout.splitlines() if line.startswith(f"  - {job}: "))
        assert why in line


def test_what_others_hold_leaves_less() -> None:
    assert vramcast("pack", "vramcast train gpt2", "--gpus", "a10", "--used", "20GiB").returncode == 1


# What a user of `vramcast instances`, `gpus` and `prices` meets, and prices in train and serve.

def test_a_saved_job_keeps_how_it_is_priced(tmp_path: Path) -> None:
    path = tmp_path / "job.toml"
    first = vramcast("train", "llama-3.2-1b", "--gpus", "8xh20", "--price", "9.5cny", "--save", str(path), "--json")
    again = vramcast("train", "--file", str(path), "--json")
    assert json.loads(first.stdout)["price"] == json.loads(again.stdout)["price"]
    assert json.loads(again.stdout)["price"]["per_hour"] == 76.0


@pytest.mark.parametrize(("arguments", "code", "words"), [
    (["serve", "llama-3.1-8b", "--gpus", "aws:p5.48xlarg"], 4, "did you mean aws:p5.48xlarge"),
    (["serve", "llama-3.1-8b", "--gpus", "aws:p5.48xlarge", "--spot"], 2, "no price of aws:p5.48xlarge"),
    (["serve", "llama-3.1-8b", "--gpus", "h100", "--price", "cheap"], 2, "must read like 2.5usd"),
    (["serve", "llama-3.1-8b", "--gpus", "h100", "--hardware", "none.toml"], 5, "none.toml"),
    (["train", "llama-3.1-8b", "--gpus", "h100", "--tokens", "many"], 2, "tokens='many'"),
    (["instances", "--provider", "amazon"], 4, "unknown provider"),
    (["instances", "--max-price", "40"], 2, "must name its currency"),
    (["instances", "no-such-machine"], 4, "unknown instance"),
    (["gpus", "--vendor", "nvida"], 4, "did you mean nvidia"),
    (["prices", "no-such-machine"], 4, "unknown price of"),
    (["prices", "update", "--provider", "amazon"], 4, "unknown provider"),
    (["prices", "update", "--mirror", "aws"], 2, "PROVIDER=ADDRESS"),
    (["prices", "update", "--provider", "pai"], 5, ""),
])
def test_mistakes_are_one_sentence_and_their_exit_code(arguments: list[str], code: int, words: str) -> None:
    done = vramcast(*arguments)
    assert done.returncode == code
    assert words in done.stderr and "Traceback" not in done.stderr
    assert len(done.stderr.splitlines()) <= 1


def test_machines_are_filtered_sorted_and_compared() -> None:
    found = json.loads(vramcast("instances", "h100", "--sort", "price-per-gpu", "--json").stdout)["instances"]
    rates = [one["price"]["per_hour"] / one["gpus"] for one in found if "price" in one]
    assert rates == sorted(rates) and len(rates) > 5
    cheap = json.loads(vramcast("instances", "--max-price", "1usd", "--json").stdout)["instances"]
    assert cheap and all(one["price"]["currency"] == "USD" and one["price"]["per_hour"] <= 1 for one in cheap)
    large = json.loads(vramcast("instances", "--min-memory", "700", "--provider", "alibaba", "--json").stdout)
    assert all(one["visible_bytes"] * one["gpus"] >= 700 * 10**9 for one in large["instances"])
    side = vramcast("instances", "aws:p5.48xlarge", "ecs.gn8v-8x.48xlarge", "--lang", "en").stdout
    assert side.splitlines()[0].split() == ["instance", "aws:p5.48xlarge", "alibaba:ecs.gn8v-8x.48xlarge"]
    assert "not public" in side and "3200 Gbit/s EFA" in side


@pytest.mark.parametrize(("option", "words"), [(["--currency", "eur"], "no EUR price"), (["--spot"], "no spot price")])
def test_a_machine_that_has_only_other_prices_is_not_said_to_have_none(option: list[str], words: str) -> None:
    rows = vramcast("instances", "aws:p5", *option, "--lang", "en").stdout.splitlines()
    assert words in next(row for row in rows if row.startswith("aws:p5.48xlarge"))
    assert "not public" in next(row for row in rows if row.startswith("aws:p5e.48xlarge"))


def test_cards_are_filtered_sorted_and_compared() -> None:
    cards = json.loads(vramcast("gpus", "--vendor", "amd", "--min-memory", "200", "--sort", "memory", "--json").stdout)
    sizes = [card["visible_bytes"] for card in cards["gpus"]]
    assert sizes == sorted(sizes, reverse=True) and min(sizes) >= 200 * 10**9
    side = vramcast("gpus", "h20", "h100", "--lang", "en").stdout
    assert side.splitlines()[0].split() == ["GPU", "h20-96gb", "h100-sxm-80gb"]
    assert "dense bf16" in side and "on the box" in side and "usable" in side


def test_prices_show_their_age_and_what_is_old() -> None:
    done = vramcast("prices", "gn7e-c16g1.32xlarge", "--region", "cn-beijing", "--lang", "en")
    assert "277.93 CNY" in done.stdout and "2024-10-10" in done.stdout
    assert "more than a year old; vramcast prices update" in done.stdout
    plain = json.loads(vramcast("prices", "p5.48xlarge", "--json").stdout)["prices"]
    assert plain[0]["age_days"] > 0 and plain[0]["instance"] == "aws:p5.48xlarge"
    assert vramcast("prices", "p5.48xlarge", "--older-than", "100000").stdout == ""
