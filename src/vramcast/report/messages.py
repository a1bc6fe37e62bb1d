"""Every word a report prints, in each language."""

from __future__ import annotations

import csv
import os
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

if TYPE_CHECKING:
    from vramcast.domain.answer import Answer
    from vramcast.domain.planning import PlanAnswer

LANGUAGES: Final = ("en", "zh")

AnswerT = TypeVar("AnswerT", bound="Answer | PlanAnswer")

Messages = dict[str, dict[str, str]]
"""Key -> language -> text."""


def _catalogue(*subjects: str) -> Messages:
    """The rows of `words/SUBJECT.csv`: a key, and its text in each language."""
    found: Messages = {}
    for subject in subjects:
        path = Path(__file__).with_name("words") / f"{subject}.csv"
        _, *rows = csv.reader(path.read_text(encoding="utf-8").splitlines())  # key, en, zh
        found |= {key: {"en": english, "zh": chinese} for key, english, chinese in rows}
    return found


MESSAGES: Final = _catalogue("answers")


@cache
def rare_messages() -> Messages:
    """The messages of reports on failures, recordings, traces, live GPUs and as files: others need none of them."""
    return _catalogue("failures", "recordings", "reports", "post_training")


class Words:
    """The messages of one language."""

    def __init__(self, language: str) -> None:
        self.language = language

    def __call__(self, key: str, **values: object) -> str:
        """The text of `key` with its placeholders filled in."""
        texts = MESSAGES[key] if key in MESSAGES else rare_messages()[key]
        return texts[self.language].format(**values)

    def spoken(self, answer: AnswerT) -> AnswerT:
        """An answer, or that of a search, with all that the layers below say in it in this language."""
        return answer if self.language == "en" else _chinese().spoken(answer)

    def said(self, sentence: str) -> str:
        """A sentence of a layer below, which speaks English; in English where it has no other form."""
        return sentence if self.language == "en" else _chinese().in_chinese(sentence)

    def term(self, kind: str, english: str) -> str:
        """What one word of an answer is in this language; see `chinese.terms`."""
        return english if self.language == "en" else _chinese().terms(kind).get(english, english)

    def technique(self, name: str, when: str = "", needs: str = "") -> tuple[str, str, str]:
        """A technique's name, when to use it and what it needs in this language."""
        own = (name, when, needs)
        return own if self.language == "en" else _chinese().technique_texts().get(name, own)


def _chinese() -> Any:
    """Read when the first Chinese sentence is asked for: nothing English needs it."""
    return import_module("vramcast.report.chinese")


class Shown:
    """An object that shows itself, notebooks by a short report of its own, in the language of the locale."""

    def text(self, words: Words) -> str:
        """The report in a language."""
        raise NotImplementedError

    def __str__(self) -> str:
        return self.text(words_here())

    def _repr_html_(self) -> str:
        return str(import_module("vramcast.report.written.brief").cell_of(self, words_here()))

    def _repr_markdown_(self) -> str:
        return str(import_module("vramcast.report.written.brief").markdown_of(self, words_here()))


def words_here(language: str | None = None) -> Words:
    """The messages of a language, or of the locale of this process where none is chosen."""
    locale = os.environ.get("LC_ALL") or os.environ.get("LC_MESSAGES") or os.environ.get("LANG") or ""
    return Words(language or language_of(locale))


def language_of(locale: str) -> str:
    """The language of a locale name such as 'zh_CN.UTF-8'; English where there is none."""
    return "zh" if locale.lower().startswith("zh") else "en"
