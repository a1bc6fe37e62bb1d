"""Reports as files say what the answer says, and nothing in a name is taken for markup."""

from __future__ import annotations

import re
from datetime import date
from pathlib import Path

import pytest
from msgspec.structs import replace

import vramcast
from tests.report.written.pages import Page
from vramcast.domain.answer import Answer
from vramcast.domain.program import Category
from vramcast.errors import InvalidSpec, SourceError
from vramcast.report.messages import LANGUAGES, Words
from vramcast.report.written import FORMATS, check_report, report_of
from vramcast.report.written.markdown import escaped, inline
from vramcast.report.written.parts import Bar, Bars, Slice
from vramcast.report.written.pictures import COLUMNS, LOOKS, bars_svg, bars_text
from vramcast.units import format_bytes

TODAY = date(2026, 11, 21)
HOSTILE = "<script>alert(1)</script>|`*_x_*`\n# [a](javascript:b) & \"'</title>"


@pytest.fixture(scope="module")
def answers() -> dict[str, Answer]:
    return {
        "train": vramcast.train("llama-3.1-8b", gpus="2x8xh100-sxm-80gb", engine="megatron", tp=2, pp=2),
        "fails": vramcast.train("llama-3.1-8b", gpus="aws:p4d.24xlarge", engine="torchtitan", shards="everything",
                                seq_len=8192, micro_batch=4, tokens="1T"),
        "serve": vramcast.serve("qwen3-32b", gpus="2xh100-sxm-80gb", context=32768, concurrency=8, engine="vllm@0.19"),
        "find": vramcast.serve("llama-3.1-70b", gpus="l40s", context=32768, concurrency=4, find="fewest-gpus"),
    }


NAMES = ("train", "fails", "serve", "find")


def command_of(name: str) -> str:
    return "train" if name in ("train", "fails") else "serve"


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("language", LANGUAGES)
@pytest.mark.parametrize("kind", FORMATS)
def test_a_report_has_the_figures_of_its_answer(
    answers: dict[str, Answer], name: str, language: str, kind: str
) -> None:
    text = report_of(command_of(name), answers[name], kind, language, today=TODAY)
    answer = Words(language).spoken(answers[name])
    if kind == "html":
        text = Page(text).text
    for rank in answer.ranks:
        for entry in rank.ledger:
            assert format_bytes(entry.num_bytes) in text
            assert f"{entry.num_bytes:,} B" in text
            if entry.source:
                assert (entry.source if kind == "html" else inline(entry.source)) in text
        for peak in rank.phases.values():
            assert {format_bytes(size) in text for size in (peak.device_bytes, peak.allocated_bytes) if size} <= {True}
        assert all(format_bytes(size) in text for size in rank.interval_bytes)
    for change in answer.changes:
        assert format_bytes(change.device_bytes) in text or change.concurrency
    for said in (*answer.assumptions, *answer.warnings):
        assert (said if kind == "html" else escaped(said)) in text
    assert "2026-11-21" in text and vramcast.__version__ in text


def test_a_page_fetches_nothing_and_runs_nothing(answers: dict[str, Answer]) -> None:
    page = Page(report_of("train", answers["train"], "html", "en", today=TODAY))
    assert not {"script", "iframe", "img", "link", "object", "form"} & set(page.tags)
    assert not [name for name, _ in page.attributes if name.startswith("on") or name == "src"]
    policy = next(value for name, value in page.attributes if name == "content" and "default-src" in (value or ""))
    assert policy is not None and policy.startswith("default-src 'none'") and "script-src" not in policy


def unfenced(text: str) -> str:
    return re.sub(r"^```text\n.*?^```$", "", text, flags=re.S | re.M)


def columns(text: str) -> set[int]:
    return {line.count("|") for line in unfenced(text).splitlines() if line.startswith("|")}


@pytest.mark.parametrize("language", LANGUAGES)
def test_nothing_in_a_name_is_markup(answers: dict[str, Answer], language: str) -> None:
    answer = answers["train"]
    rank = answer.fullest
    entry = replace(rank.ledger[0], path=f"{HOSTILE}/{HOSTILE}", formula=HOSTILE, source=HOSTILE)
    rank = replace(rank, role=HOSTILE, ledger=(entry, *rank.ledger[1:]))
    hostile = replace(
        answer, ranks=(rank, *answer.ranks[1:]), assumptions=(HOSTILE,), warnings=(HOSTILE,),
        question=answer.question | {"model": HOSTILE, "engine": HOSTILE, HOSTILE: HOSTILE},
    )
    page = Page(report_of("train", hostile, "html", language, asked=HOSTILE, today=TODAY))
    plain = Page(report_of("train", answer, "html", language, asked="x", today=TODAY))
    assert set(page.tags) <= set(plain.tags)
    assert not [value for name, value in page.attributes if name == "href" and not (value or "").startswith("#")]
    text = report_of("train", hostile, "md", language, asked="", today=TODAY)
    assert "<script>" not in unfenced(text) and "[a](" not in unfenced(text)
    honest = report_of("train", answer, "md", language, asked="", today=TODAY)
    assert columns(text) == columns(honest)


def test_nothing_printed_ends_a_fenced_block(answers: dict[str, Answer]) -> None:
    text = report_of("train", answers["train"], "md", "en", asked="a\n````\n<b>", today=TODAY)
    assert "`````text\na\n````\n<b>\n`````\n" in text


def test_engines_nobody_measured_are_not_given_the_accuracy_of_others() -> None:
    answer = vramcast.train("llama-3.2-1b", gpus="2xh100", engine="torchtune", seq_len=1024)
    text = report_of("train", answer, "md", "en", today=TODAY)
    assert "No measured run of torchtune is known here" in text and "median error" not in text


def test_bars_are_as_long_as_their_sum_and_the_limit_stands_in_its_place() -> None:
    slices = (Slice("weights", "w", 25, "25"), Slice("optimizer", "o", 25, "25"))
    text = bars_text(Bars("t", (Bar("one", slices, "50"),), limit=100 / 1.02, limit_label="most"))
    row = text.splitlines()[1].strip("[]")
    assert len(row) == COLUMNS
    assert row.count("W") == row.count("O") == COLUMNS // 4
    assert row.index("|") == round(COLUMNS / 1.02)


def test_the_legend_tells_bars_apart() -> None:
    memory = (*Category, "allocator", "slack")
    step = ("products", "attention", "pointwise", "tensor", "context", "expert", "pipeline", "gradients", "gathered",
            "optimizer", "offload", "host", "stragglers")
    phases = ("weights", "cache", "activations", "compute", "communication", "launch")
    for kinds in (memory, step, phases):
        assert len({LOOKS[kind].character for kind in kinds}) == len(kinds)
        assert len({LOOKS[kind].colour for kind in kinds}) == len(kinds)


def test_a_bar_that_is_empty_is_drawn() -> None:
    empty = Bars("t", (Bar("one", (), "0"),))
    assert "one" in bars_svg(empty) and "one" in bars_text(empty)


@pytest.mark.parametrize("name", ["out.pdf", "out", "out.HTML.txt"])
def test_another_ending_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(InvalidSpec, match=r"must end in \.html or \.md"):
        check_report(tmp_path / name)


def test_a_folder_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="name a folder"):
        check_report(tmp_path / "none" / "out.md")
    (tmp_path / "is.md").mkdir()
    with pytest.raises(SourceError, match="is a folder"):
        check_report(tmp_path / "is.md")


def test_commands_and_formats_that_do_not_exist_are_refused(answers: dict[str, Answer]) -> None:
    with pytest.raises(InvalidSpec, match="no format 'pdf'"):
        report_of("train", answers["train"], "pdf", "en")
    with pytest.raises(InvalidSpec, match="no command 'sell'"):
        report_of("sell", answers["train"], "md", "en")
