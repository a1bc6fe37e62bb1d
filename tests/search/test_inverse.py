"""Inverse training questions: what is found fits, the next larger one does not."""

from itertools import islice
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import vramcast
from tests.search._options import job, read
from vramcast.blocks.parameters.model import count_parameters
from vramcast.catalogue.models import load_model
from vramcast.domain.answer import Answer, Found
from vramcast.domain.verdict import Fit
from vramcast.errors import InvalidSpec, UnknownName
from vramcast.estimate.training import may_run_out, need_of, needed_bytes, rank_programs
from vramcast.question.tables import FINDS
from vramcast.search.inverse import GOALS, WORTH_IT, Question, find
from vramcast.search.largest_model import scaled_model


def ask(goal: str, model: str | None = "llama-3.2-1b", **options: Any) -> Answer:
    return vramcast.plan("train", model, find=goal, **({"on": "a100-sxm4-40gb", "seq_len": 1024} | options))


def found(answer: Answer) -> Found:
    assert answer.found is not None
    return answer.found


def test_the_options_offer_exactly_what_the_search_can_do() -> None:
    assert set(FINDS) == set(GOALS)


@pytest.mark.parametrize("options", [
    {"gpus": "a100-sxm4-40gb"}, {"gpus": "a100-sxm4-40gb", "recompute": "full"}, {"zero": 2, "engine": "deepspeed"},
    {"engine": "huggingface", "peft": "lora", "gpus": "l4"}, {"engine": "megatron", "pp": 2, "tp": 2},
])
def test_what_live_tensors_alone_refuse_has_an_interval_beyond_the_card(options: dict[str, Any]) -> None:
    jobs = (job(micro_batch=batch, seq_len=512, **options) for batch in range(1, 1000, 2))
    refused = list(islice((asked for asked in jobs if may_run_out(asked, rank_programs(asked))), 3))
    assert len(refused) == 3
    for asked in refused:  # the first ones, which miss by least
        assert need_of(asked, rank_programs(asked)).high_bytes > asked.cluster.gpu.visible_bytes


def test_a_longer_sequence_than_the_longest_does_not_fit() -> None:
    answer = ask("longest-sequence", seq_len=None, recompute="full")
    longest = int(str(found(answer).value))
    assert longest % 128 == 0
    (longer,) = (tried for tried in found(answer).tried if tried.what == f"--seq-len {longest + 128}")
    assert longer.reason and longer.verdict in (Fit.MAY_RUN_OUT, Fit.NOT)
    assert not any("4096" in text for text in answer.assumptions)  # the length is found, not assumed


def test_doubling_the_batch_at_the_knee_gains_less_than_five_per_cent() -> None:
    answer = ask("knee", on="h100-sxm-80gb", recompute="full")
    rates = {tried.what: tried for tried in found(answer).tried}
    knee = int(str(found(answer).value))
    after = rates[f"--micro-batch {2 * knee}"]
    before = rates[f"--micro-batch {knee}"]
    assert before.tokens_per_s is not None
    assert not after.fits or (after.tokens_per_s or 0) < (1 + WORTH_IT) * before.tokens_per_s


def test_the_largest_model_grows_with_what_is_spent_on_it() -> None:
    small = tuple(load_model(name) for name in ("llama-3.2-1b", "llama-3.2-3b", "llama-3.1-8b", "llama-2-13b"))
    asked = job("llama-2-7b", "8xa100-sxm4-40gb", engine="pytorch", seq_len=1024)
    answer = find("largest-model", Question(asked, (asked.cluster,), models=lambda: small))
    sizes = {tried.what.partition(":")[0]: tried.parameters or 0 for tried in found(answer).tried}
    assert sizes["copies"] < sizes["ZeRO 1"] < sizes["ZeRO 2"] < sizes["ZeRO 3"]
    assert sizes["ZeRO 3"] < sizes["ZeRO 3, full recomputation"]
    assert found(answer).value == answer.question["model"]
    allowed = [tried for tried in found(answer).tried if tried.fits and "--allow" not in tried.reason]
    assert {tried.what.partition(",")[0] for tried in found(answer).tried if tried not in allowed} >= {"LoRA", "QLoRA"}
    assert any((tried.model or "").startswith(str(found(answer).value)) for tried in allowed)


def test_what_must_be_allowed_is_shown_and_only_then_chosen() -> None:
    models = tuple(load_model(name) for name in ("llama-3.2-1b", "llama-3.1-8b"))
    asked = job("llama-2-7b", "a100-sxm4-40gb", seq_len=1024)
    engines = ("pytorch", "huggingface")
    plain = Question(asked, (asked.cluster,), models=lambda: models, engines=engines)
    assert found(find("largest-model", plain)).value == "llama-3.2-1b"
    assert found(find("largest-model", plain._replace(allowed=frozenset({"peft"})))).value == "llama-3.1-8b"


def test_no_machine_is_passed_over_on_which_a_search_finds_a_plan() -> None:
    machines = ["8xh200-sxm-141gb", "8xb200-180gb"]
    answer = ask("smallest-box", "llama-3.1-70b", on=machines, headroom="0%")
    assert found(answer).value == machines[0]
    assert "--tp" in str(found(answer).what)
    safe = ask("smallest-box", "llama-3.1-70b", on=machines)
    (passed_over, *_) = found(safe).tried
    assert passed_over.what.startswith(f"--gpus {machines[0]} ")
    assert found(safe).value == machines[1]
    assert passed_over.verdict in (Fit.MAY_RUN_OUT, Fit.NOT)


def test_the_smallest_machine_is_the_first_that_is_enough() -> None:
    answer = ask("smallest-box", "llama-3.1-8b", on=["a100-sxm4-40gb", "t4"], max_gpus=8)
    chosen = found(answer)
    assert answer.fits
    memory = {tried.what: (tried.capacity_bytes or 0) for tried in chosen.tried}
    first = [tried.what for tried in chosen.tried].index(str(chosen.what))
    assert all(tried.verdict in (Fit.MAY_RUN_OUT, Fit.NOT) for tried in chosen.tried[:first])
    again = job("llama-3.1-8b", **{"seq-len": 1024, "engine": "pytorch"} | read(str(chosen.what)))
    assert needed_bytes(again) <= memory[str(chosen.what)]


def test_the_cheapest_machine_is_in_one_currency() -> None:
    answer = ask("cheapest-box", "llama-3.1-8b", on=["aws:g6e.12xlarge", "aws:p5.48xlarge"])
    assert found(answer).value == "aws:g6e.12xlarge"
    assert answer.cost is not None
    with pytest.raises(InvalidSpec, match="price"):
        ask("cheapest-box", "llama-3.1-8b", on=["8xh100-sxm-80gb"])


@pytest.mark.parametrize(("goal", "options", "words"), [
    ("largest-batch", {"micro_batch": "4"}, "varies --micro-batch"),
    ("longest-sequence", {"seq_len": 4096}, "varies --seq-len"),
    ("largest-batch", {"on": ["t4", "h100-sxm-80gb"]}, "one cluster"),
    ("largest-batch", {"engine": "pytorch,huggingface"}, "one value of --engine"),
    ("largest-model", {}, "leave out 'llama-3.2-1b'"),
    ("smallest-box", {"tp": "2"}, "varies --tp"),
    ("largest-batch", {"budget": "5usd"}, "says nothing"),
    ("smallest-box", {"on": "h100-sxm-80gb", "max_gpus": 0}, "whole number"),
])
def test_a_contradictory_question_is_refused_by_name(goal: str, options: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidSpec, match=words):
        ask(goal, **{"on": "8xt4"} | options)


def test_an_unknown_goal_or_kind_lists_nothing_it_cannot_do() -> None:
    with pytest.raises(UnknownName, match="goal"):
        find("largest-hat", Question(job(), ()))
    with pytest.raises(UnknownName, match="train"):
        vramcast.plan("trian", "llama-3.2-1b", on="t4")


@given(parameters=st.integers(2 * 10**8, 10**12))
@settings(max_examples=30, deadline=None)
def test_the_family_has_a_model_of_every_size(parameters: int) -> None:
    built = count_parameters(scaled_model(parameters)).total
    assert 0.97 * parameters < built <= parameters
    assert count_parameters(scaled_model(2 * parameters)).total > built


def test_plans_that_do_not_fit_are_shown_with_what_they_need() -> None:
    options = {"on": "8xh100-sxm-80gb", "recompute": "full", "headroom": "0%"}
    found_ = vramcast.plan("train", "llama-3.1-8b", find="longest-sequence", **options).found
    assert found_ is not None and found_.nearest_failing is not None
    failing = [one for one in found_.tried if not one.fits]
    assert len(failing) > 1
    for one in failing:
        length = int(one.what.split()[-1])
        whole = vramcast.train("llama-3.1-8b", gpus="8xh100-sxm-80gb", recompute="full", seq_len=length)
        assert one.needed_bytes == whole.fullest.needed_bytes
        assert "at least" not in one.reason
    assert found_.nearest_failing == min(failing, key=lambda one: one.needed_bytes or 0)


@pytest.mark.parametrize("goal", ["largest-batch", "longest-sequence", "fewest-gpus", "smallest-box"])
@pytest.mark.parametrize("model", ["llama-3.2-1b", "llama-3.1-8b"])
def test_every_plan_shown_needs_what_it_needs_when_asked_for(goal: str, model: str) -> None:
    on = {"smallest-box": "a100-sxm4-40gb,l40s", "fewest-gpus": "a10"}.get(goal, "a100-sxm4-40gb")
    answer = ask(goal, model, on=on, seq_len=None if goal == "longest-sequence" else 1024)
    asked = {} if goal == "longest-sequence" else {"seq_len": 1024}
    shown = [tried for tried in found(answer).tried if tried.needed_bytes]
    assert shown
    for tried in shown:
        options = {"model": model, "gpus": "a100-sxm4-40gb", "shards": "nothing"} | asked | read(tried.what)
        assert needed_bytes(job(**options)) == tried.needed_bytes, tried.what
    failing = [tried for tried in shown if not tried.fits]
    nearest = found(answer).nearest_failing
    if nearest is not None and failing:
        assert nearest.needed_bytes / nearest.capacity_bytes <= min(
            tried.needed_bytes / tried.capacity_bytes for tried in failing
        )
