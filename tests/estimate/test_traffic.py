"""Requests: their lengths, how many run at once, and what load is borne."""

from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import astuple

import vramcast
from tests.formats.plans import named
from vramcast.api import job_of
from vramcast.api.answers import serve_answer
from vramcast.domain.answer import LoadMemory, ServeAnswer, Served
from vramcast.domain.job import Job
from vramcast.domain.verdict import Fit
from vramcast.errors import InvalidSpec, Unsupported, VramcastError
from vramcast.estimate.training import answer, need

# Requests that arrive by themselves: what the simulation says, and what it refuses with the limit.

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


# Runs whose samples differ in length: every engine plays them, or says why it cannot.

def job(**options: Any) -> Job:
    return job_of({"model": "llama-3.2-1b"} | named(options))


@pytest.mark.parametrize("options", [
    {"engine": "pytorch"}, {"engine": "huggingface", "zero": "3"}, {"engine": "deepspeed", "zero": "2"},
    {"engine": "huggingface", "shards": "everything", "sharded_by": "fsdp1", "offload_parameters": "cpu"},
    {"engine": "pytorch", "shards": "everything", "sharded_by": "fsdp2"},
    {"engine": "torchtitan", "shards": "everything", "tp": 2}, {"engine": "torchtune", "shards": "everything"},
    {"engine": "megatron", "tp": 2, "pp": 2}, {"engine": "megatron", "pp": 2, "virtual_stages": 2},
    {"engine": "litgpt", "shards": "everything", "precision": "bf16"}, {"engine": "unsloth", "gpus": "h100"},
    {"engine": "litgpt", "gpus": "h100", "precision": "bf16", "peft": "lora", "base_weights": "nf4"},
])
def test_shorter_samples_before_the_longest_are_played_and_leave_its_peak(options: dict[str, Any]) -> None:
    options = {"gpus": "8xh100", "grad_accum": 4, "seq_len": 2048} | options
    alone, mixed = (answer(job(**options, **more), with_changes=False) for more in ({}, {"min_seq_len": 7}))
    # cached blocks of other lengths serve, up to a MiB larger than what they hold, which counts as allocated
    assert mixed.ranks[0].peak.allocated_bytes == pytest.approx(alone.ranks[0].peak.allocated_bytes, rel=0.05)
    assert any("steps of different lengths" in text for text in mixed.assumptions)


def test_pipelines_that_receive_one_length_refuse_others() -> None:
    options = {"gpus": "8xh100", "engine": "torchtitan", "pp": 2, "seq_len": 2048}
    with pytest.raises(Unsupported, match="samples of one length; leave --min-seq-len out"):
        answer(job(**options, min_seq_len=7))
    assert answer(job(**options, min_seq_len=2048), with_changes=False).ranks


def test_what_does_not_fit_is_told_by_a_card_on_which_it_would() -> None:
    """The allocator of a card without end keeps the segments of every length: 2.5 times what is allocated here."""
    asked = {"engine": "huggingface", "peft": "lora", "recompute": "full", "seq_len": 32768, "min_seq_len": 1}
    peak = answer(job(gpus="rtx-3060-12gb", **asked), with_changes=False).ranks[0].peak
    assert 12 << 30 < peak.allocated_bytes <= peak.reserved_bytes <= 1.5 * peak.allocated_bytes


@pytest.mark.parametrize("options, verdict", [
    ({"zero": "3", "recompute": "full", "micro_batch": 3}, Fit.CLOSELY),  # half of what is reserved is given back
    ({"zero": "3", "micro_batch": 2}, Fit.MAY_RUN_OUT),  # nearly all of it is allocated
])
def test_an_interval_ends_at_a_card_whose_allocator_gives_back_what_it_keeps(
    options: dict[str, Any], verdict: Fit
) -> None:
    asked = {"model": "qwen2.5-7b", "engine": "huggingface", "gpus": "8xa100-sxm4-80gb", "seq_len": 4096}
    one = job(**asked | options, min_seq_len=1)
    found = answer(one, with_changes=False)
    assert found.verdict is verdict
    assert astuple(need(one)) == (found.ranks[0].needed_bytes, found.ranks[0].high_bytes)


@pytest.mark.parametrize("model, options, tokens", [
    ("qwen2.5-vl-7b", {"image_size": 1024, "images": 2}, 2664),  # 73 x 73 patches, four of them one token
    ("llava-1.5-7b", {}, 576), ("gemma-3-4b", {}, 256), ("internvl3-1b", {}, 256),
])
def test_images_have_room_in_a_sample(model: str, options: dict[str, Any], tokens: int) -> None:
    asked = {"model": model, "gpus": "h100-sxm-80gb", "engine": "pytorch", **options}
    assert answer(job(**asked, seq_len=tokens), with_changes=False).ranks
    with pytest.raises(InvalidSpec, match=f"seq-len={tokens - 1} is less than the {tokens:,} tokens of the images"):
        answer(job(**asked, seq_len=tokens - 1), with_changes=False)


# What a load needs is what an engine takes without the part of the pool that the load does not fill.

def load_served(**options: Any) -> ServeAnswer:
    return vramcast.serve("llama-3.1-8b", **({"gpus": "h100", "context": 4096, "engine": "vllm@0.19"} | options))


def load(**options: Any) -> LoadMemory:
    found = load_served(**options).load
    assert found is not None
    return found


@pytest.mark.parametrize("engine", ["vllm@0.33", "sglang", "tensorrt-llm", "llama.cpp", "transformers"])
def test_more_users_need_more_and_two_cards_more_in_all(engine: str) -> None:
    one, many = (load(engine=engine, concurrency=users).total_bytes for users in (1, 16))
    assert one < many
    both = load(engine=engine, concurrency=16, gpus="2xh100")
    assert both.total_bytes > many > both.per_gpu_bytes
