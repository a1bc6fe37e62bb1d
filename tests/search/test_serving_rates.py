"""Deployments for requests that come at a rate."""

from typing import Any

import pytest

import vramcast
from tests.search._options import read
from vramcast.api import planned_serving
from vramcast.domain.answer import SLO_SHARE, ServeAnswer, Served
from vramcast.domain.planning import PlanAnswer
from vramcast.errors import InvalidSpec


def ask(**options: Any) -> PlanAnswer:
    given = {
        "model": "llama-3.1-8b", "on": "1xl40s,2xl40s", "rate": 6, "slo": "ttft<1s,tpot<50ms", "input-len": 1000,
        "output-len": 100, "price": "1usd", "num-requests": 1000, **options,
    }
    return planned_serving(given)[0]


def served(label: str, **options: Any) -> Served:
    given = {name.replace("-", "_"): value for name, value in read(label).items()}
    found = vramcast.serve("llama-3.1-8b", input_len=1000, output_len=100, **given | options).served
    assert found is not None
    return found


def too_few(label: str, replicas: int) -> bool:
    try:
        return (served(label, replicas=replicas).slo_share or 0) < SLO_SHARE
    except InvalidSpec as reason:
        return "is more than this plan serves" in str(reason)


def test_the_fewest_machines_that_keep_the_promise_are_the_answer() -> None:
    counts = []
    for rate in (6, 30):
        found = ask(rate=rate)
        best = found.plans[0]
        assert isinstance(best, ServeAnswer) and best.served is not None and best.fleet is not None
        assert best.served.slo_share is not None and best.served.slo_share >= SLO_SHARE
        assert served(found.labels[0]) == best.served
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
        ask(**options)
