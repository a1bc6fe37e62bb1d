"""Recomputation from a tape alone comes near what torch's own checkpointing does."""

import pytest

from vramcast.allocator import Settings
from vramcast.question.tracing import build_trace
from vramcast.tracing.changes import recompute
from vramcast.tracing.result import categorise
from vramcast.tracing.run import run_of
from vramcast.tracing.session import Session
from vramcast.tracing.tape import highest, play
from vramcast.tracing.targets import find_target
from vramcast.tracing.workloads import Workload


def tape_of(**options: object):
    given = {"input": ("16384x256",), "gpu": "t4", "optimizer": "sgd"} | options
    job = build_trace("tests.tracing._modules:Stack", given, arguments=["depth=12"])
    session = Session(job.gpu, settings=Settings())
    with session.active():
        Workload(job, find_target(job), session).run()
    return run_of(session, capacity_bytes=None).tape


def test_the_peak_is_within_a_layer_of_that_of_checkpointing() -> None:
    plain, real = tape_of(), tape_of(checkpoint=("blocks",))
    found = recompute(plain, categorise(plain))
    assert found is not None and found.modules == "layers.*"
    before, wanted, computed = (highest(play(tape)).allocated_bytes for tape in (plain, real, found.tape))
    assert wanted < 0.5 * before
    assert computed == pytest.approx(wanted, rel=0.1)


def test_steps_stay_where_they_are() -> None:
    plain = tape_of()
    found = recompute(plain, categorise(plain))
    assert found is not None
    assert len(found.tape.marks) == len(plain.marks) == 3
    assert found.tape.marks[-1].position <= len(found.tape.events)


def test_without_modules_that_repeat_there_is_nothing_to_recompute() -> None:
    job = build_trace("torch.nn:Linear", {"input": ("8x8",)}, arguments=["in_features=8", "out_features=8"])
    session = Session(job.gpu)
    with session.active():
        Workload(job, find_target(job), session).run()
    tape = run_of(session, capacity_bytes=None).tape
    assert recompute(tape, categorise(tape)) is None
