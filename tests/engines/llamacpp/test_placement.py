"""Layers and weights on cards and host."""

from __future__ import annotations

import pytest

from tests.engines.llamacpp._jobs import context
from vramcast.engines.llamacpp.context import card_bytes, weights_on
from vramcast.errors import InvalidSpec


def test_layers_go_to_cards_from_the_last_one_back() -> None:
    layers = context("llama-3.1-8b", gpu_layers=10, build=7000).placement.layers
    assert layers == (1,) * 22 + (0,) * 10


def test_equal_cards_share_layers_and_the_head() -> None:
    """95 parts of Qwen3-235B-A22B over two cards: 48 layers, then 46 and the head."""
    found = context("qwen3-235b-a22b", cards=2).placement
    assert (found.layers.count(0), found.layers.count(1), found.output) == (48, 46, 1)


def test_shares_divide_unequal_cards() -> None:
    found = context("llama-3.1-8b", cards=2, tensor_split="3,1").placement
    assert found.layers.count(0) == 25
    assert context("llama-3.1-8b", cards=2, split_mode="none").placement.layers.count(0) == 32


def test_every_weight_is_somewhere_exactly_once_and_a_tied_head_twice() -> None:
    for model, more in (("qwen3-8b", 0), ("llama-3.2-1b", 1)):
        found = context(model, cards=2, gpu_layers=99)
        held = sum(len(kept) for device in range(3) for kept in weights_on(found, device).values())
        assert held == len(found.weights) + more
        assert "token_embd" in weights_on(found, 2)


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
