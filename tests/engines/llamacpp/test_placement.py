"""Layers and weights on cards and host."""

import re
from typing import Any

import pytest

from tests.engines.llamacpp._jobs import context, job
from vramcast.engines.llamacpp.context import Context, card_bytes, weights_on
from vramcast.engines.llamacpp.deploy import fitted
from vramcast.errors import InvalidSpec
from vramcast.estimate.serving import answer


def test_shares_divide_unequal_cards() -> None:
    found = context("llama-3.1-8b", cards=2, tensor_split="3,1").placement
    assert found.layers.count(0) == 25
    assert context("llama-3.1-8b", cards=2, split_mode="none").placement.layers.count(0) == 32


def test_batches_overlap_on_several_cards_only_where_every_layer_lies_on_them() -> None:
    some, every = (context("llama-3.1-8b", cards=2, build=9000, gpu_layers=layers) for layers in (20, 33))
    assert every.pipelined and not some.pipelined
    assert max(some.reserved.cards) < 2 * max(every.reserved.cards)


def test_experts_can_stay_on_the_host_by_layer_or_by_pattern() -> None:
    some = context("qwen3-30b-a3b", n_cpu_moe=10)
    assert {weight.layer for weight in weights_on(some, 1)["ffn_up_exps"]} == set(range(10))
    every = context("qwen3-30b-a3b", override_tensor="ffn_.*_exps=CPU")
    assert "ffn_up_exps" not in weights_on(every, 0) and "attn_q" in weights_on(every, 0)
    assert card_bytes(every, 0) < card_bytes(some, 0)


@pytest.mark.parametrize(("options", "message"), [
    ({"override_tensor": "exps"}, "PATTERN=CPU"), ({"override_tensor": "exps=CUDA4"}, "CUDA0"),
    ({"override_tensor": "(=CPU"}, "override-tensor"), ({"tensor_split": "a,b"}, "such as 3,1"),
    ({"tensor_split": "1,1,1"}, "up to 1"),
])
def test_wrong_placements_get_one_sentence(options: dict[str, str], message: str) -> None:
    with pytest.raises(InvalidSpec, match=message):
        context("qwen3-30b-a3b", **options)


@pytest.mark.parametrize(("model", "more", "said"), [
    ("qwen3-32b", {"context": None}, r"where -c is not given: a context of [\d,]+ tokens"),
    ("qwen3-32b", {"context": 40960}, "of 65 layers are on the cards, the head counted"),
    ("gpt-oss-120b", {"context": None}, "a context of 4,096 tokens, .* experts of .* of 36 layers are on the host"),
    ("gpt-oss-120b", {"context": 8192}, "experts of .* of 36 layers are on the host"),
    ("llama-3.1-405b", {"context": 8192}, "of 127 layers are on the cards"),
    ("qwen3-8b", {"context": 8192}, None), ("qwen3-32b", {"context": 40960, "build": 7000}, None),
    ("qwen3-32b", {"context": 40960, "fit": "context"}, None),
    ("qwen3-32b", {"context": 40960, "gpu_layers": 65}, None),
    ("gpt-oss-120b", {"context": 8192, "fit": "off"}, None),
    ("gpt-oss-120b", {"context": 8192, "cpu_moe": True}, None),
])
def test_what_nobody_places_is_fitted_to_the_cards(model: str, more: dict[str, Any], said: str | None) -> None:
    """Since --fit (pull request 16653) a gibibyte is left free; what is asked for stays."""
    asked = job(model, weights="q4_k_m", **more)
    found, moved = fitted(asked)
    if said is None:
        assert (found, moved) == (asked, ())
        return
    assert re.search(said, ", ".join(moved))
    room = asked.cluster.gpu.free_bytes - (asked.cluster.gpu.context_bytes or 0) - (1 << 30)
    assert card_bytes(Context(found), 0) <= room < card_bytes(Context(asked), 0)
    answered = answer(asked, with_changes=False)
    assert answered.fits and set(moved) <= {*answered.cautions} and "gpu_layers" not in answered.question["plan"]
    assert answered.question["requests"]["context"] == found.context  # which asked again is the same
