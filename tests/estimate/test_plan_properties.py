"""Properties of answers: of plans, of deployments, of the fullest role and of repeated steps."""

from typing import Any

import pytest
from hypothesis import HealthCheck, assume, example, given, settings
from hypothesis import strategies as st
from msgspec.structs import fields

import vramcast
import vramcast.errors
from tests.formats.plans import named
from tests.formats.test_random_plans import plans
from vramcast.api import job_of
from vramcast.domain.answer import Answer, Capacity, ServeAnswer
from vramcast.domain.job import Peft, Phase, Plan, Workload
from vramcast.domain.program import live_at_end
from vramcast.errors import InvalidSpec, VramcastError
from vramcast.estimate.techniques import PEFT_OPTIONS
from vramcast.estimate.training import answer, needed_bytes, rank_programs
from vramcast.question.options import OPTIONS

# What must hold for every plan, whatever the engine.


def ask(engine: str, **options: Any) -> Answer:
    given_options = {"gpus": "8xh200-sxm-141gb", "seq_len": 512, "engine": engine} | options
    return vramcast.train("llama-3.2-1b", **given_options)


@pytest.mark.parametrize("engine", ["torchtitan", "megatron"])
@pytest.mark.parametrize("tp", [1, 2, 4, 8])
@pytest.mark.parametrize("pp", [1, 2])
def test_ranks_together_hold_at_least_one_copy_of_the_weights(engine: str, tp: int, pp: int) -> None:
    if tp * pp > 8 or (engine == "torchtitan" and tp * pp == 8):
        pytest.skip("more ranks than cards, or no data parallelism left for FSDP")
    answer = ask(engine, tp=tp, pp=pp, grad_accum=4)
    held = sum(
        entry.num_bytes * rank.count for rank in answer.ranks for entry in rank.ledger if entry.category == "weights"
    )
    assert held >= 2 * answer.num_parameters * 0.999


@pytest.mark.parametrize(("options", "words"), [
    ({"tp": 3}, "tp=3"),
    ({"tp": 6, "gpus": "6xh100"}, "tp=6"),
    ({"micro_batch": 0}, "micro-batch=0"),
    ({"seq_len": 2**60}, "seq-len"),
    ({"no_such_option": 1}, "no-such-option"),
])
def test_impossible_questions_are_refused_in_one_sentence(options: dict[str, Any], words: str) -> None:
    with pytest.raises((InvalidSpec, vramcast.errors.UnknownName)) as caught:
        ask("megatron", **options)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_the_answer_shows_itself_in_a_notebook() -> None:
    answer = vramcast.train("llama-3.2-1b", gpus="h100", engine="megatron")
    assert "<table" in answer._repr_html_()
    assert '"schema": 1' in answer.to_json()
    assert str(answer).startswith("fits: ")


# What must hold for every serving plan, whatever the engine.

ENGINES = ["vllm", "sglang", "tensorrt-llm"]
"""Engines that give what a fraction of the card leaves to a cache."""

FEW = settings(max_examples=8, deadline=None)


def serving_ask(engine: str, model: str = "llama-3.2-1b", **options: Any) -> ServeAnswer:
    return vramcast.serve(model, **({"gpus": "h100", "engine": engine, "context": 4096} | options))


def capacity(answer: ServeAnswer) -> Capacity:
    assert answer.capacity is not None
    return answer.capacity


@pytest.mark.parametrize("engine", ENGINES)
@given(context=st.integers(1, 64), sequences=st.integers(1, 64))
@FEW
def test_longer_or_more_sequences_never_leave_more_room(engine: str, context: int, sequences: int) -> None:
    here = capacity(serving_ask(engine, context=256 * context, concurrency=sequences))
    longer = capacity(serving_ask(engine, context=256 * (context + 1), concurrency=sequences))
    more = capacity(serving_ask(engine, context=256 * context, concurrency=sequences + 1))
    assert longer.concurrency <= here.concurrency
    assert more.longest_context <= here.longest_context


@pytest.mark.parametrize("engine", ENGINES)
def test_an_fp8_cache_holds_twice_the_tokens_and_fp8_weights_do_not_imply_it(engine: str) -> None:
    base, quantised = serving_ask(engine, "qwen3-8b"), serving_ask(engine, "qwen3-8b", weights="fp8")
    cached = serving_ask(engine, "qwen3-8b", kv_dtype="fp8")
    assert capacity(cached).kv_tokens == pytest.approx(2 * capacity(base).kv_tokens, rel=0.01)
    assert capacity(quantised).sequence_bytes == capacity(base).sequence_bytes


# A comparison of plans simulates the roles that can need most; the full answer, which simulates all, must agree.

MODELS = ("llama-3.1-8b", "llama-3.1-70b", "mixtral-8x7b", "qwen3-30b-a3b", "opt-175b", "deepseek-v2-lite")


@st.composite
def pipelines(draw: st.DrawFn) -> dict[str, object]:
    """Options of a pipeline of Megatron or torchtitan on cards large enough for most."""
    pp, tp = draw(st.sampled_from((2, 4, 8, 16))), draw(st.sampled_from((1, 2, 4, 8)))
    cards = max(8, pp * tp * draw(st.sampled_from((1, 2))))
    chunks = draw(st.sampled_from((1, 1, 2, 4)))
    return {
        "model": draw(st.sampled_from(MODELS)), "engine": draw(st.sampled_from(("megatron", "torchtitan"))),
        "gpus": f"{cards // 8}x8xh200-sxm-141gb", "tp": tp, "pp": pp,
        "virtual-stages": chunks, "schedule": "interleaved" if chunks > 1 else "1f1b",
        "seq-len": draw(st.sampled_from(("2k", "8k"))), "micro-batch": draw(st.sampled_from((1, 2))),
        "grad-accum": draw(st.sampled_from((2, 4, 8, 16))),
        "recompute": draw(st.sampled_from(("none", "selective", "full"))),
        "shards": draw(st.sampled_from(("nothing", "optimizer"))),
    }


@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much])
@given(pipelines())
@example({"model": "bloom-560m", "gpus": "4x8xquadro-p3200-max-q", "engine": "torchtitan", "pp": 2})
def test_the_roles_left_out_never_need_most(options: dict[str, object]) -> None:
    try:
        job = job_of(options)
        every = answer(job, with_changes=False)
    except VramcastError:
        assume(False)
    assert needed_bytes(job) == every.fullest.needed_bytes


# A steady step ends as it began: what it leaves behind would pile up, step by step.

SAME_AFTERWARDS = (Phase.STEP, Phase.EVALUATION, Phase.CHECKPOINT)


def left_behind(options: dict[str, Any]) -> dict[str, int]:
    return {
        f"{program.role}, {phase}: {tensor.path}": count
        for program in rank_programs(job_of(options)) for phase in SAME_AFTERWARDS
        for tensor, count in live_at_end(program.phases.get(phase, ())).items()
    }


@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.filter_too_much, HealthCheck.too_slow])
@given(plans(), st.sampled_from([1, 2, 5]), st.sampled_from(["fsdp1", "fsdp2", "deepspeed", None]),
       st.sampled_from(["optimizer+gradients", "everything"]))
def test_a_random_plan_leaves_nothing_behind(
    options: dict[str, Any], grad_accum: int, by: str | None, shards: str
) -> None:
    options |= named({"grad_accum": grad_accum} | ({"sharded_by": by, "shards": shards} if by else {}))
    try:
        found = left_behind(options)
    except VramcastError:
        assume(False)
    assert not found, options


# Options between two jobs: what they say turns the one into the other.

DERIVED = {"trainable_parameters"}


def test_every_field_of_a_plan_is_an_option_of_the_same_name() -> None:
    named = {field.name.replace("_", "-") for noun in (Plan, Workload) for field in fields(noun)}
    assert named <= set(OPTIONS)
    adapters = {PEFT_OPTIONS.get(field.name, field.name.replace("_", "-")) for field in fields(Peft)}
    assert adapters - {name.replace("_", "-") for name in DERIVED} <= set(OPTIONS)
