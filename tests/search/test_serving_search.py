"""Searches for deployments: plans, rates, order."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import vramcast
from tests.search._options import read
from vramcast.api import planned_serving
from vramcast.catalogue.gpus import gpu_names, load_gpu
from vramcast.domain.answer import SLO_SHARE, Found, ServeAnswer, Served
from vramcast.domain.planning import Goal, PlanAnswer
from vramcast.engines.serving.checks import runs_on
from vramcast.errors import InvalidSpec, UnknownName
from vramcast.question.options import options_in
from vramcast.question.tables import GOALS as NAMES
from vramcast.question.tables import SERVE_OPTIONS
from vramcast.search.serving import GOALS

# Inverse questions: the plan found fits, the next smaller one does not, and impossible things are said to be so.

FEW = settings(max_examples=5, deadline=None)


def found(answer: ServeAnswer) -> Found:
    assert answer.found is not None
    return answer.found


def ask(goal: str, model: str = "llama-3.1-8b", **options: Any) -> ServeAnswer:
    return vramcast.serve(model, find=goal, **({"gpus": "l40s", "context": 16384} | options))


def test_the_options_offer_exactly_what_the_search_can_do() -> None:
    assert set(NAMES) == set(GOALS)


@pytest.mark.parametrize("goal", NAMES)
def test_the_answer_is_that_of_a_plan_that_fits(goal: str) -> None:
    answer = ask(goal)
    assert answer.fits
    assert found(answer).what is not None
    assert any(tried.fits for tried in found(answer).tried)
    assert found(answer).num_tried >= len(found(answer).tried)


def test_no_smaller_card_of_the_catalogue_holds_what_the_smallest_holds() -> None:
    answer = ask("smallest-gpu", concurrency=4)
    chosen = load_gpu(str(found(answer).value))
    for tried in found(answer).tried:
        name = tried.what.split("x", 1)[1].split()[0]
        if load_gpu(name).visible_bytes < chosen.visible_bytes:
            assert not tried.fits
            assert tried.reason


def test_the_smallest_card_needs_no_card_in_the_question() -> None:
    assert vramcast.serve("llama-3.2-1b", find="smallest-gpu", context=2048).fits
    held = vramcast.serve("llama-3.2-1b", find="smallest-gpu", context=2048, used="2GiB")  # on whichever card
    assert any(entry.path.endswith("held by others") for entry in held.fullest.ledger)


def test_old_cards_run_bf16_models_in_fp16() -> None:
    answer = ask("smallest-gpu", "qwen2.5-1.5b", context=2048)
    assert all("fp16" in tried.what for tried in found(answer).tried if "v100" in tried.what or "xt4" in tried.what)


def test_the_longest_context_is_at_most_the_models_own() -> None:
    assert found(ask("longest-context", "llama-3.2-1b", gpus="h200")).value == 131072


def test_among_cards_that_are_all_too_small_the_largest_is_the_nearest() -> None:
    answer = vramcast.serve("deepseek-v3", find="smallest-gpu", context=2048)
    nearest = found(answer).nearest_failing
    assert nearest is not None
    assert answer.capacity_bytes == nearest.capacity_bytes
    assert answer.capacity_bytes == max(
        gpu.visible_bytes for gpu in map(load_gpu, gpu_names()) if runs_on("vllm", (0, 19), gpu)
    )


@given(context=st.integers(1, 24), users=st.integers(1, 6))
@FEW
def test_cards_passed_over_for_their_weights_would_not_have_fitted(context: int, users: int) -> None:
    answer = ask("smallest-gpu", context=1024 * context, concurrency=users)
    for tried in found(answer).tried:
        if "weights alone" in tried.reason:
            gpus, *rest = tried.what.removeprefix("--gpus ").split()
            options = {"dtype": rest[1]} if rest else {}
            whole = vramcast.serve("llama-3.1-8b", gpus=gpus, context=1024 * context, concurrency=users, **options)
            assert not whole.fits


def test_an_unknown_goal_names_the_known_ones() -> None:
    with pytest.raises(InvalidSpec, match="smallest-gpu"):
        ask("cheapest")
    from vramcast.api import serve_job_of
    from vramcast.search.serving import find

    with pytest.raises(UnknownName, match="fewest-gpus"):
        find("fewest-gpu", serve_job_of({"model": "llama-3.1-8b", "gpus": "h100"}))


def test_no_card_at_all_is_one_sentence() -> None:
    from vramcast.api import serve_job_of
    from vramcast.search.serving import find

    with pytest.raises(InvalidSpec, match="no card to choose from"):
        find("smallest-gpu", serve_job_of({"model": "llama-3.1-8b", "gpus": "h100"}), cards=())


def test_every_engine_of_language_models_is_timed_and_searched() -> None:
    from vramcast.engines.serving.table import SERVING
    from vramcast.timing.work import EXECUTIONS

    language = {name: engine for name, engine in SERVING.items() if not engine.runs_pipelines}
    assert set(language) == set(EXECUTIONS)
    assert all(engine.support and engine.formats for engine in language.values())


@pytest.mark.parametrize(("goal", "engine"), [
    *((goal, "vllm") for goal in NAMES), ("most-users", "sglang"), ("longest-context", "llama.cpp"),
    ("best-split", "llama.cpp"), ("fewest-gpus", "transformers"),
])
def test_every_plan_shown_needs_what_it_needs_when_asked_for(goal: str, engine: str) -> None:
    asked = {"gpus": "2xl4", "context": 8192, "concurrency": 4, "engine": engine}
    try:
        answer = ask(goal, "llama-3.1-70b", **asked)
    except InvalidSpec:
        return  # nothing is possible at all
    for tried in found(answer).tried:
        options = options_in(tried.what, SERVE_OPTIONS)
        if tried.needed_bytes is None or options is None:
            continue
        again = vramcast.serve("llama-3.1-70b", **asked | {name.replace("-", "_"): v for name, v in options.items()})
        assert (again.fullest.needed_bytes, again.fits) == (tried.needed_bytes, tried.fits), tried.what


# Deployments: the winner is beaten by none, limits hold, and what is impossible is said.

def serving_ask(**options: Any) -> PlanAnswer:
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
    found = serving_ask(goal=goal.value, **{"per-user": "25", "ttft": "1s"})
    assert found.plans
    for plan in served(found.plans):
        assert plan.fits
        assert rate(plan) >= 25
        assert plan.speed is not None and plan.speed.time_to_first_token_s <= 1
        assert plan.fleet is not None and plan.fleet.users == 48
        assert plan.fleet.tokens_per_s == pytest.approx(rate(plan) * 48)


def test_a_card_without_bf16_has_plans_of_an_engine_that_takes_no_dtype() -> None:
    asked = {"on": "m4-max-64gb", "model": "qwen3-0.6b", "context": 4096, "concurrency": 1}
    assert serving_ask(**asked, engine="llama.cpp").plans
    with pytest.raises(InvalidSpec, match=r"vllm does not run on m4-max-64gb; use --engine llama\.cpp"):
        serving_ask(**asked)


def test_pruned_deployments_do_not_fit() -> None:
    space = serving_ask(on="8xt4", model="llama-3.1-70b", weights="stored", concurrency=1, context=4096)
    assert not space.plans or all(plan.fits for plan in space.plans)
    _, alone = planned_serving({
        "model": "llama-3.1-70b", "on": "1xt4", "weights": "stored", "concurrency": 1, "context": 2048,
    })
    assert alone is not None and alone.cluster.num_nodes * 15 > 141  # GB of weights over cards of 15 GB
    with pytest.raises(InvalidSpec, match="at least"):
        serving_ask(on="1xt4", model="deepseek-v3", weights="stored")


def test_tighter_limits_never_make_it_cheaper() -> None:
    costs = []
    for per_user in ("5", "20", "40"):
        best = served(serving_ask(weights="stored", **{"per-user": per_user}).plans)[0]
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
    found = serving_ask(on="aws:g6f.4xlarge", **{"per-user": "900"})
    assert found.nearest_label.startswith("--gpus 3xaws:g6f.4xlarge ")
    assert rerun(found.nearest_label, "llama-3.1-8b", input_len=2000, output_len=200).fits
    assert any("want of a speed" in text for text in serving_ask(on="aws:g6f.4xlarge").warnings)


@pytest.mark.parametrize("limits", [
    {"per-user": "100000"}, {"ttft": "1ms"}, {"per-user": "100000", "ttft": "1ms"},
    {"per-user": "100000", "max-gpus": 4}, {"ttft": "1ms", "max-gpus": 2}, {"per-user": "90", "max-gpus": 1},
    {"max-gpus": 1, "concurrency": 4096},
])
def test_limits_that_nothing_keeps_name_those_that_something_keeps(limits: dict[str, Any]) -> None:
    question = {"on": "1xl40s,2xl40s,aws:g6f.4xlarge,1xh100-sxm-80gb", "weights": "stored", **limits}
    found = serving_ask(**question)
    assert not found.plans
    assert isinstance(found.nearest_failing, ServeAnswer) and found.nearest_failing.fits
    assert found.change is not None and found.reasons
    words = found.change.change.split()
    kept = {name.removeprefix("--"): value for name, value in zip(words[::2], words[1::2], strict=True)}
    assert set(kept) <= set(limits)
    assert serving_ask(**(question | kept)).plans, found.change


def test_the_nearest_keeps_to_the_number_of_gpus() -> None:
    found = serving_ask(on="aws:g6.xlarge,aws:g6e.xlarge,aws:g6f.4xlarge", **{"per-user": "900", "max-gpus": 1})
    assert found.nearest_failing is not None and sum(rank.count for rank in found.nearest_failing.ranks) == 1
    assert found.reasons[0].kind == "per-user"


def test_a_limit_on_gpus_that_is_too_low_names_the_number_that_is_not() -> None:
    found = serving_ask(on="1xl40s", **{"max-gpus": 1, "per-user": "25"})
    assert (found.reasons[0].kind, found.reasons[0].limit) == ("load-gpus", 1)
    assert found.change is not None and found.change.change == "--max-gpus 2"


def test_least_memory_is_least_of_what_the_load_needs_over_all_cards() -> None:
    cards = "1xl40s,1xh100-sxm-80gb,8xh100-sxm-80gb,8xb300-270gb"
    found = serving_ask(on=cards, goal="least-memory", top=50, weights="stored")
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
        serving_ask(**options)


# Deployments for requests that come at a rate.

def rate_ask(**options: Any) -> PlanAnswer:
    given = {
        "model": "llama-3.1-8b", "on": "1xl40s,2xl40s", "rate": 6, "slo": "ttft<1s,tpot<50ms", "input-len": 1000,
        "output-len": 100, "price": "1usd", "num-requests": 1000, **options,
    }
    return planned_serving(given)[0]


def serving_served(label: str, **options: Any) -> Served:
    given = {name.replace("-", "_"): value for name, value in read(label).items()}
    found = vramcast.serve("llama-3.1-8b", input_len=1000, output_len=100, **given | options).served
    assert found is not None
    return found


def too_few(label: str, replicas: int) -> bool:
    try:
        return (serving_served(label, replicas=replicas).slo_share or 0) < SLO_SHARE
    except InvalidSpec as reason:
        return "is more than this plan serves" in str(reason)


def test_the_fewest_machines_that_keep_the_promise_are_the_answer() -> None:
    counts = []
    for rate in (6, 30):
        found = rate_ask(rate=rate)
        best = found.plans[0]
        assert isinstance(best, ServeAnswer) and best.served is not None and best.fleet is not None
        assert best.served.slo_share is not None and best.served.slo_share >= SLO_SHARE
        assert serving_served(found.labels[0]) == best.served
        assert best.cost is not None and best.cost.per_million_tokens == pytest.approx(
            best.fleet.machines / 3600 / (rate * 100) * 1e6)
        counts.append(best.fleet.replicas)
        if best.fleet.replicas > 1:
            assert too_few(found.labels[0], best.fleet.replicas - 1)
    assert counts[1] > counts[0] and {point.per_user for point in found.front} == {True}


@pytest.mark.parametrize(("options", "sentence"), [
    ({"slo": "tpot<1ms"}, "slo tpot<1ms cannot be kept on these machines: the fastest deployment takes"),
    ({"rate": 900, "max-gpus": 2}, "at most [0-9.]+ requests per second, with --replicas 2 of --tp 1 on 1xl40s"),
    ({"slo": None}, "--rate needs to know what is promised"),
    ({"per-user": "20"}, "--per-user is about users at once"),
    ({"goal": "fastest"}, "goal=fastest compares loads of users at once"),
    ({"concurrency": 4}, "--concurrency is a number of users who ask again"),
])
def test_what_no_deployment_carries_is_one_sentence_with_the_most_that_one_does(
    options: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(InvalidSpec, match=sentence):
        rate_ask(**options)
