"""The split that is found is the best there is, and a plan made of it is faster and fits."""

from itertools import combinations

from hypothesis import given, settings
from hypothesis import strategies as st

from vramcast.api import job_of
from vramcast.domain.job import Job
from vramcast.estimate.training import answer
from vramcast.search.training.balance import Piece, balanced, best_split


def slowest(split: tuple[int, ...], seconds: dict[Piece, float]) -> float | None:
    """Of every stage the seconds, None where one does not fit."""
    start, found = 0, []
    for stage, layers in enumerate(split):
        piece = Piece(stage, start, layers)
        if piece not in seconds:
            return None
        found.append(seconds[piece])
        start += layers
    return max(found)


@settings(max_examples=60, deadline=None)
@given(st.data(), st.integers(1, 4), st.integers(0, 5))
def test_no_other_split_has_a_faster_slowest_stage(data: st.DataObject, stages: int, more: int) -> None:
    layers = stages + more
    times = data.draw(st.lists(st.integers(1, 9), min_size=layers, max_size=layers))
    ends = data.draw(st.lists(st.integers(0, 9), min_size=stages, max_size=stages))
    rooms = data.draw(st.lists(st.integers(1, layers), min_size=stages, max_size=stages))
    seconds = {
        Piece(stage, start, count): float(sum(times[start : start + count]) + ends[stage])
        for stage in range(stages) for start in range(layers) for count in range(1, rooms[stage] + 1)
    }
    everything = [
        tuple(b - a for a, b in zip((0, *cuts), (*cuts, layers), strict=True))
        for cuts in combinations(range(1, layers), stages - 1)
    ]
    best = min((found for split in everything if (found := slowest(split, seconds)) is not None), default=None)
    split = best_split(stages, layers, seconds.get)
    if best is None:
        assert split is None
    else:
        assert split is not None and slowest(split, seconds) == best


def pipeline(**options: str) -> Job:
    return job_of({
        "model": "llama-3.1-8b", "gpus": "8xh100-sxm-80gb", "engine": "megatron", "pp": "8", "seq-len": "4k",
        "grad-accum": "64", **options,
    })


def test_where_memory_is_short_the_proposal_still_fits() -> None:
    job = pipeline(gpus="8xa100-sxm4-40gb", **{"micro-batch": "2"})
    capacity = job.cluster.gpu.visible_bytes
    found = balanced(job, int(capacity * 0.9))
    assert found is not None
    assert answer(found).fullest.needed_bytes <= capacity
