"""Models from plain numbers add up."""

import pytest

from tests.cli.asking import vramcast
from vramcast.errors import InvalidSpec
from vramcast.sources.numbers import model_from_numbers


@pytest.mark.parametrize("numbers", [
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
])
def test_numbers_that_cannot_add_up_are_refused(numbers: dict[str, object]) -> None:
    with pytest.raises(InvalidSpec) as caught:
        model_from_numbers(**numbers)  # type: ignore[arg-type]
    assert "\n" not in str(caught.value)


def test_the_first_question_of_all_is_answered() -> None:
    asked = ("--params", "100B", "--layers", "80", "--hidden", "10240", "--tp", "8")
    whole = vramcast("train", *asked, "--gpus", "8xh100")
    assert whole.returncode == 1 and "engine megatron" in whole.stdout and whole.stdout.startswith("does not fit")
    sharded = ("--engine", "megatron", "--recompute", "full", "--shards", "optimizer", "--pp", "4")
    assert vramcast("train", *asked, "--gpus", "64xh100", *sharded).returncode == 0
    assert "the fewest of each card that hold 100B parameters" in vramcast("train", *asked).stdout
