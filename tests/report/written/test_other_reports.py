"""Reports on searches, failures, recordings and traced runs say what their answers say."""

from __future__ import annotations

from datetime import date
from pathlib import Path

import pytest
from msgspec.structs import replace

import vramcast
from tests.report.test_trace_report import ANSWER, FAILED
from tests.report.written.pages import Page
from vramcast.domain.answer import Answer
from vramcast.domain.planning import PlanAnswer
from vramcast.report.messages import LANGUAGES
from vramcast.report.recorded import ShownReplay
from vramcast.report.written import FORMATS, report_of
from vramcast.units import format_bytes

TODAY = date(2026, 11, 21)
EXAMPLES = Path(__file__).parents[3] / "docs" / "examples"
HOSTILE = "<img src=x onerror=alert(1)>|`*_\x1b[2J\u202e"


def text_of(command: str, answer: object, kind: str = "html", language: str = "en") -> str:
    text = report_of(command, answer, kind, language, today=TODAY)
    return Page(text).text if kind == "html" else text


@pytest.fixture(scope="module")
def searched() -> PlanAnswer:
    pytest.importorskip("numpy")
    found = vramcast.plan(
        "train", "llama-3.2-1b", on=["8xl40s", "aws:g6e.48xlarge"], seq_len=1024, global_batch=16, engine="torchtitan",
        top=3, tokens="1B",
    )
    assert isinstance(found, PlanAnswer)
    return found


@pytest.fixture(scope="module")
def recorded() -> ShownReplay:
    return vramcast.replay(EXAMPLES / "crash.pickle.gz", leaks=True, alloc_conf="expandable_segments:True")


@pytest.mark.parametrize("language", LANGUAGES)
@pytest.mark.parametrize("kind", FORMATS)
def test_a_search_reports_every_plan_and_the_best_in_full(searched: PlanAnswer, kind: str, language: str) -> None:
    text = text_of("plan train", searched, kind, language)
    for plan in searched.plans:
        assert format_bytes(plan.fullest.needed_bytes) in text
    assert searched.command in text
    for entry in searched.plans[0].fullest.ledger:
        assert f"{entry.num_bytes:,} B" in text
    for technique in searched.techniques:
        assert format_bytes(technique.device_bytes) in text


def test_a_search_that_finds_nothing_reports_what_is_nearest(searched: PlanAnswer) -> None:
    nothing = replace(
        searched, plans=(), labels=(), front=(), reasons=(), nearest_failing=searched.plans[0], nearest_label="--tp 2",
    )
    text = text_of("plan train", nothing)
    assert "--tp 2" in text and "The nearest plan" in text
    assert format_bytes(searched.plans[0].fullest.needed_bytes) in text


def test_an_inverse_question_is_reported_as_the_plan_it_found() -> None:
    found = vramcast.plan("train", "llama-3.2-1b", on="a100-sxm4-40gb", seq_len=1024, find="largest-batch",
                          engine="pytorch")
    assert isinstance(found, Answer) and found.found is not None
    assert str(found.found.what) in text_of("plan train", found)


@pytest.mark.parametrize("language", LANGUAGES)
@pytest.mark.parametrize("kind", FORMATS)
def test_a_diagnosis_reports_its_evidence_numbers_and_fixes(kind: str, language: str) -> None:
    found = vramcast.diagnose(EXAMPLES / "fragmented.log", snapshot=EXAMPLES / "fragmented.pickle")
    text = text_of("oom", found, kind, language)
    finding = found.findings[0]
    for _, remark in finding.meaning:
        assert str(remark.values.get("value", "")) in text
    for fix in finding.fixes:
        assert fix.setting.split("=")[0] in text
    assert f"{finding.confidence:.0%}" in text


def test_a_text_without_a_failure_is_reported_as_such() -> None:
    assert "all is well" not in text_of("oom", vramcast.diagnose("all is well"))


@pytest.mark.parametrize("language", LANGUAGES)
@pytest.mark.parametrize("kind", FORMATS)
def test_a_recording_reports_peak_holders_and_failures(recorded: ShownReplay, kind: str, language: str) -> None:
    text = text_of("replay", recorded, kind, language)
    (device,) = recorded.devices
    assert format_bytes(device.replayed.peak_reserved_bytes) in text
    for group in device.held.by_category:
        assert format_bytes(group.size_bytes) in text
    for variant in device.variants:
        assert format_bytes(variant.peak_reserved_bytes) in text
    for failure in device.failures:
        assert f"{failure.event:,}" in text


@pytest.mark.parametrize("language", LANGUAGES)
@pytest.mark.parametrize("kind", FORMATS)
def test_a_traced_run_reports_ledger_holders_and_what_is_unknown(kind: str, language: str) -> None:
    text = text_of("trace", FAILED, kind, language)
    for entry in FAILED.fullest.ledger:
        assert f"{entry.num_bytes:,} B" in text
    assert "net.py:7 forward" in text and "mylib.op" in text
    assert "Tried to allocate 1.00 MiB" in text


@pytest.mark.parametrize("kind", FORMATS)
def test_names_of_code_are_no_markup(kind: str) -> None:
    rank = replace(ANSWER.fullest, role=HOSTILE)
    hostile = replace(
        ANSWER, ranks=(rank,), question=ANSWER.question | {"target": HOSTILE}, assumptions=(HOSTILE,),
        stopped=HOSTILE, unknown_operators=(replace(ANSWER.unknown_operators[0], name=HOSTILE),),
    )
    text = report_of("trace", hostile, kind, "en", today=TODAY)
    assert "\x1b" not in text and "\u202e" not in text
    if kind == "html":
        assert "img" not in Page(text).tags
    else:
        outside = "".join(text.split("```")[::2])
        assert "<img" not in outside
    text.encode("utf-8")


def test_a_log_and_a_name_that_are_no_utf8_can_be_written() -> None:
    name = b"\xff<b>.log".decode("utf-8", "surrogateescape")
    found = replace(vramcast.diagnose("CUDA out of memory. Tried to allocate more than 1EB memory."), name=name)
    for kind in FORMATS:
        report_of("oom", found, kind, "en", today=TODAY).encode("utf-8")
