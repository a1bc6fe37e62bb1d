"""Layers and weights on cards and host."""

import pytest

from tests.engines.llamacpp._jobs import context
from vramcast.engines.llamacpp.context import card_bytes, weights_on
from vramcast.errors import InvalidSpec


def test_shares_divide_unequal_cards() -> None:
    found = context("llama-3.1-8b", cards=2, tensor_split="3,1").placement
    assert found.layers.count(0) == 25
    assert context("llama-3.1-8b", cards=2, split_mode="none").placement.layers.count(0) == 32


def test_experts_can_stay_on_the_host_by_layer_or_by_pattern() -> None:
    some = context("qwen3-30b-a3b", n_cpu_moe=10)
    assert {weight.layer for weight in weights_on(some, 1)["ffn_up_exps"]} == set(range(10))
    every = context("qwen3-30b-a3b", override_tensor="ffn_.*_exps=CPU")
    assert "ffn_up_exps" not in weights_on(every, 0) and "attn_q" in weights_on(every, 0)
    assert card_bytes(every, 0) < card_bytes(some, 0)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"override_tensor": "exps"}, "PATTERN=CPU"), ({"override_tensor": "exps=CUDA4"}, "CUDA0"),
        ({"override_tensor": "(=CPU"}, "override-tensor"), ({"tensor_split": "a,b"}, "such as 3,1"),
        ({"tensor_split": "1,1,1"}, "up to 1"),
    ],
)
def test_wrong_placements_get_one_sentence(options: dict[str, str], message: str) -> None:
    with pytest.raises(InvalidSpec, match=message):
        context("qwen3-30b-a3b", **options)
