"""Models from plain numbers add up."""

from __future__ import annotations

import pytest

from tests.cli.asking import vramcast
from vramcast.blocks.parameters import count_parameters
from vramcast.errors import InvalidSpec
from vramcast.sources.numbers import model_from_numbers


@pytest.mark.parametrize(("params", "layers", "hidden"), [("100B", 96, 12288), ("7B", 32, 4096), ("350M", 24, 1024)])
def test_the_feed_forward_width_closes_the_sum(params: str, layers: int, hidden: int) -> None:
    total = count_parameters(model_from_numbers(params=params, layers=layers, hidden=hidden)).total
    wanted = {"100B": 100e9, "7B": 7e9, "350M": 350e6}[params]
    assert abs(total / wanted - 1) < 0.005


@pytest.mark.parametrize(
    "numbers",
    [
        {"params": "1B"},
        {"params": "many", "layers": 2, "hidden": 64},
        {"params": "1M", "layers": 96, "hidden": 12288},
        {"params": "7B", "layers": 32, "hidden": 4096, "heads": 33},
        {"params": "7B", "layers": 32, "hidden": 4096, "heads": 32, "kv_heads": 5},
        {"params": "7B", "layers": 32, "hidden": 10**9},
        {"params": "7B", "layers": 32, "hidden": 4096, "ffn": 100},
        {"params": "7B", "layers": 32, "hidden": 4096, "heads": -32},
        {"params": "7B", "layers": 32, "hidden": 4096, "heads": 32, "kv_heads": -8},
        {"params": "7B", "layers": 32, "hidden": 4096, "vocab": 0},
        {"params": "9" * 30, "layers": 32, "hidden": 4096},
    ],
)
def test_numbers_that_cannot_add_up_are_refused(numbers: dict[str, object]) -> None:
    with pytest.raises(InvalidSpec) as caught:
        model_from_numbers(**numbers)  # type: ignore[arg-type]
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("hidden", "tp"), [(10240, 8), (5000, 4), (4096, 2), (6144, 16), (8192, 64), (12288, 12), (2304, 3)]
)
def test_widths_that_are_not_given_are_what_ranks_divide(hidden: int, tp: int) -> None:
    model = model_from_numbers(params="20B", layers=24, hidden=hidden, divisor=tp)
    layer = model.main.runs[0].layer
    assert layer.mixer.num_heads % tp == 0 and hidden % layer.mixer.num_heads == 0
    assert layer.channel.width % tp == 0 and layer.channel.width % 8 == 0 and model.vocab % tp == 0
    assert count_parameters(model).total == pytest.approx(20e9, rel=0.01)
    assert any(f"feed-forward width of {layer.channel.width}, a multiple of" in note for note in model.notes)


def test_the_first_question_of_all_is_answered() -> None:
    asked = ("--params", "100B", "--layers", "80", "--hidden", "10240", "--tp", "8")
    whole = vramcast("train", *asked, "--gpus", "8xh100")
    assert whole.returncode == 1 and "engine megatron" in whole.stdout and whole.stdout.startswith("does not fit")
    sharded = ("--engine", "megatron", "--recompute", "full", "--shards", "optimizer", "--pp", "4")
    assert vramcast("train", *asked, "--gpus", "64xh100", *sharded).returncode == 0
    assert "the fewest of each card that hold 100B parameters" in vramcast("train", *asked).stdout
