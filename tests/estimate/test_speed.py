"""Speeds of plans: beside published measurements, and where there is none, one sentence."""

import statistics
from collections.abc import Iterable
from typing import Any

import pytest
from msgspec.structs import replace

import vramcast
from benchmarks.speed import PUBLISHED, Case, published
from vramcast.catalogue.gpus import load_gpu
from vramcast.catalogue.models import load_model
from vramcast.domain.answer import ServeAnswer
from vramcast.timing.forward import layer_work
from vramcast.timing.roofline import machine_of, step_time
from vramcast.timing.work import ROUTING, VLLM, Placement, Setting, Step, Work, execution_of


def within(cases: Iterable[Case], prefix: str) -> list[float]:
    return [abs(case.error) for case in cases if case.group.startswith(prefix)]


def test_published_speeds_of_current_engines_are_met() -> None:
    cases = list(published("tensorrt-llm@1.0", "vllm@0.6"))
    for prefix, median in (("tensorrt-llm@1.0 h100", 0.12), ("tensorrt-llm@1.0 h200", 0.12),
                           ("tensorrt-llm@1.0 b200", 0.12), ("vllm@0.6", 0.12)):
        errors = within(cases, prefix)
        assert errors, f"{PUBLISHED} holds no {prefix}"
        assert statistics.median(errors) < median


def test_query_heads_that_share_a_cache_read_it_once_since_the_release_that_lets_them() -> None:
    cases = [case for case in published("tensorrt-llm@0.6") if "70b" in case.name or "180b" in case.name]
    assert cases and max(abs(case.error) for case in cases) < 0.25  # 1.05 where they did before
    before, after = (
        step_s("llama-2-70b", f"tensorrt-llm@{version}", gpus="4xh100", tp=4, concurrency=64, weights="fp8")
        for version in ("0.7", "0.8")
    )
    assert before > 1.1 * after


def test_answers_that_nobody_reads_token_by_token_cost_tensorrt_llm_no_sending() -> None:
    run = execution_of("tensorrt-llm", (1, 0), arch="Hopper")
    assert run is not None and run.sent_s > 0


def test_experts_by_the_library_of_tensorrt_llm_take_less_than_by_cutlass_which_it_takes_unasked() -> None:
    unasked, cutlass, own = (
        step_s("qwen3-30b-a3b", "tensorrt-llm@1.1", gpus="b200", concurrency=64, weights="nvfp4", engine_option=option)
        for option in ((), ("moe-backend=CUTLASS",), ("moe-backend=TRTLLM",))
    )
    assert unasked == cutlass > 1.2 * own


def test_experts_without_a_token_are_launched_until_the_release_that_leaves_them_out() -> None:
    before, after = (
        vramcast.serve("qwen3-30b-a3b", gpus="h100", engine=f"transformers@{version}", context=4096).speed
        for version in ("4.52", "4.53")
    )
    assert before is not None
    assert after is not None
    assert before.step_s is not None
    assert after.step_s is not None
    assert 3 < before.step_s / after.step_s < 128 / 8


def step_s(model: str, engine: str, gpus: str = "h100", **options: Any) -> float:
    speed = vramcast.serve(model, gpus=gpus, engine=engine, context=2048, **options).speed
    assert speed is not None and speed.step_s is not None
    return speed.step_s


def test_vllm_schedules_while_the_card_computes_since_the_release_that_does() -> None:
    scheduling_s = 0.8e-3
    assert step_s("llama-3.1-8b", "vllm@0.13") - step_s("llama-3.1-8b", "vllm@0.14") == pytest.approx(scheduling_s)
    ahead = execution_of("vllm", (0, 14), arch="Hopper")
    assert ahead is not None and ahead.taken_s(scheduling_s / 2, 0.0, 1) == scheduling_s  # a host slower than the card


def test_tensorrt_llm_works_on_the_host_while_the_card_computes_since_the_release_that_does() -> None:
    before, after = (execution_of("tensorrt-llm", version, arch="Blackwell") for version in ((1, 0), (1, 1)))
    assert before is not None and after is not None
    assert before.taken_s(0.01, 0.0, 0) == 0.01 + before.step_s
    assert after.taken_s(0.01, 0.0, 1) == 0.01


def test_a_norm_over_the_heads_of_all_ranks_is_one_more_all_reduce_a_layer() -> None:
    layer = next(iter(load_model("minimax-m2").main.runs)).layer
    other = replace(layer, mixer=replace(layer.mixer, qk_norm="head"))
    setting = Setting(Step(4, 1, 1024), Placement(tp=4), VLLM)
    sums = [sum(work.pattern == "all-reduce" for work in layer_work(one, setting, hidden=3072))
            for one in (layer, other)]
    assert sums == [3, 2]


@pytest.mark.parametrize(("engine", "stored", "chosen"), [
    ("vllm", "mxfp4", True), ("vllm", "fp8-block", False), ("tensorrt-llm", "fp8-block", True),
    ("sglang", "fp8-block", False),
])
def test_experts_are_not_chosen_twice_where_their_kernel_was_measured_with_the_choice(
    engine: str, stored: str, chosen: bool
) -> None:
    machine = machine_of(load_gpu("h100-sxm-80gb"), engine, VLLM, whole="bf16", node_cards=8)
    assert machine is not None
    routing = Work(ROUTING, operands=stored, kernels=3.0)
    taken = step_time([(routing, 1)], machine, Placement(), replayed=True).seconds - VLLM.step_s
    assert (taken == pytest.approx(0)) is chosen


@pytest.mark.parametrize(("gpus", "asked", "measured"), [
    ("h100-sxm-80gb", {}, True),
    ("h100-pcie-80gb", {}, False),  # a relative
    ("l40s", {}, False),  # no kernels
    ("h100-sxm-80gb", {"draft": "ngram"}, False),
])
def test_an_interval_of_speeds_stands_where_runs_like_it_were_measured(
    gpus: str, asked: dict[str, str], measured: bool
) -> None:
    speed = vramcast.serve("llama-3.1-8b", gpus=gpus, engine="vllm", context=4096, concurrency=8, **asked).speed
    assert speed is not None
    for middle, interval in ((speed.loaded_first_token_s, speed.loaded_first_token_interval_s),
                             (speed.loaded_token_s, speed.loaded_token_interval_s)):
        assert (interval is not None) == measured
        assert interval is None or (middle is not None and interval[0] < middle < interval[1])


@pytest.mark.parametrize("engine", ["vllm", "vllm@0.11", "sglang"])
def test_users_beyond_the_cache_do_not_keep_a_server_from_answering(engine: str) -> None:
    few, many = (
        vramcast.serve(
            "llama-3.1-8b", gpus="rtx-4090", engine=engine, weights="fp8", context="16k", concurrency=users,
            input_len=8192, output_len=8192,
        ).speed.tokens_per_s for users in (4, 16)
    )
    assert many > few


def test_decode_alone_is_of_those_whom_the_cache_holds() -> None:
    few, many = (
        vramcast.serve("llama-3.1-8b", gpus="rtx-4090", engine="vllm", weights="fp8", context="16k", concurrency=users)
        for users in (2, 64)
    )
    assert few.speed is not None and many.speed is not None and many.speed.step_s is not None
    held = int(many.capacity.concurrency)
    assert 2 < held < 64
    assert many.speed.decode_tokens_per_s == pytest.approx(held / many.speed.step_s)
    assert many.speed.decode_tokens_per_s_per_user > few.speed.decode_tokens_per_s_per_user / 4


@pytest.mark.parametrize("context", [2048, 65536])
def test_no_interval_begins_where_the_card_would_read_faster_than_its_data_sheet(context: int) -> None:
    answer = vramcast.serve(
        "llama-3.1-70b", gpus="2xh100-sxm-80gb", tp=2, engine="vllm", weights="fp8", context=context)
    assert answer.speed is not None and answer.speed.loaded_token_interval_s is not None
    low, high = answer.speed.loaded_token_interval_s
    weights = 70.5e9 * 0.97 / 2  # bytes of a rank in 8 bits, the embedding left out
    assert weights / load_gpu("h100-sxm-80gb").bandwidth_bytes_per_s < low < high


def drafted(model: str, kind: str | None, users: int, **options: Any) -> ServeAnswer:
    draft = {} if kind is None else {"draft": kind, "draft_tokens": 3}
    return vramcast.serve(model, gpus="8xb200", tp=8, engine="tensorrt-llm@1.1", context=2048, input_len=1024,
                          output_len=1024, concurrency=users, **draft, **options)


def test_drafts_help_users_by_what_is_accepted_less_what_they_cost() -> None:
    def per_user(kind: str | None, users: int) -> float:
        speed = drafted("deepseek-r1", kind, users).speed
        assert speed is not None and speed.decode_tokens_per_s_per_user is not None and speed.loaded_token_s is not None
        assert speed.decode_tokens_per_s_per_user == pytest.approx(1 / speed.loaded_token_s, rel=0.6)
        return speed.decode_tokens_per_s_per_user

    alone, crowd = (per_user("mtp", users) / per_user(None, users) for users in (1, 64))
    accepted = 1 + 0.8 * (2.49 - 1)  # tokens of a step
    assert 1.2 < crowd < alone < accepted
    published = 2.16  # of one user on 8 B200 with prompts that are easy to guess [TensorRT-LLM tech_blog2]
    assert alone < published


def test_an_answer_says_how_many_proposals_it_counts() -> None:
    counted = drafted("deepseek-r1", "mtp", 1).assumptions
    assert any("come to 2.19 tokens with 3 proposed" in str(one) for one in counted)
    unknown = vramcast.serve("llama-3.1-8b", gpus="h100", engine="vllm", context=2048, draft="ngram")
    assert any("speculative decoding" in str(one) for one in unknown.assumptions)
    plain = vramcast.serve("llama-3.1-8b", gpus="h100", engine="vllm", context=2048)
    assert unknown.speed is not None and plain.speed is not None
    assert unknown.speed.step_s == plain.speed.step_s
