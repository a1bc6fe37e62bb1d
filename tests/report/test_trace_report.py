"""The report on a traced run."""

import json

import pytest
from msgspec.structs import replace

from vramcast.domain.answer import Change, Found, LedgerEntry, Likest, Peak, RankAnswer, Tried
from vramcast.domain.program import Basis
from vramcast.domain.trace_job import CoursePoint, Holding, Holdings, TraceAnswer, TraceFailure, UnknownOperator
from vramcast.report.messages import Words
from vramcast.report.trace import render, to_json
from vramcast.units import GIB, MIB

PEAK = Peak(allocated_bytes=2 * GIB, reserved_bytes=3 * GIB, device_bytes=4 * GIB)
LEDGER = (
    LedgerEntry(path="activations/layers.*.mlp/mm", num_bytes=2 * GIB, count=8, basis=Basis.TRACED),
    LedgerEntry(path="allocator/cached", num_bytes=GIB, basis=Basis.TRACED),
    LedgerEntry(path="workspaces/process/CUDA context and library images", num_bytes=GIB, basis=Basis.MEASURED),
)
RANK = RankAnswer(
    role="all", count=1, peak=PEAK, interval_bytes=(3 * GIB, 5 * GIB), phases={"load": PEAK, "step": PEAK},
    ledger=LEDGER, chance_to_fit=0.93, likest=Likest(runs=31, own_engine=31, median_miss=0.0195),
)
ANSWER = TraceAnswer(
    question={"target": "m:f", "gpu": "t4", "mode": "train", "batch": 8, "seq_len": 1024}, fits=True,
    capacity_bytes=15 * GIB, ranks=(RANK,), num_parameters=1000, steps=3, events=1234,
    holdings=Holdings(
        by_module=tuple(Holding(name=f"layers.{n}.mlp", num_bytes=MIB, count=2) for n in range(4)),
        by_line=(Holding(name="net.py:7 forward", num_bytes=GIB, count=3), Holding(name="", num_bytes=1, count=1)),
        by_operator=(Holding(name="aten.mm", num_bytes=GIB, count=3),),
    ),
    unknown_operators=(UnknownOperator(name="mylib.op", calls=4, num_bytes=GIB, peak_bytes=GIB),),
    course=(CoursePoint(1, 2), CoursePoint(3, 4)),
    assumptions=("no --loss given: mean",),
)
FAILURE = TraceFailure(
    num_bytes=MIB, step=2, phase="backward", operator="aten.mm", module="layers.3", line="net.py:7 forward",
    message="CUDA out of memory. Tried to allocate 1.00 MiB.", stack=("net.py:7 forward",),
)
FAILED = replace(
    ANSWER, fits=False, failure=FAILURE,
    changes=(Change(change="--amp bf16", device_bytes=GIB, fits=True, cost="other rounding"),),
)


@pytest.mark.parametrize(("language", "highest", "steady"), [
    ("en", "highest, after the last step: ", "steady step: "), ("zh", "最高点，最后一步之后：", "稳定步："),
])
def test_where_another_moment_needs_more_than_the_steady_step_both_are_named(language, highest, steady) -> None:
    after = Peak(allocated_bytes=3 * GIB, reserved_bytes=5 * GIB, device_bytes=6 * GIB)
    rank = replace(RANK, phases=RANK.phases | {"after": after})
    first, *levels = render(replace(ANSWER, ranks=(rank,)), Words(language)).splitlines()[:4]
    assert "6.00 GiB" in first and levels[0].startswith(f"  {highest}") and levels[0].endswith("6.00 GiB")
    assert levels[1].startswith(f"  {steady}") and levels[1].endswith("4.00 GiB")
    assert levels[2].startswith(f"  {steady}") and "3.00 GiB" in levels[2]


def test_a_verdict_says_what_it_rests_on() -> None:
    text = render(ANSWER, Words("en"))
    assert "93 % likely to fit; the 31 measured trainings most like this" in text and "median miss 1.95 %" in text
    assert json.loads(to_json(ANSWER))["trust"]["chance_to_fit"] == 0.93


def test_modules_that_differ_in_numbers_are_one_row() -> None:
    text = render(ANSWER, Words("en"))
    assert "layers.*.mlp" in text and "layers.0.mlp" not in text
    assert "4.00 MiB" in text


@pytest.mark.parametrize("answer", [ANSWER, FAILED, replace(ANSWER, stopped="the time limit of 3 s was reached")])
def test_the_report_exists_in_chinese(answer: TraceAnswer) -> None:
    assert render(answer, Words("zh"))


def test_json_leaves_out_what_is_unknown() -> None:
    plain = json.loads(to_json(replace(ANSWER, ranks=(replace(RANK, likest=None),), num_parameters=0)))
    assert "interval_bytes" not in plain["peak"] and "parameters" not in plain
    assert "failure" not in plain and "timeline" not in plain
    full = json.loads(to_json(replace(FAILED, timeline="x.pickle")))
    assert full["failure"]["bytes"] == MIB and full["timeline"] == "x.pickle"
    assert full["failure"]["module"] == "layers.3"
    outside = json.loads(to_json(replace(FAILED, failure=replace(FAILURE, module=""))))
    assert "module" not in outside["failure"]


def test_what_a_search_found_comes_first() -> None:
    tried = (Tried(what="--batch 8", fits=True, needed_bytes=GIB, capacity_bytes=2 * GIB),)
    found = Found(goal="batch", what="--batch 8", value=8, tried=tried, num_tried=1)
    assert render(replace(ANSWER, found=found), Words("en")).startswith("largest batch that fits: 8\nfits: ")
    none = Found(goal="batch", what=None, value=None, tried=tried, num_tried=1, nearest_failing=tried[0])
    assert render(replace(FAILED, found=none), Words("en")).startswith("even --batch 8 does not fit\n")
