"""Causes by mechanism: messages made up with figures worked out by hand, none of them a row of the truth."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from tests.doctor.failures._statements import FRAGMENTED, sizes, stated
from vramcast.doctor.failures.case import Facts, Predicted, case_of
from vramcast.doctor.failures.causes import PRIOR, RULES, Judged, judge
from vramcast.domain.answer import Fit
from vramcast.domain.failure import Cause
from vramcast.units import GIB

CUDNN_HANDLE = "Could not create cudnn handle: CUDNN_STATUS_ALLOC_FAILED"
KILLED = "DataLoader worker (pid 7) is killed by signal: Killed."
PROCESSES = sizes(total=24, free=0.5, process=18, allocated=16, unallocated=1.5)
HALF = {"tried_bytes": 40 << 20} | sizes(total=24, free=11, process=13, allocated=11.9, unallocated=0.08)
FULL = sizes(tried=1.5, total=79.11, free=0.88, allocated=75.12, unallocated=1.03)
DRIVER = "CUDA error: out of memory"


def judged(family: str = "torch-cuda", text: str = "", facts: Facts | None = None, wording: str = "test",
           **numbers: Any) -> Judged:
    return judge(case_of(replace(stated(family, text, **numbers), wording=wording), facts or Facts()))


def during(*phases: str, words: tuple[str, ...] = ()) -> Facts:
    return Facts(phases=frozenset(phases), words=frozenset(words))


T, F, X, M, P, C, H, B = (
    Cause.TOO_BIG, Cause.FRAGMENTED, Cause.OTHER_PROCESS, Cause.MEMORY_FRACTION, Cause.PRIVATE_POOLS,
    Cause.CONTEXT_AND_LIBRARIES, Cause.HOST_MEMORY, Cause.BUG,
)


@pytest.mark.parametrize(("statement", "cause"), [
    ({"tried_bytes": 9 * GIB} | PROCESSES, X),  # it would not fit without the others either
    (HALF | sizes(free=10.5, process=13.5, allocated=12.3), M),  # 12.38: 51.6 % is no round share
    (sizes(tried=0.02, total=24, free=9, allocated=8, reserved=12), T),
])
def test_what_does_not_follow_is_not_said(statement: dict[str, Any], cause: Cause) -> None:
    assert judged(**statement).cause is not cause


@pytest.mark.parametrize(("statement", "cause", "low", "high"), [
    (FRAGMENTED, F, 0.8, 1),
    (sizes(tried=30, total=24, free=2, allocated=10, reserved=20), T, 0.9, 1),
    ({"family": "jax", "wording": "hbm"} | sizes(used=30, limit=8), T, 0.9, 1),
    ({"family": "jax", "wording": "hbm"} | sizes(needed=20.97, limit=15.48), T, 0.9, 1),
    ({"family": "tensorflow", "wording": "bfc-ran-out"} | sizes(tried=2.38, limit=13.68, allocated=13.21), T, 0.9, 1),
    ({"family": "vllm", "wording": "preempted"}, T, 0.7, 1),
    (sizes(tried=2, total=24, free=9, allocated=8, reserved=12), T, 0, 0.6),  # large, and not served by free memory
    ({"family": "cuda", "text": DRIVER}, None, 0, 0.5),
    (sizes(tried=0.1, total=24, free=9, allocated=13, reserved=14), None, 0, 0.6),
    (sizes(tried=0.1, total=24, free=9, allocated=0.01, reserved=0.02), None, 0, 0.7),
    ({"family": "memory-summary", "num_ooms": 1} | sizes(allocated=10.34, reserved=14.21), F, 0, 0.8),
])
def test_it_is_as_sure_as_the_figures_are(
    statement: dict[str, Any], cause: Cause | None, low: float, high: float
) -> None:
    found = judged(**statement)
    assert low < found.confidence < high
    assert found.cause is cause or cause is None
    assert sum(found.likely.values()) == pytest.approx(1)


@pytest.mark.parametrize(("statement", "key", "value"), [
    (FRAGMENTED, "why.pieces_enough", "11.58 GiB"),  # together: 10.34 + 1.24, less than the 14.21 reserved
    ({"family": "jax", "wording": "hbm"} | sizes(needed=20.97, limit=15.48), "why.over_limit", "5.49 GiB"),
    ({"family": "tensorflow"} | sizes(tried=2.38, limit=13.68, allocated=13.21), "why.pool_full", "13.68 GiB"),
    # missing: 31.25 - 14.41 - 2.13
    (sizes(tried=31.25, total=79.11, free=14.41, allocated=61.20, unallocated=2.13), "why.short", "14.71 GiB"),
    ({"family": "cuda", "text": DRIVER}, "why.no_figures", ""),
    (sizes(tried=0.1, total=24, free=9, allocated=13, reserved=14), "why.second", ""),
])
def test_the_reason_is_said_with_its_figures(statement: dict[str, Any], key: str, value: str) -> None:
    (remark,) = (remark for remark in judged(**statement).why if remark.key == key)
    assert not value or value in remark.values.values()


def test_live_memory_that_grows_from_failure_to_failure_is_a_leak() -> None:
    case = case_of(stated(**sizes(tried=0.1, total=24, free=0.01, allocated=16, reserved=17)), Facts(), 5 * GIB)
    assert judge(case).cause is Cause.LEAK


def test_a_job_that_is_predicted_to_fit_makes_too_big_less_likely() -> None:
    case = case_of(stated(**sizes(tried=0.1, total=24, free=0.01, allocated=20, reserved=23)))
    fits = Predicted(Fit.FITS, 10 * GIB, 9 * GIB, 10 * GIB, 24 * GIB)
    jobs = (None, *(fits._replace(verdict=fit) for fit in Fit))
    likely = [judge(case._replace(job=job)).likely[Cause.TOO_BIG] for job in jobs]
    assert likely[1] == likely[2] < likely[0] == likely[3] < likely[4]  # what may run out says nothing either way


def test_every_cause_has_a_prior_and_evidence() -> None:
    assert set(PRIOR) == set(Cause)
    assert {rule.cause for rule in RULES} == set(Cause)
