"""A sentence in Chinese, by the English template that it was made from.

The layers below say what they assume, warn of and refuse in English, each sentence where its reason is known. The
catalogues in `words/zh` hold the templates of those sentences, with {names} where values stand, and the same in
Chinese. A sentence whose template nobody has translated stays English: nothing is lost.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterable, Iterator, Mapping
from functools import cache, lru_cache
from itertools import pairwise
from pathlib import Path
from string import Formatter
from typing import Any, Final, NamedTuple

from msgspec import Struct
from msgspec.structs import replace

from vramcast.domain.answer import (
    Answer,
    Capacity,
    Change,
    Fit,
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
from vramcast.domain.traced import TraceAnswer, TracedTime
from vramcast.report.messages import MESSAGES

SUBJECTS: Final = (
    "training", "serving", "post_training", "plans", "hardware", "configs", "tracing", "asking", "engines", "files",
    "writing", "tools", "targets", "web",
)
"""Catalogues of sentences: of answers, then of refusals."""

MOST_FACTOR: Final = 64
"""Of "N times the GPUs", which a change may cost."""

REMEMBERED: Final = 4096
"""Sentences kept with their Chinese: answers while somebody types repeat most of theirs."""

LONGEST: Final = 4000
"""Characters of a text that is looked up; no template makes a longer one."""

START: Final = 3
"""Characters of its beginning by which a template is found."""

JOINTS: Final = {"; ": "；", ": ": "：", " + ": " + ", ", ": "，"}
"""What joins sentences into one, the weakest joint first, and the same in Chinese."""

SEVERAL: Final = "; "
"""Stands in no value but in one that is sentences of its own."""

MOST_PARTS: Final = 4
"""Parts between joints that one sentence has."""

WITHOUT: Final = {"": "", "w": " ", "v": ", "}
"""What stands behind the name of a gap -> what no value there has: "{name:w}" is one word, "{size:v}" one value."""

LISTED: Final = re.compile(r"((?:--\S+ )?\S+(?:, (?:--\S+ )?\S+)*?),? (or|and|to) ((?:--\S+ )?\S+)")
"""Names, options or numbers one after the other."""
BETWEEN: Final = {"or": "或", "and": "与", "to": "至"}
"""What stands before the last of them."""

MOST_JOINTS: Final = 40
"""Joints of a text that is taken apart: what is looked up grows with their square."""


class Gap(NamedTuple):
    """Where a value stands in a sentence."""

    name: str
    without: str  # what no value has that stands here, "" where it may have anything; see WITHOUT
    is_open: bool  # at the end or in brackets: may hold sentences of its own

    def holds(self, value: str) -> bool:
        """Whether a text may be what stands here."""
        return not (self.without and self.without in value) and (self.is_open or SEVERAL not in value)


class Template(NamedTuple):
    """An English sentence with gaps."""

    literals: tuple[str, ...]  # what stands around the gaps, one more than there are gaps
    gaps: tuple[Gap, ...]
    chinese: str

    @property
    def weight(self) -> int:
        """Characters that are not gaps: the more, the surer it is that a sentence was made from it."""
        return sum(map(len, self.literals))

    def values(self, text: str) -> dict[str, str] | None:
        """What fills the gaps; None where the text was not made from this template. Takes linear time: every literal
        is taken where it first stands."""
        first, *middle, last = self.literals
        end = len(text) - len(last)
        if not text.startswith(first) or not text.endswith(last) or end <= len(first):
            return None
        place, values = len(first), []
        for literal in middle:
            found = text.find(literal, place + 1, end)
            if found < 0:
                return None
            values.append(text[place:found])
            place = found + len(literal)
        if place >= end:
            return None
        filled = tuple(zip(self.gaps, (*values, text[place:end]), strict=True))
        return {gap.name: value for gap, value in filled} if all(gap.holds(value) for gap, value in filled) else None


class Table:
    """Templates, found by how they begin."""

    def __init__(self, rows: Mapping[str, str]) -> None:
        self.exact: dict[str, str] = {}
        self._by_start: dict[str, list[Template]] = {}
        self._others: list[Template] = []  # begin with a gap, or too soon before one
        templates = []
        for english, chinese in rows.items():
            found = template(english, chinese)
            if found.gaps:
                templates.append(found)
            else:
                self.exact[found.literals[0]] = chinese.format()
        for found in sorted(templates, key=lambda one: -one.weight):
            start = found.literals[0][:START]
            (self._by_start.setdefault(start, []) if len(start) == START else self._others).append(found)

    def said(self, text: str) -> str | None:
        """The Chinese of a whole sentence, its values in Chinese too; None where no template made it."""
        if text in self.exact:
            return self.exact[text]
        found = self._filled(text, self._by_start.get(text[:START], ()))
        return found if found is not None else self._filled(text, self._others)

    def _filled(self, text: str, templates: Iterable[Template]) -> str | None:
        for one in templates:
            values = one.values(text)
            if values is not None:
                return one.chinese.format_map({name: _value(value) for name, value in values.items()})
        return None


def _value(text: str) -> str:
    """What fills a gap: a sentence or a list in Chinese, a name or a number as it is.

    >>> _value("--engine megatron or torchtitan"), _value("weights")
    ('--engine megatron 或 torchtitan', 'weights')
    """
    if " " not in text:
        return text
    listed = LISTED.fullmatch(text)
    if listed is None:
        return in_chinese(text)
    head, word, last = listed.groups()
    return f"{head.replace(', ', '、')} {BETWEEN[word]} {last}"


def template(english: str, chinese: str) -> Template:
    """A row of a table, taken apart.

    >>> template("{model} has no experts; use ep=1", "").literals
    ('', ' has no experts; use ep=1')
    """
    literals, names = [""], []
    for literal, name, kind, _ in Formatter().parse(english):
        literals[-1] += literal
        if name is not None:
            names.append((name, WITHOUT[kind or ""]))
            literals.append("")
    gaps = (
        Gap(name, without, is_open=not after or (before.endswith("(") and after.startswith(")")))
        for (name, without), (before, after) in zip(names, pairwise(literals), strict=True)
    )
    return Template(tuple(literals), tuple(gaps), chinese)


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
    """Of all sentences; those that are made of two parts, one by one."""
    found = {
        f"unknown {kind} {{name}}{hint}": f"未知的{chinese}：{{name}}{said}"
        for kind, chinese in terms("kind").items() for hint, said in terms("hint").items()
    }
    found |= {
        f"the file's own plan on {{gpus}}: {fit}, {{size}} of {{there}} per GPU{english}":
            f"文件自身的方案在 {{gpus}} 上：{MESSAGES[f'verdict.{fit}']['zh']}，"
            f"每卡 {{size}}（可用 {{there}}）{chinese}"
        for english, chinese in terms("speed").items() for fit in Fit
    }
    return found | {english: chinese for subject in SUBJECTS for english, chinese in catalogue(subject)}


@cache
def sentences() -> Table:
    """All sentences. Made when the first one is asked for: nothing English needs it."""
    return Table(templates())


@cache
def _names() -> Table:
    """What entries of ledgers are called: those that describe; names of modules and tensors stay."""
    return Table(dict(catalogue("ledger")))


@lru_cache(REMEMBERED)
def in_chinese(text: str) -> str:
    """A sentence of a layer below in Chinese; of several joined ones those that are known; else as it is.

    >>> in_chinese("ep=8: llama-3.1-8b has no experts to divide; use ep=1")
    'ep=8：llama-3.1-8b 没有可切分的专家；请用 ep=1'
    >>> in_chinese("512 x 4096 x 2 B")
    '512 x 4096 x 2 B'
    """
    if not 1 < len(text) <= LONGEST:
        return text
    whole = sentences().said(text)
    return whole if whole is not None else _joined(text)


def _joined(text: str) -> str:
    """Sentences that stand in one, each in Chinese; as it is where none of them is known.

    >>> _joined("ep=8: gpt2 has no experts to divide; use ep=1; a name; pp=2 is more than the 1 layers; use at most 1")
    'ep=8：gpt2 没有可切分的专家；请用 ep=1；a name；pp=2 超过 1 层；最多用 1'
    """
    if sum(text.count(joint) for joint in JOINTS) > MOST_JOINTS:
        return text
    if text.endswith(")"):
        head, mark, tail = text[:-1].partition(" (")
        if mark and (said := in_chinese(head)) != head:
            return f"{said}（{_value(tail)}）"
    for joint, chinese in JOINTS.items():
        parts = text.split(joint)
        if len(parts) > 1 and (known := list(_grouped(parts, joint))) != parts:
            return chinese.join(known)
    return text


def _grouped(parts: list[str], joint: str) -> Iterator[str]:
    """The Chinese of neighbouring parts that are one sentence, the most of them that are; else of each part."""
    place = 0
    while place < len(parts):
        ends = range(min(place + MOST_PARTS, len(parts)), place + 1, -1)
        whole = ((end, sentences().said(joint.join(parts[place:end]))) for end in ends if end - place < len(parts))
        end, found = next(((end, said) for end, said in whole if said is not None), (place + 1, None))
        yield found if found is not None else _value(parts[place])
        place = end


@lru_cache(REMEMBERED)
def name_in_chinese(path: str) -> str:
    """The name of an entry of a ledger: parts that describe in Chinese, those that name a module as they are.

    >>> name_in_chinese("decoder.layers/gradient of hidden states"), name_in_chinese("mlp.gate")
    ('decoder.layers/隐藏状态的梯度', 'mlp.gate')
    """
    if not 1 < len(path) <= LONGEST:
        return path
    said = (_names().said(part) or part for part in path.split("/"))
    return "/".join(said)


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
    TracedTime: ("sources", "left_out"), TraceAnswer: (*TOLD, "cautions", "stopped", "interval_basis"),
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
        return replace(noun, cost=_cost(noun.cost))
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
    """What changes cost, one behind the other; a cost may hold the mark that parts them."""
    costs, parts = terms("cost"), text.split("; ")
    found = []
    while parts:
        length = next((size for size in range(len(parts), 0, -1) if "; ".join(parts[:size]) in costs), 1)
        one, parts = "; ".join(parts[:length]), parts[length:]
        found.append(costs.get(one) or in_chinese(one))
    return "；".join(found)
