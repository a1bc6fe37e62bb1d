"""Each of the four verdicts is the same word everywhere, in the same tone."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import vramcast
from vramcast.cli.main import group
from vramcast.domain.answer import Fit
from vramcast.report.messages import Words
from vramcast.report.verdicts import TONES, word_of

from .conftest import Opened, comes_to
from .test_answers import view

TRAIN = {"model": "llama-3.1-8b", "gpus": "8xh100-sxm-80gb", "engine": "torchtitan"}
SERVE = {"model": "llama-3.1-8b", "gpus": "h100-sxm-80gb"}
ASKED: list[tuple[Fit, str, dict[str, str]]] = [
    *((fit, "train", TRAIN | {"seq-len": length}) for fit, length in zip(Fit, ("8k", "9k", "10k", "12k"), strict=True)),
    *((fit, "serve", SERVE | {"memory-fraction": share})
      for fit, share in zip(Fit, ("0.9", "0.95", "0.97", "0.98"), strict=True)),
]
LOCALES = {"en": "en-US", "zh": "zh-CN"}


def said(command: str, question: dict[str, str], *more: str) -> str:
    """What the command line prints."""
    options = [text for name, value in question.items() if name != "model" for text in (f"--{name}", value)]
    return CliRunner().invoke(group, [command, question["model"], *options, *more]).output


@pytest.mark.parametrize("language", LOCALES)
@pytest.mark.parametrize(("fit", "command", "question"), ASKED)
def test_a_verdict_is_one_word_and_one_tone_everywhere(
    opened: Opened, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, language: str, fit: Fit, command: str,
    question: dict[str, str],
) -> None:
    word, tone = word_of(fit, Words(language)), TONES[fit]
    assert json.loads(said(command, question, "--json"))["verdict"] == fit
    path = tmp_path / "report.html"
    printed = said(command, question, "--lang", language, "--report", str(path))
    assert printed.startswith((f"{word}: ", f"{word}："))
    html = path.read_text(encoding="utf-8")
    assert f'<div class="verdict {tone}"><p class="answer">{word}' in html

    monkeypatch.setenv("LANG", f"{LOCALES[language].replace('-', '_')}.UTF-8")
    options: dict[str, Any] = {name.replace("-", "_"): value for name, value in question.items()}
    answer: Any = (vramcast.train if command == "train" else vramcast.serve)(**options)
    assert f'<div class="verdict {tone}"><p class="answer">{word}' in answer._repr_html_()
    assert word in answer._repr_markdown_().strip().splitlines()[0]

    page = opened(view(command, question, question), locale=LOCALES[language], wait=".compare .badge")
    assert page.locator(f".verdict.{tone} h2 .word").text_content() == word
    assert page.locator(f".glance.{tone} b").text_content() == word
    badges = page.locator(f".plans .badge.{tone}, .compare .badge.{tone}")
    comes_to(page, badges.all_text_contents, [word] * 4)  # the replies to both come one after the other
    page.wait_for_function("word => document.getElementById('said').textContent.startsWith(word)", arg=word)


def test_an_inverse_question_has_the_verdict_on_each_plan(opened: Opened) -> None:
    question = {"model": "llama-3.1-70b", "gpus": "l40s", "context": "8k", "find": "fewest-gpus"}
    page = opened(view("serve", question))
    tried = json.loads(said("serve", question, "--json"))["tried"]
    badges = [(one.text_content(), one.get_attribute("class")) for one in page.locator(".part table .badge").all()]
    assert badges == [(one["verdict"], f"badge {TONES[Fit(one['verdict'])]}") for one in tried]
