"""Traced runs travel between processes."""

from __future__ import annotations

import msgspec
import pytest

from vramcast.domain.answer import Peak, RankAnswer
from vramcast.domain.snapshot import Frame
from vramcast.domain.traced import CoursePoint, TraceAnswer, Traced, TraceFailure, UnknownOperator, decode, encode
from vramcast.recordings.recorder import Recorder
from vramcast.units import MIB


def test_what_was_encoded_is_decoded() -> None:
    recorder = Recorder(capacity_bytes=64 * MIB)
    recorder.free(recorder.allocate(4 * MIB, stack=(Frame("f", "a.py", 3),), label="weights"))
    recorder.allocate(2 * MIB)
    recorder.annotate("step", 0)
    peak = Peak(allocated_bytes=1, reserved_bytes=2, device_bytes=3)
    rank = RankAnswer(role="all", count=1, peak=peak, interval_bytes=(2, 4), phases={"step": peak}, ledger=())
    answer = TraceAnswer(
        question={"target": "x"}, fits=False, capacity_bytes=5, ranks=(rank,), num_parameters=7, steps=2,
        course=(CoursePoint(1, 2),), unknown_operators=(UnknownOperator(name="a", calls=1, num_bytes=2, peak_bytes=0),),
        failure=TraceFailure(
            num_bytes=1, step=0, phase="forward", operator="aten.mm", module="m", line="a.py:3 f", message="out"
        ),
    )
    traced = Traced(answer=answer, snapshot=recorder.snapshot(name="x", format_="vramcast"))
    found = decode(encode(traced))
    assert found.answer == answer
    assert found.snapshot == traced.snapshot


@pytest.mark.parametrize("data", [b"", b"\x80", b"nonsense", msgspec.msgpack.encode({"answer": 1})])
def test_what_is_none_is_refused(data: bytes) -> None:
    with pytest.raises(msgspec.DecodeError):
        decode(data)
