"""What a user of `vramcast instances`, `gpus` and `prices` meets, and prices in train and serve."""

import json
from pathlib import Path

import pytest

from tests.cli.asking import vramcast


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
