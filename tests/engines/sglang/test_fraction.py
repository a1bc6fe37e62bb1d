"""The static fraction that SGLang chooses by itself, release by release."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vramcast.catalogue.gpus import load_gpu
from vramcast.catalogue.models import load_model
from vramcast.engines.sglang.settings import (
    Capture,
    card_bytes,
    default_fraction,
    draft_mib,
    vision_factor,
)
from vramcast.units import GIB

H100 = card_bytes(load_gpu("h100"))

PLAIN = Capture(chunk=8192, sequences=256, ranks=1, data_parallel=1, latent=False, draft=None)


def test_a_draft_is_set_aside_until_it_is_counted() -> None:
    drafted = PLAIN._replace(draft="eagle")
    assert default_fraction((0, 5, 6), H100, drafted) < default_fraction((0, 5, 6), H100, PLAIN)
    counted = default_fraction((0, 5, 23), H100, PLAIN)
    assert default_fraction((0, 5, 23), H100, drafted) == counted
    assert default_fraction((0, 5, 6), H100, PLAIN._replace(draft="ngram")) > default_fraction((0, 5, 6), H100, drafted)


@pytest.mark.parametrize(
    ("version", "mib"), [((0, 5, 1), 2048), ((0, 5, 9), 2048), ((0, 5, 10), 4096), ((0, 5, 13), 4096), ((0, 5, 14), 0)]
)
def test_what_is_set_aside_for_a_draft_by_release(version: tuple[int, ...], mib: int) -> None:
    assert draft_mib(version, "eagle") == mib
    assert draft_mib(version, "ngram") == draft_mib(version, None) == 0


@pytest.mark.parametrize(("version", "size", "fraction"), [
    ((0, 4, 5), 141 * GIB, 0.88), ((0, 4, 6), 141 * GIB, 1 - 13 / 141), ((0, 4, 7), 141 * GIB, 1 - 18 / 141),
    ((0, 4, 7), 180 * GIB, 0.79), ((0, 4, 8), 141 * GIB, 1 - 12.5 / 141),
])
def test_cards_above_80_gib_in_the_releases_of_0_4(version: tuple[int, ...], size: int, fraction: float) -> None:
    assert default_fraction(version, size, PLAIN) == pytest.approx(fraction, abs=6e-4)


def test_networks_that_read_images_get_less() -> None:
    model = load_model("gemma-3-27b")
    assert vision_factor(model, (0, 4, 5), given=True) == 0.9
    assert vision_factor(model, (0, 5, 6), given=True) == 1.0
    assert 0.95 * 0.8 <= vision_factor(model, (0, 5, 6), given=False) < 0.95 * 1.05
    assert vision_factor(load_model("llama-3.1-8b"), (0, 4, 5), given=False) == 1.0


@given(
    version=st.sampled_from([(0, 3), (0, 4, 3), (0, 4, 7), (0, 5, 2), (0, 5, 3), (0, 5, 10), (0, 5, 23)]),
    gib=st.integers(8, 300), ranks=st.sampled_from([1, 2, 4, 8, 16]), chunk=st.integers(0, 1 << 20),
    sequences=st.integers(0, 4096), copies=st.sampled_from([1, 2, 8]), latent=st.booleans(),
    draft=st.sampled_from([None, "eagle", "model", "ngram"]),
)
def test_a_fraction_is_always_one(
    version: tuple[int, ...], gib: int, ranks: int, chunk: int, sequences: int, copies: int, latent: bool,
    draft: str | None,
) -> None:
    capture = Capture(chunk, sequences, ranks, copies, latent, draft)
    assert 0.05 <= default_fraction(version, gib * GIB, capture) < 1
