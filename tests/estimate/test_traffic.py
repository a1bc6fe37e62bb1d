"""Requests that arrive by themselves: what the simulation says, and what it refuses with the limit."""

from pathlib import Path
from typing import Any

import pytest

from vramcast.api.answers import serve_answer
from vramcast.domain.answer import Served
from vramcast.errors import VramcastError

ASKED = {"model": "llama-3.1-8b", "gpus": "h100-sxm-80gb", "context": "8k", "input-len": "2k", "output-len": "200"}


def served(**said: Any) -> Served:
    found = serve_answer(ASKED | {name.replace("_", "-"): value for name, value in said.items()}).served
    assert found is not None
    return found


def test_a_request_alone_takes_what_the_plan_says_of_one() -> None:
    alone = served(rate=0.001, num_requests=3)
    speed = serve_answer(ASKED).speed
    assert speed is not None and speed.step_s is not None and speed.loaded_first_token_s is not None
    assert alone.first_token_s.p50 == pytest.approx(speed.loaded_first_token_s, rel=0.02)
    assert alone.token_s.p50 == pytest.approx(speed.step_s, rel=0.02)


def test_more_requests_wait_longer_and_what_all_share_is_computed_once() -> None:
    calm, busy = (served(rate=rate, num_requests=400, slo="ttft<1s,tpot<15ms") for rate in (2, 12))
    assert calm.first_token_s.p90 < busy.first_token_s.p90 and calm.token_s.p50 < busy.token_s.p50
    assert calm.goodput == pytest.approx(2, rel=0.05)
    assert calm.slo_rate == busy.slo_rate and 2 < (busy.slo_rate or 0) <= busy.most_rate
    assert served(rate=2, num_requests=400, shared_prefix=1024).most_rate > 1.3 * calm.most_rate
    assert served(rate=2, num_requests=400, replicas=2).most_rate == pytest.approx(2 * calm.most_rate)


def test_few_requests_are_not_kept_faster_than_they_come_and_replicas_are_all_paid() -> None:
    few = served(rate=0.01, num_requests=3, slo="ttft<2s")
    assert few.goodput is not None and few.goodput <= 0.01 and few.tokens_per_s <= 2
    one, two = (serve_answer(ASKED | {"rate": 4 * count, "replicas": count, "num-requests": 800, "price": "3.6usd"})
                for count in (1, 2))
    assert one.cost is not None and two.cost is not None and one.served is not None
    assert (one.cost.per_hour, two.cost.per_hour, two.cost.machines) == (3.6, 7.2, 2)
    assert one.cost.per_million_tokens == pytest.approx(1000 / one.served.tokens_per_s)
    assert two.cost.per_million_tokens == pytest.approx(one.cost.per_million_tokens, rel=0.02)


def test_what_a_speed_leaves_out_is_said() -> None:
    assert any("without adapters" in line for line in serve_answer(ASKED | {"lora-slots": 2}).assumptions)


def test_a_plan_without_room_says_that_it_serves_no_requests() -> None:
    answer = serve_answer(ASKED | {"model": "llama-3.1-70b", "rate": 2})
    assert answer.served is None and not answer.fits and "no latencies" in answer.cautions[0]


def test_recorded_requests_are_replayed(tmp_path: Path) -> None:
    file = tmp_path / "sent.jsonl"
    file.write_text("".join(f'{{"timestamp": {1000 * at}, "input_length": 100, "output_length": 10}}\n'
                            for at in range(5)))
    asked = {name: value for name, value in ASKED.items() if not name.endswith("-len")}
    found = serve_answer(asked | {"arrivals": str(file)}).served
    assert found is not None and found.requests == 5 and 4 < found.duration_s < 5 and found.rate == 1


@pytest.mark.parametrize(("said", "sentence"), [
    ({"rate": 1e5}, "grows without end from"),
    ({"rate": 1, "slo": "ttft<1ms"}, "with the server to itself"),
    ({"rate": 1, "slo": "fast"}, "must be a latency"),
    ({"rate": 1, "input-len": None}, "give --input-len and --output-len"),
    ({"rate": 1, "engine": "sglang"}, "scheduler of sglang is not simulated"),
    ({"rate": 1, "engine": "sglang", "gpus": "t4"}, "scheduler of sglang is not simulated"),  # which has no room
    ({"slo": "ttft<1s"}, "give --rate or --arrivals"),
    ({"rate": 1, "shared-prefix": "4k"}, "must be shorter than every prompt"),
    ({"rate": 0}, "must lie between"),
    ({"rate": 1, "concurrency": 2}, "--concurrency is a number of users who ask again"),
    ({"rate": 1, "slo": ""}, "must be a latency"),
    ({"rate": 1, "slo": "ttft<2s,ttft<1s"}, "each once"),
    ({"rate": 1, "slo": "tpot<1s", "output-len": 1}, "every answer has one"),
    ({"rate": 1, "find": "most-users"}, "--find looks for"),
])
def test_what_cannot_be_is_said_with_its_limit(said: dict[str, Any], sentence: str) -> None:
    with pytest.raises(VramcastError, match=sentence):
        serve_answer(ASKED | said)


@pytest.mark.parametrize(("text", "sentence"), [
    ("\n", "holds no request"),
    ('{"time": 1, "input": 5, "output": 5}\n{"time": 0, "input": 5, "output": 5}\n', "line 2: comes before"),
    ('{"time": 1, "input": 5}\n', "has no number of tokens"),
    ('{"time": 1, "input": 9000, "output": 5}\n', "longer than the context of 8,192"),
    ("Timestamp,Request tokens,Response tokens\nx,1,1\n", "is no time"),
])
def test_a_bad_list_of_requests_is_refused(tmp_path: Path, text: str, sentence: str) -> None:
    file = tmp_path / "sent.jsonl"
    file.write_text(text)
    asked = {name: value for name, value in ASKED.items() if not name.endswith("-len")}
    with pytest.raises(VramcastError, match=sentence):
        serve_answer(asked | {"arrivals": str(file)})
