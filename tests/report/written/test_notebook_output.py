"""What notebooks show: the answer's figures, no colours of a page of its own, no scripts, small."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest
from msgspec.structs import replace

import vramcast
from tests.report.test_trace_report import FAILED
from tests.report.written.pages import Page
from vramcast.domain.answer import Answer
from vramcast.report.recorded import ShownTrace
from vramcast.units import format_bytes

EXAMPLES = Path(__file__).parents[3] / "docs" / "examples"
MOST = 200_000


def traced() -> ShownTrace:
    return ShownTrace(**{name: getattr(FAILED, name) for name in FAILED.__struct_fields__})


MADE: dict[str, Callable[[], object]] = {
    "train": lambda: vramcast.train("llama-3.1-8b", gpus="8xa100-sxm4-40gb", engine="torchtitan", seq_len=8192,
                                    shards="everything", micro_batch=4),
    "serve": lambda: vramcast.serve("qwen3-32b", gpus="2xh100-sxm-80gb", context=32768, concurrency=8),
    "diagnose": lambda: vramcast.diagnose(EXAMPLES / "oom.log"),
    "replay": lambda: vramcast.replay(EXAMPLES / "crash.pickle.gz"),
    "trace": traced,
    "sweep": lambda: vramcast.sweep({
        "defaults": {"command": "train", "gpus": "h100"},
        "axes": {"model": ["llama-3.2-1b", "<b>no|such</b>"], "micro-batch": [1, 2]},
    }, workers=1),
}


@pytest.fixture(scope="module")
def shown() -> dict[str, str]:
    return {name: make()._repr_html_() for name, make in MADE.items()}  # type: ignore[attr-defined]


@pytest.mark.parametrize("name", MADE)
def test_output_is_small_well_formed_and_takes_the_colours_around_it(shown: dict[str, str], name: str) -> None:
    text = shown[name]
    assert len(text) < MOST
    page = Page(text)
    assert not {"script", "html", "body", "img", "iframe", "b><no"} & set(page.tags)
    assert not [attribute for attribute, _ in page.attributes if attribute.startswith("on") or attribute == "src"]
    style = text[text.index("<style>") : text.index("</style>")]
    assert not re.search(r"background(-color)?:\s*(white|#fff)", text)
    assert not re.search(r"^(?![ }]|<style|@|\.vramcast|$)", style, re.M), "a rule outside our own elements"


def test_answers_show_their_figures(shown: dict[str, str]) -> None:
    answer = MADE["train"]()
    assert isinstance(answer, Answer)
    text = Page(shown["train"]).text
    assert format_bytes(answer.fullest.needed_bytes) in text
    for entry in sorted(answer.fullest.ledger, key=lambda entry: -entry.num_bytes)[:20]:
        assert format_bytes(entry.num_bytes) in text and entry.source in text
    assert all(format_bytes(change.device_bytes) in text for change in answer.changes)


def test_questions_without_an_answer_are_rows_of_a_sweep(shown: dict[str, str]) -> None:
    text = Page(shown["sweep"]).text
    assert "4 questions: 2 fit, 0 do not, 2 cannot be answered" in text and "<b>no|such</b>" in text


def test_pictures_say_in_words_what_they_show(shown: dict[str, str]) -> None:
    for name in ("train", "replay", "trace"):
        page = Page(shown[name])
        labels = [value for attribute, value in page.attributes if attribute == "aria-label"]
        assert any("GiB" in (label or "") or "MiB" in (label or "") for label in labels)


def test_an_answer_at_a_prompt_is_one_line() -> None:
    answer = vramcast.train("llama-3.2-1b", gpus="h100", seq_len=1024)
    assert repr(answer).startswith("<ShownAnswer fits: ") and "\n" not in repr(answer)
    assert repr(replace(answer, fits=False)).startswith("<ShownAnswer does not fit: ")
