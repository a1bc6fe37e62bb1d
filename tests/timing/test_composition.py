"""The arithmetic of a step: floats and arrays alike, and the bubbles that papers state."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vramcast.timing.composition import BUBBLES, EXCHANGES, Pipeline, Transfers, step

seconds = st.floats(0.0, 100.0)
shares = st.floats(0.0, 1.0)


def even(*, stages: int, micro_batches: int, chunks: int = 1) -> Pipeline:
    """Stages that all take one second forward and two backward."""
    return Pipeline(1.0 * stages, 2.0 * stages, 1.0, 2.0, micro_batches, stages, chunks)


def test_the_bubble_of_1f1b_is_a_pass_of_every_other_stage() -> None:
    assert BUBBLES["1f1b"](even(stages=8, micro_batches=32)) == pytest.approx(7 * 3.0)
    assert BUBBLES["gpipe"](even(stages=8, micro_batches=32)) == pytest.approx(7 * 3.0)


@settings(max_examples=50)
@given(rows=st.lists(st.tuples(seconds, seconds, st.integers(1, 64), st.integers(1, 16)), min_size=1, max_size=8),
       loss=shares, hidden=shares)
def test_arrays_give_what_floats_give(rows: list[tuple[float, float, int, int]], loss: float, hidden: float) -> None:
    np: Any = pytest.importorskip("numpy")
    columns = [np.array(column, np.float64) for column in zip(*rows, strict=True)]

    def totals(forward: Any, backward: Any, micro: Any, chunks: Any) -> list[Any]:
        pipeline = Pipeline(3 * forward, 3 * backward, forward, backward, micro, 3, chunks)
        moved = Transfers(forward, backward, backward, forward, micro, hidden, hidden, loss, 1)
        found = []
        for schedule in BUBBLES:
            for exchange in EXCHANGES.values():
                gradients, weights = exchange(moved)
                found.append(step(pipeline, schedule=schedule, gradients=gradients, weights=weights, spread=0.1).total)
        return found

    together = totals(*columns)
    for index, row in enumerate(rows):
        assert [values[index] for values in together] == pytest.approx(totals(*map(float, row)))


def chunked(*, stages: int, chunks: int, micro_batches: int) -> Pipeline:
    """Equal stages; one micro-batch takes a second forward and two backward on each."""
    return Pipeline(
        forward=1.0 * stages, backward=2.0 * stages, slowest_forward=1.0, slowest_backward=2.0,
        micro_batches=micro_batches, stages=stages, virtual_stages=chunks,
    )


def total_s(**sizes: int) -> float:
    return float(step(chunked(**sizes), schedule="interleaved").total)


@given(stages=st.integers(2, 16), chunks=st.integers(1, 8))
def test_one_micro_batch_passes_all_stages_one_after_the_other(stages: int, chunks: int) -> None:
    assert total_s(stages=stages, chunks=chunks, micro_batches=1) == pytest.approx(3.0 * stages)
