"""The static fraction that SGLang chooses by itself, release by release."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import vramcast
from vramcast.api import serve_job_of
from vramcast.catalogue.gpus import load_gpu
from vramcast.catalogue.models import load_model
from vramcast.domain.serving import ServeJob
from vramcast.engines.sglang.settings import (
    Capture,
    card_bytes,
    default_fraction,
    draft_mib,
    settings_of,
    vision_factor,
)
from vramcast.units import GIB

H100 = card_bytes(load_gpu("h100"))

PLAIN = Capture(chunk=8192, sequences=256, ranks=1, data_parallel=1, latent=False, draft=None)


def job(**options: Any) -> ServeJob:
    found = serve_job_of({"model": "qwen3-8b", "context": 4096} | options)
    assert isinstance(found, ServeJob)
    return found


@pytest.mark.parametrize(
    ("version", "ranks", "fraction"),
    [((0, 3), 1, 0.88), ((0, 3), 8, 0.83), ((0, 4, 3), 8, 0.81), ((0, 4, 6), 4, 0.85), ((0, 4, 6), 16, 0.79)],
)
def test_old_releases_go_by_the_ranks_alone(version: tuple[int, ...], ranks: int, fraction: float) -> None:
    assert default_fraction(version, H100, PLAIN._replace(ranks=ranks)) == fraction


@pytest.mark.parametrize(
    ("size", "ranks", "reserve_gib"), [(24 * GIB, 1, 2.9), (80 * GIB, 8, 13.5), (141 * GIB, 8, 16), (180 * GIB, 8, 32)]
)
def test_releases_from_0_4_8_go_by_the_card(size: int, ranks: int, reserve_gib: float) -> None:
    expected = 1 - reserve_gib * GIB / size
    assert default_fraction((0, 4, 9), size, PLAIN._replace(ranks=ranks)) == pytest.approx(expected, abs=6e-4)


def test_releases_from_0_5_3_go_by_the_prefill_chunk_and_the_graphs() -> None:
    # 512 + 1.5 x 8192 + 1024 / 8 + 2 x 256 MiB of 81559
    assert default_fraction((0, 5, 6), H100, PLAIN) == pytest.approx(1 - 13440 / 81559, abs=6e-4)


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


@pytest.mark.parametrize(
    ("version", "size", "fraction"),
    [
        ((0, 4, 5), 141 * GIB, 0.88), ((0, 4, 6), 141 * GIB, 1 - 13 / 141), ((0, 4, 7), 141 * GIB, 1 - 18 / 141),
        ((0, 4, 7), 180 * GIB, 0.79), ((0, 4, 8), 141 * GIB, 1 - 12.5 / 141),
    ],
)
def test_cards_above_80_gib_in_the_releases_of_0_4(version: tuple[int, ...], size: int, fraction: float) -> None:
    assert default_fraction(version, size, PLAIN) == pytest.approx(fraction, abs=6e-4)


@pytest.mark.parametrize(
    ("version", "chunk", "graphs", "graphs_wide"),
    [
        ("0.4.0", 2048, 8, 8), ("0.4.7", 2048, 8, 80), ("0.5.2", 2048, 8, 80), ("0.5.3", 2048, 16, 80),
        ("0.5.5", 2048, 24, 80), ("0.5.12", 2048, 24, 80), ("0.5.20", 4096, 48, 160),
    ],
)
def test_steps_and_graphs_of_a_24_gb_card_by_release(version: str, chunk: int, graphs: int, graphs_wide: int) -> None:
    one, four = (
        settings_of(job(gpus=f"{count}xrtx-4090", engine=f"sglang@{version}")) for count in (1, 4)
    )
    assert (one.chunk, one.graph_sequences, four.graph_sequences) == (chunk, graphs, graphs_wide)


def test_a_release_without_its_patch_is_its_last() -> None:
    series, last = (vramcast.serve("qwen3-8b", gpus="h100", engine=f"sglang@{v}") for v in ("0.5", "0.5.23"))
    assert series.startup == last.startup


def test_requests_that_may_run_lower_the_reserve_since_0_5_22_alone() -> None:
    def fraction(version: str, **options: Any) -> float:
        return settings_of(job(gpus="4xrtx-4090", engine=f"sglang@{version}", **options)).fraction

    assert fraction("0.5.21", **{"max-sequences": 8}) == fraction("0.5.21")
    assert fraction("0.5.22", **{"max-sequences": 8}) > fraction("0.5.22")
    assert fraction("0.5.9", graphs=False) == fraction("0.5.9")
    assert fraction("0.5.15", graphs=False) > fraction("0.5.15")


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
