"""A sentence in Chinese, by the English template that it was made from.

The layers below say what they assume, warn of and refuse in English, each sentence where its reason is known. The
catalogues in `words/zh` hold the templates of those sentences, with {names} where values stand, and the same in
Chinese. A sentence whose template nobody has translated stays English: nothing is lost.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator
from functools import cache, lru_cache
from pathlib import Path
from string import Formatter
from typing import Any, Final, NamedTuple

from msgspec import Struct
from msgspec.structs import replace

from vramcast.domain.answer import (
    Answer,
    Capacity,
    Change,
    Found,
    LedgerEntry,
    PostTrainingAnswer,
    RankAnswer,
    ServeAnswer,
    Speed,
    StepTime,
    Tried,
)
from vramcast.domain.planning import PlanAnswer, Reason, Technique
from vramcast.domain.trace_job import TraceAnswer, TracedTime
from vramcast.domain.verdict import Fit
from vramcast.errors import Note
from vramcast.report.messages import MESSAGES

SUBJECTS: Final = (
    "training", "serving", "post_training", "plans", "hardware", "configs", "tracing", "asking", "engines", "files",
    "writing", "tools", "targets", "web",
)
"""Catalogues of sentences: of answers, then of refusals."""

MOST_FACTOR: Final = 64
"""Of "N times the GPUs", which a change may cost."""

START: Final = 3
"""Characters of a name before its gap by which it comes first."""

REMEMBERED: Final = 4096
"""Templates and names kept with what they are: answers while somebody types repeat most of theirs."""

SIGNS: Final = {
    "; ": "；", ": ": "：", ", ": "、", " (": "（", ")": "）", " ": " ", " + ": " + ", " x ": " x ", "": "",
    " or ": " 或 ", " and ": " 与 ", " to ": " 至 ",
}
"""What stands between sentences or names in a template that says nothing itself, and the same in Chinese.
Sentences have a whole comma between them."""


def catalogue(name: str) -> Iterator[list[str]]:
    """The rows of `words/zh/NAME.csv`: an English text, and what stands for it."""
    path = Path(__file__).parent / "words" / "zh" / f"{name}.csv"
    _, *rows = csv.reader(path.read_text(encoding="utf-8").splitlines())
    yield from rows


@cache
def terms(kind: str) -> dict[str, str]:
    """What one word of an English answer is: a "cost" of a change, a "respect" in which plans differ, an "action" that
    follows from a finding, the question of a "decision" by its name, a "kind" of thing that is looked up."""
    found = {english: chinese for group, english, chinese in catalogue("terms") if group == kind}
    if kind == "cost":
        found |= {f"{factor} times the GPUs": f"{factor} 倍的卡" for factor in range(2, MOST_FACTOR + 1)}
    return found


@cache
def technique_texts() -> dict[str, tuple[str, str, str]]:
    """Technique -> its name, when to use it, what it needs."""
    return {english: (name, when, needs) for english, name, when, needs in catalogue("techniques")}


@cache
def option_texts() -> dict[str, str]:
    """Text of a table of options -> the same in Chinese."""
    return dict(catalogue("options"))


@cache
def templates() -> dict[str, str]:
    """Of all sentences."""
    return {english: chinese for subject in SUBJECTS for english, chinese in catalogue(subject)}


class Row(NamedTuple):
    """What the catalogues hold of a template."""

    names: tuple[str, ...]  # of its gaps, one after the other
    chinese: str


@cache
def rows() -> dict[str, Row]:
    """Template, gaps without names -> the same in Chinese. Made when the first one is asked for."""
    unknown = {"unknown {} {}{}": Row(("kind", "name", "hint"), "未知的{kind}：{name}{hint}")}  # see UnknownName.of
    verdicts = {str(fit): Row((), MESSAGES[f"verdict.{fit}"]["zh"]) for fit in Fit}
    return unknown | verdicts | dict(_row(*one) for one in (terms("kind") | terms("hint")).items()) | sentences()


@cache
def sentences() -> dict[str, Row]:
    """Those of them that a text without gaps may be."""
    return dict(_row(*one) for one in templates().items())


def _row(english: str, chinese: str) -> tuple[str, Row]:
    """A template whose gaps have names, without them.

    >>> _row("{model} has no experts; use ep=1", "{model} 没有专家；请用 ep=1")[0]
    '{} has no experts; use ep=1'
    """
    names = tuple(name for _, name, _, _ in Formatter().parse(english) if name is not None)
    return shape(english)[0], Row(names, chinese if names else chinese.format())


@lru_cache(REMEMBERED)
def shape(template: str) -> tuple[str, tuple[tuple[str, str], ...]]:
    """A template without conversions and formats of its gaps, and those.

    >>> shape("{} of {:,} {!r}")
    ('{} of {} {}', (('', ''), ('', ','), ('r', '')))
    """
    parts = [part for part in Formatter().parse(template) if part[0] or part[1] is not None]
    gaps = tuple((conversion or "", kind or "") for _, name, kind, conversion in parts if name is not None)
    return "".join(literal + ("" if name is None else "{}") for literal, name, _, _ in parts), gaps


def in_chinese(text: str) -> str:
    """A sentence of a layer below in Chinese; in English where no catalogue holds it.

    >>> in_chinese(Note("ep={}: {} has no experts to divide; use ep=1", 8, "llama-3.1-8b"))
    'ep=8：llama-3.1-8b 没有可切分的专家；请用 ep=1'
    """
    if not isinstance(text, Note) or not text.values:
        row = (rows() if isinstance(text, Note) else sentences()).get(text)
        return text if row is None or row.names else row.chinese
    english, gaps = shape(text.template)
    values = [
        format(value, kind) if kind
        else in_chinese(value) if isinstance(value, Note) or (isinstance(value, str) and " " in value) else str(value)
        for (_, kind), value in zip(gaps, text.values, strict=True)
    ]
    values = [repr(value) if gap[0] else value for gap, value in zip(gaps, values, strict=True)]
    row = rows().get(english)
    if row is not None:
        return row.chinese.format_map(dict(zip(row.names, values, strict=True)))
    around = SIGNS | {", ": "，"} if any(isinstance(value, Note) for value in text.values) else SIGNS
    signs = english.split("{}")
    if not around.keys() >= set(signs):
        return str(text)
    return "".join(around[sign] + value for sign, value in zip(signs, (*values, ""), strict=True))


@cache
def _names() -> tuple[dict[str, str], list[tuple[re.Pattern[str], str]]]:
    """What entries of ledgers are called, those that describe; then those of something that has a name of its own."""
    whole = dict(catalogue("ledger"))
    gaps = sorted((name for name in whole if "{" in name),
                  key=lambda name: (name.find("{") < START, -len(re.sub("{.*?}", "", name))))
    return whole, [(re.compile(re.sub(r"\\{(\w+)\\}", r"(?P<\1>.+)", re.escape(name))), whole[name]) for name in gaps]


@lru_cache(REMEMBERED)
def name_in_chinese(path: str) -> str:
    """The name of an entry of a ledger: parts that describe in Chinese, those that name a module as they are.

    >>> name_in_chinese("decoder.layers/gradient of hidden states"), name_in_chinese("mlp.gate")
    ('decoder.layers/隐藏状态的梯度', 'mlp.gate')
    """
    whole, named = _names()
    if path in whole or "/" not in path:
        found = ((name.fullmatch(path), chinese) for name, chinese in named)
        said = (chinese.format_map(match.groupdict()) for match, chinese in found if match)
        return whole.get(path) or next(said, path)
    return "/".join(map(name_in_chinese, path.split("/")))


SEVERAL_VALUES: Final = "; several: "
"""Between the text of an option and the example of an axis that takes several values of it."""


def help_of(text: str, language: str) -> str:
    """The text of an option in a language; in English where nobody has translated it.

    >>> help_of("pipeline stages; several: 1,2,4", "zh")
    '流水线级数；可给多个：1,2,4'
    """
    if language == "en":
        return text
    said, mark, example = text.partition(SEVERAL_VALUES)
    return option_texts().get(said, said) + mark.replace(SEVERAL_VALUES, "；可给多个：") + example


TOLD: Final = ("ignored", "assumptions", "warnings")
SENTENCES: Final[dict[type[Struct], tuple[str, ...]]] = {
    PlanAnswer: TOLD, Reason: ("text",), Technique: ("lacks",), StepTime: ("sources", "assumptions"),
    Speed: ("sources",), RankAnswer: ("role",), LedgerEntry: ("formula", "source"), Found: ("what",),
    Tried: ("what", "reason"), Capacity: ("tokens_by_count",),
    ServeAnswer: (*TOLD, "cautions", "startup", "shortfall"), PostTrainingAnswer: (*TOLD, "cautions", "shortfall"),
    TracedTime: ("sources", "left_out"), TraceAnswer: (*TOLD, "cautions", "stopped"),
    Answer: (*TOLD, "cautions"),
}
"""Noun -> its fields that speak English: a sentence, several, or a dictionary by such names."""

INSIDE: Final = (
    "plans", "nearest_failing", "change", "reasons", "techniques", "ranks", "changes", "found", "tried", "time",
    "traced_time", "capacity", "speed", "ledger",
)
"""Fields that hold such nouns."""


def spoken(noun: Any) -> Any:
    """An answer, or that of a search, in Chinese: what was assumed and warned of, why it does not fit, names, formulas
    and sources. Figures, options and names of modules stay, and categories of ledgers: reports have words for them;
    decisions and techniques have words of their own."""
    if isinstance(noun, tuple):
        return tuple(map(spoken, noun))
    if not isinstance(noun, Struct):
        return noun
    if isinstance(noun, Change):
        return replace(noun, cost=_cost(noun.cost), name=_technique(noun.name))
    fields = next(fields for kind, fields in SENTENCES.items() if isinstance(noun, kind))
    changed = {name: _said(getattr(noun, name)) for name in fields}
    changed |= {name: spoken(getattr(noun, name)) for name in INSIDE if name in noun.__struct_fields__}
    if isinstance(noun, LedgerEntry):
        category, mark, name = noun.path.partition("/")
        changed["path"] = category + mark + name_in_chinese(name)
    return replace(noun, **changed)


def _said(value: Any) -> Any:
    if isinstance(value, dict):
        return {in_chinese(name): size for name, size in value.items()}
    if isinstance(value, tuple):
        return tuple(map(in_chinese, value))
    return value if value is None else in_chinese(value)


def _cost(text: str) -> str:
    """What changes cost, one behind the other."""
    if isinstance(text, Note) and set(text.template.split("; ")) == {"{}"}:
        return "；".join(_cost(one) for one in text.values if isinstance(one, str))
    return terms("cost").get(text) or in_chinese(text)


def _technique(text: str) -> str:
    """Names of techniques, one beside the other."""
    if isinstance(text, Note):
        return " + ".join(_technique(str(one)) for one in text.values)
    return technique_texts().get(text, ("",))[0] or terms("change").get(text) or text
