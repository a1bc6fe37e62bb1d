"""The largest that fits, and what would make a run fit."""

import pytest

from vramcast.question.tracing import build_trace
from vramcast.tracing.changes import candidates
from vramcast.tracing.finding import MOST_TRACES, find_largest
from vramcast.tracing.run import answered, trace_job

STACK = "tests.tracing._modules:Stack"


def job_of(**options: object):
    return build_trace(STACK, {"gpu": "t4", "capacity": "700MiB"} | options)


@pytest.mark.parametrize("headroom", [None, 0.0])
def test_the_largest_batch_leaves_what_is_to_stay_free_and_its_successor_does_not(headroom: float | None) -> None:
    found = find_largest(job_of(input=("Bx256",), find="batch"), "batch", headroom).answer
    assert found.found is not None and found.fits
    best = found.found.value
    assert isinstance(best, int)
    step = 128 if best >= 1 << 14 else 64  # seven binary digits
    assert len(found.found.tried) == found.found.num_tried <= MOST_TRACES
    assert trace_job(job_of(input=("Bx256",), batch=best, steps=2)).answer.leaves(headroom)
    assert not trace_job(job_of(input=("Bx256",), batch=best + step, steps=2)).answer.leaves(headroom)
    assert any(f"steps of {step}" in text for text in found.assumptions)
    assert found.question["batch"] == best


def test_a_batch_is_found_from_few_traces() -> None:
    found = find_largest(job_of(input=("Bx64x256",), find="batch"), "batch", headroom=0.0).answer
    assert found.found is not None and isinstance(found.found.value, int)
    assert found.found.nearest_failing is not None
    assert found.found.nearest_failing.what == f"--batch {found.found.value + 2}"  # beyond 255 in steps of 2
    assert found.found.num_tried <= 10


def test_the_longest_sequence_is_a_multiple_of_64() -> None:
    found = find_largest(job_of(input=("2xSx256",), find="seq-len"), "seq-len").answer.found
    assert found is not None and isinstance(found.value, int)
    assert found.value % 64 == 0
    assert found.nearest_failing is not None
    assert found.nearest_failing.what == f"--seq-len {found.value + 64}"


def test_where_nothing_fits_the_smallest_is_said() -> None:
    found = find_largest(job_of(input=("Bx256",), find="batch", capacity="170MiB"), "batch").answer
    assert found.found is not None and found.found.what is None
    assert not found.fits
    assert found.found.nearest_failing is not None and found.found.nearest_failing.what == "--batch 1"


def test_every_change_offered_needs_what_a_trace_of_it_says() -> None:
    job = job_of(input=("40000x256",))
    answer = answered(job).answer
    assert not answer.fits
    changes = {change.change: change for change in answer.changes}
    assert "--amp fp16" in changes and "--checkpoint blocks" in changes
    for words, fields in (("--amp fp16", {"amp": "fp16"}), ("--checkpoint blocks", {"checkpoint": ("blocks",)})):
        again = trace_job(job_of(input=("40000x256",), steps=2, **fields)).answer
        assert (changes[words].device_bytes, changes[words].fits) == (again.fullest.needed_bytes, again.fits)
    assert all(change.device_bytes < answer.fullest.needed_bytes for change in answer.changes)
    fitting = [change.fits for change in answer.changes]
    assert fitting == sorted(fitting, reverse=True)


@pytest.mark.parametrize(("gpu", "dtype"), [("t4", "fp16"), ("v100-sxm2-32gb", "fp16"), ("a100-sxm-80gb", "bf16")])
def test_autocast_is_offered_in_the_type_that_the_card_computes_in(gpu: str, dtype: str) -> None:
    job = job_of(input=("8x256",), gpu=gpu, steps=1)
    offered = [one.words for one in candidates(job, trace_job(job).answer) if "amp" in one.fields]
    assert offered == [f"--amp {dtype}"]
