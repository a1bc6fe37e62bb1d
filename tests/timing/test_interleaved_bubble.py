"""How long an interleaved pipeline waits, against a schedule played slot by slot."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vramcast.timing.composition import Pipeline, step


def pipeline(*, stages: int, chunks: int, micro_batches: int, rounds: int = 1) -> Pipeline:
    """Equal stages; one micro-batch takes a second forward and two backward on each."""
    return Pipeline(
        forward=1.0 * stages, backward=2.0 * stages, slowest_forward=1.0, slowest_backward=2.0,
        micro_batches=micro_batches, stages=stages, virtual_stages=chunks, rounds=rounds,
    )


def total_s(**sizes: int) -> float:
    return float(step(pipeline(**sizes), schedule="interleaved").total)


@given(stages=st.integers(2, 16), chunks=st.integers(1, 8))
def test_one_micro_batch_passes_all_stages_one_after_the_other(stages: int, chunks: int) -> None:
    assert total_s(stages=stages, chunks=chunks, micro_batches=1) == pytest.approx(3.0 * stages)


@given(stages=st.integers(2, 16), chunks=st.integers(1, 8), times=st.integers(1, 4))
def test_with_enough_micro_batches_the_bubble_is_a_share_of_what_it_was(stages: int, chunks: int, times: int) -> None:
    micro_batches = stages * times
    bubble = total_s(stages=stages, chunks=chunks, micro_batches=micro_batches) - 3.0 * micro_batches
    assert bubble == pytest.approx(3.0 * (stages - 1) / chunks)


@given(stages=st.integers(2, 12), chunks=st.integers(1, 6), micro_batches=st.integers(1, 12))
def test_no_stage_ends_before_the_last_chunk_of_the_last_micro_batch_can(
    stages: int, chunks: int, micro_batches: int
) -> None:
    """Forward alone, played: groups of `stages` micro-batches through one chunk after the other."""
    free = [0] * stages
    done: dict[tuple[int, int], int] = {}
    order = [
        (chunk, batch)
        for start in range(0, micro_batches, stages)
        for chunk in range(chunks)
        for batch in range(start, min(start + stages, micro_batches))
    ]
    for chunk, batch in order:
        for stage in range(stages):
            before = done.get((chunk * stages + stage - 1, batch), 0)
            free[stage] = done[chunk * stages + stage, batch] = max(free[stage], before) + 1
    played = max(free) / chunks
    if micro_batches <= stages or micro_batches % stages == 0:
        assert total_s(stages=stages, chunks=chunks, micro_batches=micro_batches) == pytest.approx(3.0 * played)


def test_a_pipeline_that_fills_twice_waits_twice() -> None:
    once = total_s(stages=4, chunks=2, micro_batches=8)
    assert total_s(stages=4, chunks=2, micro_batches=16, rounds=2) == pytest.approx(2 * once)
