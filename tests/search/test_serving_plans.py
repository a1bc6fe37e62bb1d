"""Deployments: the winner is beaten by none, limits hold, and what is impossible is said."""

from typing import Any

import pytest

import vramcast
from vramcast.api import planned_serving
from vramcast.domain.answer import ServeAnswer
from vramcast.domain.planning import Goal, PlanAnswer
from vramcast.errors import InvalidSpec, UnknownName


def ask(**options: Any) -> PlanAnswer:
    given = {
        "model": "llama-3.1-8b", "on": "4xl40s", "concurrency": 48, "input-len": 2000, "output-len": 200,
        "price": "1usd", **options,
    }
    return planned_serving(given)[0]


def rate(plan: ServeAnswer) -> float:
    assert plan.speed is not None and plan.speed.tokens_per_s_per_user is not None
    return plan.speed.tokens_per_s_per_user


def served(plans: Any) -> list[ServeAnswer]:
    return [plan for plan in plans if isinstance(plan, ServeAnswer)]


@pytest.mark.parametrize("goal", list(Goal))
def test_every_plan_in_the_table_fits_and_keeps_its_limits(goal: Goal) -> None:
    found = ask(goal=goal.value, **{"per-user": "25", "ttft": "1s"})
    assert found.plans
    for plan in served(found.plans):
        assert plan.fits
        assert rate(plan) >= 25
        assert plan.speed is not None and plan.speed.time_to_first_token_s <= 1
        assert plan.fleet is not None and plan.fleet.users == 48
        assert plan.fleet.tokens_per_s == pytest.approx(rate(plan) * 48)


def test_a_card_without_bf16_has_plans_of_an_engine_that_takes_no_dtype() -> None:
    asked = {"on": "m4-max-64gb", "model": "qwen3-0.6b", "context": 4096, "concurrency": 1}
    assert ask(**asked, engine="llama.cpp").plans
    with pytest.raises(InvalidSpec, match=r"vllm does not run on m4-max-64gb; use --engine llama\.cpp"):
        ask(**asked)


def test_pruned_deployments_do_not_fit() -> None:
    space = ask(on="8xt4", model="llama-3.1-70b", weights="stored", concurrency=1, context=4096)
    assert not space.plans or all(plan.fits for plan in space.plans)
    _, alone = planned_serving({
        "model": "llama-3.1-70b", "on": "1xt4", "weights": "stored", "concurrency": 1, "context": 2048,
    })
    assert alone is not None and alone.cluster.num_nodes * 15 > 141  # GB of weights over cards of 15 GB
    with pytest.raises(InvalidSpec, match="at least"):
        ask(on="1xt4", model="deepseek-v3", weights="stored")


def test_tighter_limits_never_make_it_cheaper() -> None:
    costs = []
    for per_user in ("5", "20", "40"):
        best = served(ask(**{"per-user": per_user}).plans)[0]
        assert best.cost is not None and best.cost.per_million_tokens is not None
        costs.append(best.cost.per_million_tokens)
    assert costs == sorted(costs)


def rerun(label: str, model: str, **load: Any) -> ServeAnswer:
    """What `serve` answers to the options of a label."""
    words = label.split()
    options: dict[str, Any] = {}
    for name, *value in (part.split(" ") for part in " ".join(words)[2:].split(" --")):
        key = name.removeprefix("no-").replace("-", "_")
        options[key] = value[0] if value else not name.startswith("no-")
    return vramcast.serve(model, **load, **options)


LENGTHS = {"input_len": 500, "output_len": 100}


@pytest.mark.parametrize(("model", "options"), [
    ("llama-3.1-8b", {"on": "2xl40s,4xt4", "engine": "vllm,vllm@0.33,sglang"}),
    ("llama-3.1-8b", {"on": "2xh100-sxm-80gb", "engine": "tensorrt-llm", "kv-dtype": "auto,fp8"}),
    ("llama-3.2-3b", {"on": "2xl40s", "engine": "llama.cpp,ik_llama.cpp", "weights": "stored,q4_k_m"}),
    ("qwen2.5-7b", {"on": "2xa100-sxm4-80gb", "engine": "transformers", "weights": "stored"}),
    ("llama-3.1-8b", {"on": "1xl40s", "graphs": False, "memory-fraction": "0.8", "max-sequences": "64"}),
    ("llama-3.1-70b", {"on": "1xh100-sxm-80gb", "pp": "4"}),
    ("llama-3.1-8b", {"on": "azure:Standard_NC96ads_A100_v4,alibaba:ecs.gn7s-c32g1.16xlarge"}),
])
def test_the_options_of_every_plan_rerun_in_serve_to_the_same_memory_and_speed(
    model: str, options: dict[str, Any]
) -> None:
    found, _ = planned_serving(
        {"model": model, "concurrency": 12, "input-len": 500, "output-len": 100, "goal": "fastest", **options}
    )
    assert found.plans
    for label, plan in zip(found.labels, served(found.plans), strict=True):
        again = rerun(label, model, **LENGTHS)
        assert again.fits, label
        assert again.peak == plan.peak, label
        assert again.capacity == plan.capacity, label
        assert again.load == plan.load, label
        assert again.speed == plan.speed, label


def test_shares_of_a_card_are_named_by_their_machine() -> None:
    found = ask(on="aws:g6f.4xlarge", **{"per-user": "900"})
    assert found.nearest_label.startswith("--gpus 3xaws:g6f.4xlarge ")
    assert rerun(found.nearest_label, "llama-3.1-8b", input_len=2000, output_len=200).fits
    assert any("want of a speed" in text for text in ask(on="aws:g6f.4xlarge").warnings)


@pytest.mark.parametrize("limits", [
    {"per-user": "100000"}, {"ttft": "1ms"}, {"per-user": "100000", "ttft": "1ms"},
    {"per-user": "100000", "max-gpus": 4}, {"ttft": "1ms", "max-gpus": 2}, {"per-user": "90", "max-gpus": 1},
    {"max-gpus": 1, "concurrency": 4096},
])
def test_limits_that_nothing_keeps_name_those_that_something_keeps(limits: dict[str, Any]) -> None:
    question = {"on": "1xl40s,2xl40s,aws:g6f.4xlarge,1xh100-sxm-80gb", **limits}
    found = ask(**question)
    assert not found.plans
    assert isinstance(found.nearest_failing, ServeAnswer) and found.nearest_failing.fits
    assert found.change is not None and found.reasons
    words = found.change.change.split()
    kept = {name.removeprefix("--"): value for name, value in zip(words[::2], words[1::2], strict=True)}
    assert set(kept) <= set(limits)
    assert ask(**(question | kept)).plans, found.change


def test_the_nearest_keeps_to_the_number_of_gpus() -> None:
    found = ask(on="aws:g6.xlarge,aws:g6e.xlarge,aws:g6f.4xlarge", **{"per-user": "900", "max-gpus": 1})
    assert found.nearest_failing is not None and sum(rank.count for rank in found.nearest_failing.ranks) == 1
    assert found.reasons[0].kind == "per-user"


def test_a_limit_on_gpus_that_is_too_low_names_the_number_that_is_not() -> None:
    found = ask(on="1xl40s", **{"max-gpus": 1, "per-user": "25"})
    assert (found.reasons[0].kind, found.reasons[0].limit) == ("load-gpus", 1)
    assert found.change is not None and found.change.change == "--max-gpus 2"


def test_least_memory_is_least_of_what_the_load_needs_over_all_cards() -> None:
    found = ask(on="1xl40s,1xh100-sxm-80gb,8xh100-sxm-80gb,8xb300-270gb", goal="least-memory", top=50)
    needs = []
    for plan in served(found.plans):
        assert plan.load is not None and plan.fleet is not None
        needs.append((plan.fleet.replicas * plan.load.total_bytes, plan.load.per_gpu_bytes))
        assert plan.load.per_gpu_bytes <= plan.fullest.needed_bytes
    assert needs == sorted(needs)
    best = served(found.plans)[0]
    assert best.fleet is not None and best.fleet.replicas == 1  # a second copy of the weights is not needed
    assert sum(rank.count for rank in best.ranks) == 1


@pytest.mark.parametrize(("options", "error", "words"), [
    ({"engine": "llama.cpp", "weights": "fp8"}, InvalidSpec, "llama.cpp has no fp8"),
    ({"weights": "fp9"}, UnknownName, "fp9"),
    ({"ttft": "soon"}, InvalidSpec, "500ms"),
    ({"per-user": "0"}, InvalidSpec, "more than 0"),
    ({"on": None}, InvalidSpec, "on what"),
    ({"max-gpus": 1}, InvalidSpec, "max-gpus"),
    ({"engine": "nothing"}, UnknownName, "nothing"),
    ({"context": 1000}, InvalidSpec, "longer than context=1000"),
    ({"input-len": 200_000}, InvalidSpec, "131072 that llama-3.1-8b was trained with"),
])
def test_bad_questions_get_one_sentence(options: dict[str, Any], error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        ask(**options)
