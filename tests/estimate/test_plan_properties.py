"""What must hold for every plan, whatever the engine."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import vramcast
import vramcast.errors
from vramcast.domain.answer import Answer
from vramcast.errors import InvalidSpec

ENGINES = ["pytorch", "huggingface", "deepspeed", "torchtitan", "megatron", "colossalai"]
FEW = settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


def ask(engine: str, **options: Any) -> Answer:
    given_options = {"gpus": "8xh200-sxm-141gb", "seq_len": 512, "engine": engine} | options
    return vramcast.train("llama-3.2-1b", **given_options)


def allocated(answer: Answer) -> int:
    return max(peak.allocated_bytes for rank in answer.ranks for peak in rank.phases.values())


def asked_for(answer: Answer) -> int:
    """Without the slack of blocks that are not split: that depends on what lies in the cache, not on the data alone."""
    slack = (entry.num_bytes for rank in answer.ranks for entry in rank.ledger if entry.path.endswith("large blocks"))
    return max(rank.peak.allocated_bytes for rank in answer.ranks) - max(slack, default=0)


@pytest.mark.parametrize("engine", ENGINES)
def test_every_ledger_adds_up_to_the_device_peak(engine: str) -> None:
    answer = ask(engine)
    for rank in answer.ranks:
        assert sum(entry.num_bytes for entry in rank.ledger) == rank.peak.device_bytes
        assert rank.peak.allocated_bytes <= rank.peak.reserved_bytes <= rank.peak.device_bytes
    assert sum(rank.count for rank in answer.ranks) == 8


@pytest.mark.parametrize("engine", ENGINES)
@given(batch=st.integers(1, 6), seq_len=st.integers(1, 8))
@FEW
def test_more_data_is_never_less_memory(engine: str, batch: int, seq_len: int) -> None:
    small = asked_for(ask(engine, micro_batch=batch, seq_len=128 * seq_len))
    assert asked_for(ask(engine, micro_batch=batch + 1, seq_len=128 * seq_len)) >= small
    assert asked_for(ask(engine, micro_batch=batch, seq_len=128 * (seq_len + 1))) >= small


@pytest.mark.parametrize("engine", ENGINES)
def test_recomputation_saves_memory_where_activations_matter(engine: str) -> None:
    plain = allocated(ask(engine, micro_batch=8, seq_len=2048))
    assert allocated(ask(engine, micro_batch=8, seq_len=2048, recompute="full")) < plain


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


@pytest.mark.parametrize("engine", ["torchtitan", "megatron"])
def test_tensor_parallelism_divides_memory(engine: str) -> None:
    whole, half = allocated(ask(engine, tp=1)), allocated(ask(engine, tp=2))
    assert half < whole


@pytest.mark.parametrize("shards", ["optimizer", "optimizer+gradients", "everything"])
def test_each_zero_stage_holds_less_than_the_one_before(shards: str) -> None:
    order = ["nothing", "optimizer", "optimizer+gradients", "everything"]

    def states(name: str) -> int:
        alone = {"gpus": "1xh200-sxm-141gb"} if name == "nothing" else {}  # on several cards DeepSpeed shares something
        ledger = ask("deepspeed", shards=name, **alone).fullest.ledger
        return sum(entry.num_bytes for entry in ledger if entry.category in ("weights", "gradients", "optimizer"))

    assert states(shards) <= states(order[order.index(shards) - 1])


def test_deepspeed_without_zero_keeps_every_state_on_every_card() -> None:
    whole, shared = (ask("deepspeed", zero=stage).fullest.peak.allocated_bytes for stage in (0, 1))
    assert whole > shared


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"tp": 3}, "tp=3"),
        ({"tp": 6, "gpus": "6xh100"}, "tp=6"),
        ({"micro_batch": 0}, "micro-batch=0"),
        ({"seq_len": 2**60}, "seq-len"),
        ({"no_such_option": 1}, "no-such-option"),
    ],
)
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


@pytest.mark.parametrize(
    ("engine", "options"),
    [
        ("torchtitan", {"attention": "eager"}),
        ("torchtitan", {"offload_activations": True}),
        ("megatron", {"optimizer_kernel": "loop"}),
        ("megatron", {"objective": "kto"}),
        ("pytorch", {"reshard_after_forward": False}),
        ("deepspeed", {"offload_parameters": "cpu", "shards": "optimizer"}),
        ("torchtitan", {"etp": 2}),
        ("torchtitan", {"decoder_seq_len": 128}),
        ("torchtitan", {"images": 4}),
        ("torchtitan", {"precision": "fp8", "gpus": "8xa100-sxm4-80gb"}),
    ],
)
def test_a_choice_that_an_engine_would_ignore_is_refused(engine: str, options: dict[str, Any]) -> None:
    with pytest.raises(InvalidSpec) as caught:
        ask(engine, **options)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("option", ["etp", "shard_group", "first_stage_layers", "last_stage_layers"])
def test_nothing_is_no_number_of_ranks_or_layers(option: str) -> None:
    with pytest.raises(InvalidSpec, match=f"{option.replace('_', '-')}=0 must be a whole number from 1"):
        ask("megatron", **{option: 0})


@pytest.mark.parametrize("engine", ["megatron", "torchtitan", "torchtune", "litgpt"])
def test_trainers_of_language_models_refuse_what_predicts_no_tokens(engine: str) -> None:
    with pytest.raises(InvalidSpec, match="predicts no tokens; use --engine pytorch"):
        vramcast.train("vit-large-patch16-224", gpus="2xh100", engine=engine)
