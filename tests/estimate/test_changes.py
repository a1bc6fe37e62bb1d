"""What would make a plan fit, least first, with what each costs."""

from __future__ import annotations

import pytest

import vramcast
from vramcast.estimate.techniques import TECHNIQUES
from vramcast.report.messages import Words
from vramcast.report.plan_messages import COSTS_ZH
from vramcast.report.text import cost_words

ASKED = {"gpus": "8xa100-sxm4-40gb", "engine": "torchtitan", "seq_len": 4096, "grad_accum": 4}


def test_selective_recomputation_is_offered_before_full_where_the_engine_has_it() -> None:
    fitting = [change.change for change in vramcast.train("qwen3-8b", **ASKED).changes if change.fits]
    assert fitting.index("--recompute selective") < fitting.index("--recompute full")
    plain = vramcast.train("llama-3.2-1b", gpus="t4", seq_len=2048, micro_batch=4)
    assert "--recompute full" in [change.change for change in plain.changes]
    assert "--recompute selective" not in [change.change for change in plain.changes]


@pytest.mark.parametrize("recompute", ["selective", "full"])
def test_the_time_a_change_costs_is_that_of_the_plan_it_leads_to(recompute: str) -> None:
    before = vramcast.train("qwen3-8b", **ASKED)
    after = vramcast.train("qwen3-8b", recompute=recompute, **ASKED)
    change = next(change for change in before.changes if change.change == f"--recompute {recompute}")
    assert before.time is not None and after.time is not None and change.slowdown is not None
    assert change.slowdown == pytest.approx(after.time.step_s / before.time.step_s - 1)
    assert f"{change.slowdown:.0%} more time" in cost_words(change, Words("en"))


def test_where_no_step_time_is_known_a_change_says_what_it_usually_costs() -> None:
    asked = ASKED | {"engine": "huggingface", "objective": "dpo", "gpus": "a100-sxm4-40gb"}
    answer = vramcast.train("qwen3-8b", **asked)
    assert answer.time is None
    change = next(change for change in answer.changes if change.change == "--recompute full")
    assert change.slowdown is None
    assert "about a third" in cost_words(change, Words("en"))


def test_every_cost_has_its_chinese_words() -> None:
    for technique in TECHNIQUES:
        if technique.offered:
            assert technique.cost in COSTS_ZH
            assert not technique.usually or f"{technique.cost}: {technique.usually}" in COSTS_ZH


@pytest.mark.parametrize(
    "asked",
    [
        {
            "model": "llama-3.1-8b", "gpus": "4xa100-sxm4-80gb", "engine": "megatron", "pp": 4, "grad_accum": 4,
            "recompute": "full", "recompute_layers": 1, "seq_len": 4096, "micro_batch": 4,
        },
    ],
    ids=["of some layers"],
)
def test_recomputing_all_layers_is_written_so_that_it_is_what_was_promised(asked: dict[str, object]) -> None:
    before = vramcast.train(**asked)
    assert not before.fits
    change = next(change for change in before.changes if "--recompute-layers" in change.change)
    words = [word.replace("-", "_") for word in change.change.replace("--", "").split()]
    after = vramcast.train(**asked | dict(zip(words[::2], words[1::2], strict=True)))
    assert (after.fits, after.fits and after.fullest.needed_bytes) == (change.fits, change.fits and change.device_bytes)
    assert change.fits
