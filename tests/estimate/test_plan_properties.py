"""What must hold for every plan, whatever the engine."""

from typing import Any

import pytest

import vramcast
import vramcast.errors
from vramcast.domain.answer import Answer
from vramcast.errors import InvalidSpec


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
