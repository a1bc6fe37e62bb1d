"""Speeds of plans: beside published measurements, and where there is none, one sentence."""

from __future__ import annotations

import statistics
from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import vramcast
from benchmarks.speed import PUBLISHED, Case, published
from vramcast.domain.answer import ServeAnswer, Speed


def speed(model: str = "llama-3.1-8b", **options: Any) -> Speed:
    answer: ServeAnswer = vramcast.serve(model, **({"gpus": "h100", "context": 4096} | options))
    assert answer.speed is not None, answer.assumptions
    return answer.speed


def test_decoding_one_sequence_reads_memory_and_a_prompt_computes() -> None:
    found = speed()
    assert found.prefill_bound == "compute"
    assert found.decode_bound == "memory"
    assert found.decode_tokens_per_s_per_user == pytest.approx(1 / found.step_s if found.step_s else 0)


@given(users=st.integers(1, 200), prompt=st.integers(1, 8000), answer=st.integers(2, 2000))
@settings(max_examples=25, deadline=None)
def test_under_load_users_wait_for_the_prompts_of_others(users: int, prompt: int, answer: int) -> None:
    found = speed(concurrency=users, input_len=prompt, output_len=answer, context=prompt + answer)
    first, token, step = found.loaded_first_token_s or 0, found.loaded_token_s or 0, found.step_s or 0
    assert found.tokens_per_s_per_user == pytest.approx(answer / (first + (answer - 1) * token))
    assert found.tokens_per_s == pytest.approx(users * (found.tokens_per_s_per_user or 0))
    assert token >= step * (1 - 1e-9) and first >= found.time_to_first_token_s * (1 - 1e-9)
    assert (found.burst_first_token_s or 0) >= found.time_to_first_token_s * (1 - 1e-9)
    # no more prompts than a card computes, one after the other or as many together as go through a forward
    assert (found.tokens_per_s or 0) * prompt / answer <= found.prefill_tokens_per_s * (1 + 1e-6) or users == 1
    alone = speed(input_len=prompt, output_len=answer, context=prompt + answer)
    assert alone.loaded_token_s == alone.step_s
    assert (alone.loaded_first_token_s or 0) < alone.time_to_first_token_s + 0.01  # what the server takes for itself


def test_a_batch_decodes_more_in_all_and_less_for_each() -> None:
    one, many = speed(concurrency=1), speed(concurrency=64)
    assert (many.decode_tokens_per_s or 0) > 10 * (one.decode_tokens_per_s or 0)
    assert (many.decode_tokens_per_s_per_user or 0) < (one.decode_tokens_per_s_per_user or 0)
    assert (many.tokens_per_s_per_user or 0) < (one.tokens_per_s_per_user or 0)


@given(tokens=st.integers(1, 60), users=st.integers(1, 60))
@settings(max_examples=15, deadline=None)
def test_longer_contexts_and_more_users_never_make_a_step_shorter(tokens: int, users: int) -> None:
    here, longer = (speed(context=1024 * n, concurrency=users).step_s or 0 for n in (tokens, tokens + 1))
    more = speed(context=1024 * tokens, concurrency=users + 1).step_s or 0
    assert 0 < here <= longer + 1e-12
    assert here <= more + 1e-12


def test_smaller_weights_decode_faster() -> None:
    steps = [speed(weights=name).step_s or 0 for name in ("bf16", "fp8", "awq-int4")]
    assert steps[0] > steps[1] > steps[2]


def test_tensor_parallel_ranks_decode_faster_but_not_as_many_times() -> None:
    one, two = speed("llama-3.1-70b", gpus="h200"), speed("llama-3.1-70b", gpus="2xh200")
    assert 1.3 < (two.decode_tokens_per_s or 0) / (one.decode_tokens_per_s or 1) < 2
    assert (two.decode_shares or {})["communication"] > 0


def test_eager_transformers_waits_for_its_launches() -> None:
    from vramcast.catalogue.gpus import parse_gpus
    from vramcast.catalogue.models import load_model
    from vramcast.domain.serving import Requests, ServeJob, ServePlan
    from vramcast.estimate.speed import timed

    job = ServeJob(
        model=load_model("qwen2.5-0.5b"), requests=Requests(context=2048), plan=ServePlan(),
        cluster=parse_gpus("a100-sxm4-80gb"), engine="transformers", version=(4, 46),
    )
    found = timed(job).speed
    assert found is not None
    assert found.decode_bound == "launch"


def test_prompt_and_answer_are_taken_from_the_question() -> None:
    assert speed(context=4096, output_len=96).prompt_tokens == 4000
    assert speed(context=4096, input_len=1000, output_len=100).mean_context == 1050
    answer = vramcast.serve("llama-3.1-8b", gpus="h100", context=4096)
    assert any("--input-len" in text for text in answer.assumptions)


def test_a_card_without_figures_has_no_speed_and_says_so() -> None:
    answer = vramcast.serve("llama-3.1-8b", gpus="ppu-810e", context=4096)
    assert answer.speed is None
    assert any(text.startswith("no speed: ") for text in answer.assumptions)


def within(cases: Iterable[Case], prefix: str) -> list[float]:
    return [abs(case.error) for case in cases if case.group.startswith(prefix)]


def test_published_speeds_of_current_engines_are_met() -> None:
    cases = list(published())
    for prefix, median in (("tensorrt-llm@1.0 h100", 0.12), ("tensorrt-llm@1.0 h200", 0.12), ("vllm@0.6", 0.12)):
        errors = within(cases, prefix)
        assert errors, f"{PUBLISHED} holds no {prefix}"
        assert statistics.median(errors) < median


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
