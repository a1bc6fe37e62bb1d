"""The report of a search: the winner first, then why; both languages; the same as JSON."""

import json
from functools import cache

import pytest
from msgspec.structs import replace

from vramcast.api import job_of
from vramcast.domain.answer import Change, HostNeed
from vramcast.domain.planning import NO_ROOM, MissedLimit, PlanAnswer, Point, Reason
from vramcast.estimate.serving_changes import PROPOSALS
from vramcast.estimate.techniques import TECHNIQUES
from vramcast.estimate.training import answer
from vramcast.report.chinese import technique_texts, terms
from vramcast.report.messages import Words
from vramcast.report.plan import render
from vramcast.report.plan_document import plan_document, to_json
from vramcast.search.serving_plans import RESPECTS as SERVING
from vramcast.search.techniques import decisions, techniques
from vramcast.search.training.limits import RESPECTS as TRAINING

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
    text = render(found(), words)
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
    head = render(none, Words(language)).partition("\n\n")[0]
    for figure in ("1,234 ", "56", "135", "3,240", "720", "8", "--gpus 8x8xh100-sxm-80gb", "1,234.50 USD", "10.00 USD"):
        assert figure in head
    assert json.loads(to_json(none))["missed"][0]["times"] == 8
    assert "missed" not in plan_document(found())


@pytest.mark.parametrize("language", ["en", "zh"])
def test_that_every_plan_may_run_out_is_said_first_and_once(language: str) -> None:
    words = Words(language)
    text = render(replace(found(), warnings=(NO_ROOM, "another")), words)
    assert words.said(NO_ROOM) in text.partition("\n\n")[0]
    assert text.count(words.said(NO_ROOM)) == 1
    assert "  - another" in text


def test_the_table_of_techniques_names_the_engines_that_rows_are_compared_on() -> None:
    rows = {row.name: row for row in found().techniques}
    assert (rows["full recomputation"].against, rows["optimizer on the CPU"].against) == ("megatron", "deepspeed")
    text = render(found(), Words("en"), explain=True)
    (line,) = (line for line in text.splitlines() if line.startswith("  optimizer on the CPU"))
    assert line.split("--")[0].split()[-1] == "deepspeed"
    assert "  against  " not in render(found(), Words("en"))
    alike = tuple(row for row in found().techniques if row.against == "megatron")
    assert "  against  " not in render(replace(found(), techniques=alike), Words("en"), explain=True)


def test_what_a_winner_offloads_is_said_of_its_machines() -> None:
    offloading = replace(found().plans[0], host=HostNeed(memory_bytes=3 << 30, memory_there_bytes=4 << 30))
    text = render(replace(found(), plans=(offloading, offloading)), Words("en"))
    assert "main memory: at least 3.00 GiB of 4.00 GiB in each machine" in text


def test_what_a_search_names_by_one_word_has_its_chinese_words() -> None:
    assert set(technique_texts()) == {way.name for way in TECHNIQUES}
    assert {row[0] for row in (*TRAINING, *SERVING)} <= set(terms("respect"))
    assert {proposal.cost for proposal in PROPOSALS} <= set(terms("cost"))
    assert {proposal.name for proposal in PROPOSALS} <= set(terms("change"))
