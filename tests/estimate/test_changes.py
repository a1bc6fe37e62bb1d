"""What would make a plan fit, least first, with what each costs."""

from __future__ import annotations

import pytest

import vramcast
from tools.fuzz.ask import Examination
from tools.fuzz.draw import Question
from vramcast.estimate import training
from vramcast.estimate.proposals import BUGS
from vramcast.estimate.techniques import TECHNIQUES
from vramcast.report.chinese import terms
from vramcast.report.messages import Words
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
    asked = ASKED | {"engine": "huggingface", "objective": "dpo", "gpus": "a100-sxm4-40gb", "recompute": "none"}
    answer = vramcast.train("qwen3-8b", **asked)
    assert answer.time is None
    change = next(change for change in answer.changes if change.change == "--recompute full")
    assert change.slowdown is None
    assert "about a third" in cost_words(change, Words("en"))


def test_every_cost_has_its_chinese_words() -> None:
    for technique in TECHNIQUES:
        if technique.offered:
            assert technique.cost in terms("cost")
            assert not technique.usually or f"{technique.cost}: {technique.usually}" in terms("cost")


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


ASKED_AGAIN: dict[str, dict[str, object]] = {
    "live tensors alone are too much": {"model": "llama-3.1-70b", "gpus": "8xa100-sxm4-40gb", "engine": "torchtitan"},
    "no card is enough": {"model": "llama-3.1-70b", "gpus": "rtx-4090", "engine": "pytorch", "seq-len": 8192},
    "zero, not shards": {"model": "opt-30b", "gpus": "4xh20-96gb", "engine": "pytorch", "zero": "0", "grad-accum": 7},
    "a global batch": {"model": "codellama-70b", "gpus": "4xh20-96gb", "engine": "megatron", "global-batch": 64,
                       "micro-batch": 2},
    "nobody left to share with": {"model": "granite-3.0-2b", "gpus": "2xrtx-4060-ti-16gb", "engine": "megatron"},
    "a recipe of its own": {"model": "mistral-nemo-12b", "gpus": "4xrtx-4090", "engine": "pytorch",
                            "precision": "amp-fp16"},
    "full precision": {"model": "mistral-nemo-12b", "gpus": "4xrtx-4090", "engine": "pytorch", "precision": "fp32"},
    "options of its engine": {"model": "mistral-nemo-12b", "gpus": "4xrtx-4090", "engine": "huggingface@4.57",
                              "engine-option": ["reentrant=true"]},
    "odd positions": {"model": "llama-3.1-8b", "gpus": "8xh100-sxm-80gb", "seq-len": 4475, "micro-batch": 3},
    "too little main memory": {"model": "llama-3.1-70b", "gpus": "aws:g5.48xlarge", "engine": "deepspeed", "zero": "3",
                               "offload-optimizer": "cpu", "global-batch": 64},
}


@pytest.mark.parametrize("asked", ASKED_AGAIN.values(), ids=ASKED_AGAIN)
def test_every_number_of_a_change_is_what_asking_for_it_gives(asked: dict[str, object]) -> None:
    found = Examination(Question("train", asked))
    assert found.num_answers > 1
    assert not found.faults


def test_a_change_says_what_it_needs_and_that_is_less_where_nothing_fits() -> None:
    answer = vramcast.train("llama-3.1-70b", gpus="8xa100-sxm4-40gb", engine="torchtitan")
    failing = [change for change in answer.changes if not change.fits]
    assert failing
    assert all(change.device_bytes < answer.fullest.needed_bytes for change in failing)


def test_a_change_that_shows_a_bug_costs_only_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = {"model": "llama-3.1-8b", "gpus": "8xa100-sxm4-40gb", "engine": "torchtitan", "micro_batch": 8}
    whole = [change.change for change in vramcast.train(**asked).changes]
    ranks = training.rank_programs

    def broken(job: object, **choice: object) -> object:
        if job.plan.recompute == "full":  # type: ignore[attr-defined]
            raise KeyError("grad.channel_residual")
        return ranks(job, **choice)  # type: ignore[arg-type]

    monkeypatch.setattr(training, "rank_programs", broken)
    with pytest.raises(KeyError):  # where bugs are looked for
        vramcast.train(**asked)
    monkeypatch.setattr(BUGS, "are_raised", False)
    left = [change.change for change in vramcast.train(**asked).changes]
    assert left == [change for change in whole if change != "--recompute full"] != whole


def test_where_no_change_alone_is_enough_several_together_are() -> None:
    asked = {"model": "llama-3.2-1b", "gpus": "rtx-4090", "micro_batch": 4}
    answer = vramcast.train(**asked)
    together, *alone = answer.changes
    assert together.verdict(answer.capacity_bytes) == "fits" and not any(change.fits for change in alone)
    words = [word.replace("-", "_") for word in together.change.replace("--", "").split()]
    options = dict(zip(words[::2], words[1::2], strict=True))
    after = vramcast.train(**asked | options)
    assert after.fits and after.fullest.needed_bytes == together.device_bytes
    for left_out in options:  # none of them is too much
        fewer = {name: value for name, value in options.items() if name != left_out}
        assert vramcast.train(**asked | fewer).interval_bytes[1] > answer.capacity_bytes
    assert "--peft" not in together.change  # what costs quality comes last


def test_adapters_that_do_not_fit_are_offered_frozen_weights_in_four_bits() -> None:
    answer = vramcast.train("llama-3.1-8b", gpus="rtx-3060-12gb", engine="huggingface", peft="lora", seq_len=1024,
                            recompute="full", loss="fused_linear")
    assert not answer.fits
    change = next(change for change in answer.changes if "nf4-dq" in change.change)
    assert change.fits
