"""A seeded sample of random questions, each answer examined; `python -m tools.fuzz` asks as many as one likes."""

from random import Random
from typing import Final

import pytest

from tools.fuzz.ask import examined
from tools.fuzz.draw import NAMES_OF_FILES, TABLES, value_of

SEED: Final = 5
PLACES: Final[dict[str, int]] = {"train": 7, "serve": 7, "layers": 3, "plan serve": 1}
"""Command -> questions asked here: some seconds together. Searches for training plans have tests of their own."""


@pytest.mark.parametrize(
    ("command", "place"), [(command, place) for command, places in PLACES.items() for place in range(places)]
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
