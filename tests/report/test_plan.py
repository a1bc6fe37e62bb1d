"""The report of a search: the winner first, then why; both languages; the same as JSON."""

from __future__ import annotations

import json
from functools import cache

import pytest
from msgspec.structs import replace

from vramcast.api import job_of
from vramcast.domain.answer import Change
from vramcast.domain.planning import PlanAnswer, Point
from vramcast.estimate.techniques import TECHNIQUES
from vramcast.estimate.training import answer
from vramcast.report.messages import Words
from vramcast.report.notebook import shown_plan
from vramcast.report.plan import render, split_labels
from vramcast.report.plan_document import plan_document, to_json
from vramcast.report.plan_messages import TECHNIQUES_ZH
from vramcast.search.decisions import decisions
from vramcast.search.techniques import techniques

OPTIONS = {"model": "llama-3.2-1b", "gpus": "8xh100-sxm-80gb", "engine": "megatron", "seq-len": 2048}


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
        nearest_failing=failing, nearest_label="--tp 1 --pp 1", reasons=("tensor parallelism: slower",),
        change=Change(change="--tp 8", device_bytes=70 << 30, fits=True, cost="communication in every layer"),
        decisions=decisions(case), techniques=techniques(case).techniques, assumptions=("one thing",),
    )


def test_the_winner_comes_first_with_memory_speed_and_counts() -> None:
    first, second, *_ = render(found(), Words("en")).splitlines()
    assert first == "fastest: --gpus 8xh100-sxm-80gb --engine megatron --tp 1"
    assert second.startswith("  fits ")
    assert "tokens/s" in second


@pytest.mark.parametrize("language", ["en", "zh"])
def test_every_section_is_there_in_both_languages(language: str) -> None:
    words = Words(language)
    text = render(found(), words)
    for key in ("table", "reasons", "nearest", "decisions", "techniques", "picture"):
        assert f"\n{words(f'plan.{key}')}\n" in text
    assert "1,234" in text
    assert "--tp 8" in text


def test_explain_shows_every_technique_with_when_and_needs() -> None:
    text = render(found(), Words("en"), explain=True)
    for row in found().techniques:
        assert row.name in text
        assert f"when: {row.when}; needs: {row.needs}" in text


def test_every_technique_has_its_words_in_chinese() -> None:
    assert set(TECHNIQUES_ZH) == {way.name for way in TECHNIQUES}


def test_where_nothing_fits_the_nearest_and_its_change_are_said() -> None:
    none = replace(found(), plans=(), labels=(), reasons=(), front=())
    text = render(none, Words("en"))
    assert text.startswith("none of 1,234 plans fits\n")
    assert "fits with --tp 8" in text


def test_options_that_all_plans_have_are_said_once() -> None:
    shared, own = split_labels(("--engine x --tp 1 --pp 2", "--engine x --tp 2 --pp 2"))
    assert shared == "--engine x --pp 2"
    assert own == ["--tp 1", "--tp 2"]


def test_the_document_holds_answers_and_leaves_out_what_is_unknown() -> None:
    plain = json.loads(to_json(found()))
    assert plain == json.loads(json.dumps(plan_document(found())))
    assert plain["schema"] == 1
    assert len(plain["plans"]) == len(plain["labels"]) == 2
    assert plain["plans"][0]["peak"]["device_bytes"] == found().plans[0].peak.device_bytes
    assert "schema" not in plain["plans"][0]
    assert plain["change"]["fits"] is True
    assert all(None not in row.values() for row in plain["techniques"] + plain["decisions"])
    without = plan_document(replace(found(), nearest_failing=None, change=None))
    assert not {"nearest_failing", "nearest_label", "change"} & set(without)


def test_a_notebook_shows_table_and_picture() -> None:
    shown = shown_plan(found())
    html = shown._repr_html_()
    assert "--tp 2" in html
    assert "<svg" in html
    assert str(shown) == render(found(), Words("en"))
    assert json.loads(shown.to_json())["num_plans"] == 1234
