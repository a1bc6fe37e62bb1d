"""Reports of replays, traces and plans."""

import json
import re
from functools import cache
from importlib.resources import files

import pytest
from msgspec.structs import replace

from tests.recordings import _made as made
from tests.recordings._made import Run, train
from vramcast.api import job_of
from vramcast.domain.answer import Change, Found, HostNeed, LedgerEntry, Likest, Peak, RankAnswer, Tried
from vramcast.domain.planning import NO_ROOM, MissedLimit, PlanAnswer, Point, Reason
from vramcast.domain.program import Basis
from vramcast.domain.snapshot import PREDICTED, Frame
from vramcast.domain.trace_job import CoursePoint, Holding, Holdings, TraceAnswer, TraceFailure, UnknownOperator
from vramcast.estimate.serving_changes import PROPOSALS
from vramcast.estimate.techniques import TECHNIQUES
from vramcast.estimate.training import answer
from vramcast.recordings.examine import Asked, Examined, examine
from vramcast.recordings.lives import CATEGORIES
from vramcast.report.chinese import technique_texts, terms
from vramcast.report.document import plan_document
from vramcast.report.document import plan_json as plan_to_json
from vramcast.report.messages import LANGUAGES, Words, rare_messages
from vramcast.report.plan import render as plan_render
from vramcast.report.replay import render
from vramcast.report.replay_document import replay_document
from vramcast.report.replay_page import page, page_data
from vramcast.report.trace import render as trace_render
from vramcast.report.trace import to_json
from vramcast.search.serving_plans import RESPECTS as SERVING
from vramcast.search.techniques import decisions, techniques
from vramcast.search.training.limits import RESPECTS as TRAINING
from vramcast.units import GIB, MIB

# The report on a recording: text, JSON and page.

HOSTILE = "</script><img src=x onerror=alert(1)>\x1b[2J<!--"


def looked_at(run: Run, asked: Asked | None = None) -> Examined:
    snapshot = run.dump()
    return examine(snapshot, snapshot.devices[0], asked or Asked(leaks=True, confs=("max_split_size_mb:64",)))


@pytest.fixture(scope="module")
def trained() -> Examined:
    run = Run()
    train(run, 5, leaked_bytes=MIB)
    return looked_at(run)


@pytest.fixture(scope="module")
def hostile() -> Examined:
    run = Run()
    run.make(MIB, (Frame("forward", f"/tmp/{HOSTILE}.py", 1), Frame(HOSTILE, "/tmp/a.py", 2)))
    run.drop(run.make(5 * MIB, (Frame(HOSTILE, "??", 0),)))
    run.make(30 * MIB)
    return looked_at(run)


def test_events_are_no_ages(trained: Examined) -> None:
    predicted = examine(replace(trained.snapshot, format=PREDICTED), trained.snapshot.devices[0], Asked())
    timed, counted = (render([found], Words("en"), top=5) for found in (trained, predicted))
    assert " old\n" in timed
    assert " old\n" not in counted and "since event" in counted


def test_every_category_has_a_name() -> None:
    assert all(f"replay.category.{category}" in rare_messages() for category in CATEGORIES)


def test_a_hostile_recording_moves_no_cursor_and_ends_no_script(hostile: Examined) -> None:
    assert "\x1b" not in render([hostile], Words("en"), top=5)
    text = page([hostile], Words("en"), top=5)
    assert text.count("</script>") == 2  # of the data and of the program
    assert "<img" not in text and "\x1b" not in text
    data = re.search(r'<script type="application/json" id="data">(.*?)</script>', text, re.S)
    assert data is not None
    frames = json.loads(data[1])["stacks"].values()
    assert any(HOSTILE.replace("\x1b", "?")[:20] in name for stack in frames for name, _ in stack)


def test_the_page_stays_small_whatever_the_recording(trained: Examined) -> None:
    run = Run()
    for size in range(4000):
        run.make(512 * (1 + size % 7), (made.python("f", line=size), made.MAIN))
    assert len(page([looked_at(run, Asked())], Words("en"), top=10)) < 2_000_000


def test_the_document_is_json_with_whole_bytes(trained: Examined) -> None:
    plain = json.loads(json.dumps(replay_document([trained], top=3)))
    assert plain["schema"] == 1
    (device,) = plain["devices"]
    assert device["addresses_matched"] == device["allocations"] > 0
    assert device["segments_matched"] == device["segment_events"]
    assert device["final_blocks_matched"] is True
    assert device["peak"]["allocated_bytes"] == trained.replayed.peak_allocated_bytes
    assert device["fragmentation"] == pytest.approx(
        1 - device["peak"]["allocated_bytes"] / device["peak"]["reserved_bytes"]
    )
    assert sum(group["bytes"] for group in device["peak"]["categories"]) == device["peak"]["allocated_bytes"]
    assert device["leaks"]["bytes_per_step"] == MIB
    assert [variant["conf"] for variant in device["variants"]] == ["", "max_split_size_mb:64"]
    assert device["advice"]["kind"] == "none"
    assert None not in _values(plain)


def _values(plain: object) -> list[object]:
    if isinstance(plain, dict):
        return [value for item in plain.values() for value in _values(item)]
    if isinstance(plain, list):
        return [value for item in plain for value in _values(item)]
    return [plain]


@pytest.mark.parametrize("language", LANGUAGES)
def test_every_word_that_the_page_shows_is_in_it(trained: Examined, language: str) -> None:
    script = (files("vramcast.report") / "page" / "page.js").read_text(encoding="utf-8")
    used = set(re.findall(r"\bW\.(\w+)", script))
    assert len(used) > 20
    assert used <= set(page_data([trained], Words(language), top=3)["words"])


# The report on a traced run.

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
    first, *levels = trace_render(replace(ANSWER, ranks=(rank,)), Words(language)).splitlines()[:4]
    assert "6.00 GiB" in first and levels[0].startswith(f"  {highest}") and levels[0].endswith("6.00 GiB")
    assert levels[1].startswith(f"  {steady}") and levels[1].endswith("4.00 GiB")
    assert levels[2].startswith(f"  {steady}") and "3.00 GiB" in levels[2]


def test_a_verdict_says_what_it_rests_on() -> None:
    text = trace_render(ANSWER, Words("en"))
    assert "93 % likely to fit; the 31 measured trainings most like this" in text and "median miss 1.95 %" in text
    assert json.loads(to_json(ANSWER))["trust"]["chance_to_fit"] == 0.93


def test_modules_that_differ_in_numbers_are_one_row() -> None:
    text = trace_render(ANSWER, Words("en"))
    assert "layers.*.mlp" in text and "layers.0.mlp" not in text
    assert "4.00 MiB" in text


@pytest.mark.parametrize("answer", [ANSWER, FAILED, replace(ANSWER, stopped="the time limit of 3 s was reached")])
def test_the_report_exists_in_chinese(answer: TraceAnswer) -> None:
    assert trace_render(answer, Words("zh"))


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
    assert trace_render(replace(ANSWER, found=found), Words("en")).startswith("largest batch that fits: 8\nfits: ")
    none = Found(goal="batch", what=None, value=None, tried=tried, num_tried=1, nearest_failing=tried[0])
    assert trace_render(replace(FAILED, found=none), Words("en")).startswith("even --batch 8 does not fit\n")


# The report of a search: the winner first, then why; both languages; the same as JSON.

OPTIONS = {"model": "llama-3.2-1b", "gpus": "8xh100-sxm-80gb", "engine": "megatron", "seq-len": 2048}


REASON = Reason(kind="respect", respect="tensor parallelism", option="tp", other="2", own="1", times=1.43)


@cache
def found() -> PlanAnswer:
    plans = tuple(answer(job_of(OPTIONS | {"tp": tp})) for tp in (1, 2))
    labels = tuple(f"--gpus 8xh100-sxm-80gb --engine megatron --tp {tp}" for tp in (1, 2))
    failing = answer(job_of(OPTIONS | {"model": "llama-3.1-70b"}))
    case = job_of(OPTIONS | {"zero": "0"})
    points = tuple(
        Point(what=label, gpus=8, tokens_per_s=1e5 / rank, cost_per_million_tokens=rank, unit="USD", on_front=rank == 1)
        for rank, label in enumerate(labels, 1)
    )
    return PlanAnswer(
        question={"goal": "fastest"}, plans=plans, labels=labels, num_plans=1234, num_fitting=56, front=points,
        nearest_failing=failing, nearest_label="--tp 1 --pp 1", reasons=(REASON,),
        change=Change(change="--tp 8", device_bytes=70 << 30, fits=True, cost="communication in every layer"),
        decisions=decisions(case), techniques=techniques(case).techniques, assumptions=("one thing",),
    )


@pytest.mark.parametrize("language", ["en", "zh"])
def test_every_section_is_there_in_both_languages(language: str) -> None:
    words = Words(language)
    text = plan_render(found(), words)
    for key in ("table", "reasons", "nearest", "decisions", "techniques", "picture"):
        assert f"\n{words(f'plan.{key}')}\n" in text
    assert "1,234" in text
    assert "--tp 8" in text


@pytest.mark.parametrize("language", ["en", "zh"])
def test_limits_that_no_plan_keeps_come_first_with_what_would_keep_them(language: str) -> None:
    deadline = MissedLimit(
        limit="deadline", allowed=720, least=3240, unit="hours", label="--tp 1", times=8, enough=500,
        enough_label="--gpus 8x8xh100-sxm-80gb",
    )
    budget = MissedLimit(limit="budget", allowed=10, least=1234.5, unit="USD", label="--tp 2")
    none = replace(found(), plans=(), labels=(), reasons=(), front=(), num_in_memory=56, missed=(deadline, budget))
    head = plan_render(none, Words(language)).partition("\n\n")[0]
    for figure in ("1,234 ", "56", "135", "3,240", "720", "8", "--gpus 8x8xh100-sxm-80gb", "1,234.50 USD", "10.00 USD"):
        assert figure in head
    assert json.loads(plan_to_json(none))["missed"][0]["times"] == 8
    assert "missed" not in plan_document(found())


@pytest.mark.parametrize("language", ["en", "zh"])
def test_that_every_plan_may_run_out_is_said_first_and_once(language: str) -> None:
    words = Words(language)
    text = plan_render(replace(found(), warnings=(NO_ROOM, "another")), words)
    assert words.said(NO_ROOM) in text.partition("\n\n")[0]
    assert text.count(words.said(NO_ROOM)) == 1
    assert "  - another" in text


def test_the_table_of_techniques_names_the_engines_that_rows_are_compared_on() -> None:
    rows = {row.name: row for row in found().techniques}
    assert (rows["full recomputation"].against, rows["optimizer on the CPU"].against) == ("megatron", "deepspeed")
    text = plan_render(found(), Words("en"), explain=True)
    (line,) = (line for line in text.splitlines() if line.startswith("  optimizer on the CPU"))
    assert line.split("--")[0].split()[-1] == "deepspeed"
    assert "  against  " not in plan_render(found(), Words("en"))
    alike = tuple(row for row in found().techniques if row.against == "megatron")
    assert "  against  " not in plan_render(replace(found(), techniques=alike), Words("en"), explain=True)


def test_what_a_winner_offloads_is_said_of_its_machines() -> None:
    offloading = replace(found().plans[0], host=HostNeed(memory_bytes=3 << 30, memory_there_bytes=4 << 30))
    text = plan_render(replace(found(), plans=(offloading, offloading)), Words("en"))
    assert "main memory: at least 3.00 GiB of 4.00 GiB in each machine" in text


def test_what_a_search_names_by_one_word_has_its_chinese_words() -> None:
    assert set(technique_texts()) == {way.name for way in TECHNIQUES}
    assert {row[0] for row in (*TRAINING, *SERVING)} <= set(terms("respect"))
    assert {proposal.cost for proposal in PROPOSALS} <= set(terms("cost"))
    assert {proposal.name for proposal in PROPOSALS} <= set(terms("change"))
