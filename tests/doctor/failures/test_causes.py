"""Causes by mechanism: messages made up with figures worked out by hand, none of them a row of the truth."""

from typing import Any

import pytest
from msgspec.structs import replace

from tests.doctor.failures._statements import FRAGMENTED, sizes, stated
from vramcast.doctor.failures.case import Facts, case_of
from vramcast.doctor.failures.causes import PRIOR, RULES, Judged, judge
from vramcast.domain.failure import Cause

CUDNN_HANDLE = "Could not create cudnn handle: CUDNN_STATUS_ALLOC_FAILED"
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


@pytest.mark.parametrize(("statement", "key", "value"), [
    (FRAGMENTED, "why.pieces_enough", "11.58 GiB"),  # together: 10.34 + 1.24, less than the 14.21 reserved
    ({"family": "jax", "wording": "hbm"} | sizes(needed=20.97, limit=15.48), "why.over_limit", "5.49 GiB"),
    ({"family": "tensorflow"} | sizes(tried=2.38, limit=13.68, allocated=13.21), "why.pool_full", "13.68 GiB"),
    # missing: 31.25 - 14.41 - 2.13
    (sizes(tried=31.25, total=79.11, free=14.41, allocated=61.20, unallocated=2.13), "why.short", "14.71 GiB"),
    # in a container, and cut off before PyTorch's own figures: the one process listed is this one
    (sizes(tried=4.93, total=79.14, free=3.79, other_processes=75.33), "why.process_fills", "75.33 GiB"),
    ({"family": "cuda", "text": DRIVER}, "why.no_figures", ""),
    (sizes(tried=0.1, total=24, free=9, allocated=13, reserved=14), "why.second", ""),
])
def test_the_reason_is_said_with_its_figures(statement: dict[str, Any], key: str, value: str) -> None:
    (remark,) = (remark for remark in judged(**statement).why if remark.key == key)
    assert not value or value in remark.values.values()


def test_every_cause_has_a_prior_and_evidence() -> None:
    assert set(PRIOR) == set(Cause)
    assert {rule.cause for rule in RULES} == set(Cause)


@pytest.mark.parametrize(("allocated", "fraction", "cause"), [
    (21.32, None, T), (20.5, None, M), (21.32, 0.95, M), (21.32, 0.8, T),
])
def test_what_passes_an_engines_share_by_far_is_the_job_itself(
    allocated: float, fraction: float | None, cause: Cause
) -> None:
    """Weights in 32 bits fill 22 GB before there is a pool: a lower share would not help."""
    figures = sizes(tried=0.51, total=21.67, free=0.004, allocated=allocated, unallocated=0.001)
    assert judged(facts=Facts(words=frozenset({"vllm"}), fraction=fraction), **figures).cause is cause
