"""Cost: money per hour, per million tokens and per run, from a price and a speed."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vramcast.api import job_of, serve_answer
from vramcast.catalogue.clusters import cluster_of
from vramcast.domain.answer import StepTime
from vramcast.domain.device import Cluster
from vramcast.domain.price import Price
from vramcast.estimate.cost import cost_of, with_cost
from vramcast.estimate.training import answer

MODEL = {"model": "llama-3.2-1b", "engine": "megatron", "seq-len": "2k"}


def cluster(per_hour: float, machines: int) -> Cluster:
    plain = cluster_of("8xh100")
    return Cluster(gpu=plain.gpu, gpus_per_node=8, num_nodes=machines, price=Price(per_hour=per_hour, currency="USD"))


@given(st.floats(0.01, 1000), st.integers(1, 1000), st.floats(1, 1e9), st.integers(1, 10**15))
def test_a_run_costs_its_tokens_times_the_cost_of_one(
    per_hour: float, machines: int, tokens_per_s: float, run_tokens: int
) -> None:
    cost = cost_of(cluster(per_hour, machines), tokens_per_s=tokens_per_s, run_tokens=run_tokens)
    assert cost is not None and cost.per_million_tokens is not None and cost.per_run is not None
    assert cost.per_hour == pytest.approx(per_hour * machines)
    assert cost.per_run == pytest.approx(cost.per_million_tokens * run_tokens / 1e6)
    assert cost.run_hours is not None and cost.per_run == pytest.approx(cost.run_hours * cost.per_hour)


def test_what_is_not_known_is_absent() -> None:
    assert cost_of(cluster_of("8xh100"), tokens_per_s=1e4, run_tokens=10**12) is None
    hourly = cost_of(cluster(98.32, 2), run_tokens=10**12)
    assert hourly is not None and (hourly.per_hour, hourly.per_million_tokens, hourly.per_run) == (196.64, None, None)


def test_a_training_answer_costs_by_the_hour_and_with_its_speed_by_the_run() -> None:
    job = job_of(MODEL | {"gpus": "2xaws:p5.48xlarge", "tokens": "1T"})
    found = answer(job)
    assert found.cost is not None and found.cost.per_hour == pytest.approx(110.08)
    timed = with_cost(
        type(found)(**{name: getattr(found, name) for name in found.__struct_fields__ if name != "time"}, time=StepTime(
            step_s=1.0, tokens_per_s=1e6, tokens_per_s_per_gpu=62500.0, model_flops_per_s_per_gpu=1e14
        )),
        job.cluster, run_tokens=job.run_tokens,
    )
    assert timed.cost is not None and timed.cost.run_hours == pytest.approx(1e6 / 3600)
    assert timed.cost.per_run == pytest.approx(110.08 * 1e6 / 3600)


def test_a_serving_answer_costs_per_million_generated_tokens() -> None:
    found = serve_answer({"model": "llama-3.1-8b", "gpus": "aws:g6e.12xlarge", "context": 8192, "concurrency": 16})
    assert found.cost is not None and found.speed is not None and found.speed.tokens_per_s is not None
    expected = 10.49264 / 3600 / found.speed.tokens_per_s * 1e6
    assert found.cost.per_million_tokens == pytest.approx(expected)


def test_what_is_assumed_of_a_machine_is_an_assumption_of_the_answer() -> None:
    found = serve_answer({"model": "llama-3.1-8b", "gpus": "8xgu108", "context": 8192})
    assert any("GU108 is taken as h800-sxm-80gb" in text for text in found.assumptions)
    assert found.question["gpus"] == "8xh800-sxm-80gb"


def test_changes_of_a_named_machine_are_more_of_it() -> None:
    found = serve_answer({"model": "llama-3.1-70b", "gpus": "aws:g6e.12xlarge", "context": 131072, "concurrency": 8})
    assert not found.fits
    assert any(change.change.startswith("--gpus 2xaws:g6e.12xlarge") for change in found.changes)


def test_an_inverse_question_about_cards_leaves_the_machine_and_its_price_behind() -> None:
    found = serve_answer({"model": "llama-3.1-8b", "gpus": "aws:p5.4xlarge", "context": 8192, "find": "smallest-gpu"})
    assert found.found is not None and "aws" not in str(found.found.what)
    assert found.cost is None
