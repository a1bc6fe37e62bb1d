"""Deployments: the winner is beaten by none, limits hold, and what is impossible is said."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

import vramcast
from vramcast.api import planned_serving
from vramcast.domain.answer import ServeAnswer
from vramcast.domain.planning import Goal, PlanAnswer
from vramcast.domain.serving import ServeJob
from vramcast.errors import InvalidSpec, UnknownName
from vramcast.estimate.serving import answer, verdict
from vramcast.estimate.speed import sustained_per_user, timed


def ask(**options: Any) -> PlanAnswer:
    given = {
        "model": "llama-3.1-8b", "on": "4xl40s", "concurrency": 48, "input-len": 2000, "output-len": 200,
        "price": "1usd", **options,
    }
    return planned_serving(given)[0]


def rate(plan: ServeAnswer) -> float:
    assert plan.sustained is not None
    return plan.sustained.tokens_per_s_per_user


def sustained(job: ServeJob) -> float:
    speed = timed(job).speed
    assert speed is not None
    found = sustained_per_user(job, speed)
    assert found is not None
    return found


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
        assert plan.sustained is not None and plan.sustained.replicas >= 1


def test_the_cheapest_is_cheaper_than_any_number_of_users_a_replica_could_have() -> None:
    found, job = planned_serving({
        "model": "llama-3.1-8b", "on": "1xl40s", "concurrency": 24, "context": 4096, "price": "1usd",
        "per-user": "20", "weights": "stored",
    })
    assert job is not None
    best = served(found.plans)[0]
    assert best.cost is not None and best.cost.per_million_tokens is not None
    for users in range(1, 25):  # brute force: so many users on each of as few cards as that takes
        one = replace(job, requests=replace(job.requests, concurrency=users))
        if not verdict(one).fits or sustained(one) < 20:
            continue
        cards = -(-24 // users)
        even = sustained(replace(job, requests=replace(job.requests, concurrency=-(-24 // cards))))
        cost = cards / 3600 / (24 * even) * 1e6
        assert best.cost.per_million_tokens <= cost * 1.0001


def test_pruned_deployments_do_not_fit() -> None:
    space = ask(on="8xt4", model="llama-3.1-70b", weights="stored", concurrency=1, context=2048)
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


def test_the_answer_of_a_replica_is_that_of_serve() -> None:
    found, job = planned_serving({"model": "llama-3.1-8b", "on": "2xl40s", "concurrency": 8, "context": 4096})
    assert job is not None
    assert answer(job).peak == found.plans[0].peak
    options = dict(part.split(" ", 1) for part in found.labels[0].partition(" (")[0][2:].split(" --"))
    assert vramcast.serve("llama-3.1-8b", context=4096, **{k.replace("-", "_"): v for k, v in options.items()}).fits


def test_a_limit_that_no_card_keeps_names_what_is_possible() -> None:
    found = ask(**{"per-user": "100000"})
    assert not found.plans
    assert found.nearest_failing is not None
    assert found.change is not None and found.change.change.startswith("--per-user ")
    assert "tokens/s" in found.reasons[0]


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"engine": "llama.cpp", "weights": "fp8"}, InvalidSpec, "llama.cpp has no fp8"),
        ({"weights": "fp9"}, UnknownName, "fp9"),
        ({"ttft": "soon"}, InvalidSpec, "500ms"),
        ({"per-user": "0"}, InvalidSpec, "more than 0"),
        ({"on": None}, InvalidSpec, "on what"),
        ({"max-gpus": 1}, InvalidSpec, "max-gpus"),
        ({"engine": "nothing"}, UnknownName, "nothing"),
    ],
)
def test_bad_questions_get_one_sentence(options: dict[str, Any], error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        ask(**options)
