"""Models from plain numbers add up."""

from __future__ import annotations

import pytest

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


def test_what_was_assumed_is_noted() -> None:
    notes = " ".join(model_from_numbers(params="7B", layers=32, hidden=4096).notes)
    assert all(word in notes for word in ("feed-forward width", "32 heads", "vocabulary of 32000"))
