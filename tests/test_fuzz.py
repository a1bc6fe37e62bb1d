"""A seeded sample of random questions, each answer examined; `python -m tools.fuzz` asks as many as one likes."""

from random import Random
from typing import Final

import pytest

from tools.fuzz.ask import examined
from tools.fuzz.draw import NAMES_OF_FILES, TABLES, value_of

SEED: Final = 5
PLACES: Final = {"train": (0, 1, 2, 4, 5, 6), "serve": range(7), "layers": range(3), "plan serve": (0,)}
"""Command -> which questions are asked here: some seconds together. Searches for training have tests of their own."""


@pytest.mark.parametrize(
    ("command", "place"), [(command, place) for command, places in PLACES.items() for place in places]
)
def test_whatever_is_asked_is_answered_as_it_would_be_directly_or_refused_in_a_sentence(
    command: str, place: int
) -> None:
    if command.startswith("plan"):
        pytest.importorskip("numpy")
    for found in examined(Random(f"{SEED}:{command}:{place}"), command, every_form=place % 4 == 0):
        assert not found.faults, found.question


@pytest.mark.parametrize("command", TABLES)
def test_every_option_that_names_no_file_is_drawn(command: str) -> None:
    random = Random(SEED)
    engine = "vllm" if "serve" in command else "megatron"
    for name, option in TABLES[command].items():
        if name not in NAMES_OF_FILES:
            assert value_of(random, name, option, {"engine": engine, "model": "llama-3.1-8b"}) is not None, name
