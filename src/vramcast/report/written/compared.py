"""Two answers that `--json` wrote, side by side: how the peak changed, what changed it, whether a budget holds it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from datetime import date
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec

from vramcast.domain.answer import LedgerEntry
from vramcast.domain.trace_job import Holding
from vramcast.domain.verdict import Fit
from vramcast.errors import InvalidSpec, SourceError
from vramcast.question.option import parse_bytes, parse_share
from vramcast.report.columns import table_lines
from vramcast.report.document import SCHEMA
from vramcast.report.messages import Words
from vramcast.report.sentences import TONES, word_of
from vramcast.report.trace import merged
from vramcast.report.written import answers, parts
from vramcast.units import format_bytes

LIST: Final = 12
"""Rows of a table; what is below them is summed up in one."""
HOLDERS: Final = {"module": "module", "function": "line"}
"""What traced code is cut into -> the holdings of its answer that tell."""
LINE: Final = re.compile(r"(?<=\.py):\d+(?= )")
LEVELS: Final = ("allocated", "reserved", "device")


class WrittenPeak(msgspec.Struct, frozen=True):
    """A peak of a document [bytes]."""

    allocated_bytes: int
    reserved_bytes: int
    device_bytes: int


class WrittenRank(msgspec.Struct, frozen=True):
    """A rank role of a document."""

    role: str
    ledger: list[LedgerEntry]


class WrittenAnswer(msgspec.Struct, frozen=True):
    """What is read of an answer's document; the first rank decides."""

    schema: int
    question: dict[str, Any]
    verdict: Fit
    fits: bool
    peak: WrittenPeak
    needed_bytes: int
    capacity_bytes: int
    ranks: list[WrittenRank]
    holdings: dict[str, list[Holding]] = {}


class Moved(NamedTuple):
    """Something named that both answers may hold [bytes]."""

    name: str
    before: int
    after: int

    @property
    def change(self) -> int:
        return self.after - self.before


def read_answer(text: str | bytes, name: str) -> WrittenAnswer:
    """The answer that a command printed with --json.

    Raises: SourceError where it is none of one plan
    """
    try:
        answer = msgspec.json.decode(text, type=WrittenAnswer)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise SourceError("{}: no answer to one plan, as --json writes it: {}", name, str(error)[:200]) from None
    if answer.schema != SCHEMA or not answer.ranks:
        raise SourceError(
            "{}: an answer of schema {} cannot be compared; ask it again with --json", name, answer.schema)
    return answer


def limit_bytes(budget: str, before: int | None) -> int | None:
    """The most that may be needed: "22GiB", or "+2GiB" and "+5%" above what was; None where nothing was before.

    >>> limit_bytes("1KiB", None), limit_bytes("+1KiB", 1024), limit_bytes("+50%", 1024), limit_bytes("+5%", None)
    (1024, 2048, 1536, None)

    Raises: InvalidSpec that says how to write it
    """
    text = budget.strip()
    if text.endswith("%") and not text.startswith("+"):
        raise InvalidSpec("--budget {} is a share of nothing; use 22GiB, or +5% or +2GiB above what was", budget[:80])
    if not text.startswith("+"):
        return parse_bytes("budget", text)
    growth = text[1:]
    if growth.endswith("%"):
        share = parse_share("budget", growth)
        return None if before is None else int(before * (1 + share))
    more = parse_bytes("budget", growth)
    return None if before is None else before + more


class Comparison(NamedTuple):
    """Two answers; of the first one none where the question had none, and then why."""

    before: WrittenAnswer | None
    after: WrittenAnswer
    budget: str | None = None
    refusal: str = ""
    names: tuple[str, str] = ("", "")

    @property
    def limit(self) -> int | None:
        """What the budget comes to; None where there is none, or nothing that it counts from [bytes]."""
        before = None if self.before is None else self.before.needed_bytes
        return None if self.budget is None else limit_bytes(self.budget, before)

    @property
    def is_over(self) -> bool:
        """Whether more is needed than the budget has."""
        return self.limit is not None and self.after.needed_bytes > self.limit

    def entries(self) -> list[Moved]:
        """Entries of the fullest rank's ledger that changed, the largest change first."""
        return _moved(*({entry.path: entry.num_bytes for entry in one.ranks[0].ledger} for one in self._both()))

    def holders(self, kind: str) -> list[Moved]:
        """Modules or functions of traced code that hold more or less; many whose names differ in numbers are one."""
        both = [one.holdings.get(HOLDERS[kind], []) for one in self._both()]
        if not all(both):
            return []
        apart, together = (_moved(*map(_by_name, way)) for way in (both, map(merged, both)))
        return apart if len(apart) <= LIST else together

    def settings(self) -> list[tuple[str, str, str]]:
        """What is asked differently: name, before, after."""
        flat = [dict(_flat(one.question)) for one in self._both()]
        names = dict.fromkeys(name for one in flat for name in one)
        rows = ((name, *(str(one.get(name, "-")) for one in flat)) for name in names)
        return [(name, before, after) for name, before, after in rows if before != after]

    def _both(self) -> tuple[WrittenAnswer, ...]:
        return () if self.before is None else (self.before, self.after)

    def document(self) -> dict[str, Any]:
        """As JSON has it; what is unknown is absent."""
        found: dict[str, Any] = {"schema": SCHEMA, "head": _levels(self.after) | {"fits": self.after.fits}}
        if self.before is not None:
            found["base"] = _levels(self.before) | {"fits": self.before.fits}
            found["change_bytes"] = self.after.needed_bytes - self.before.needed_bytes
            rows = {"entries": self.entries()} | {f"{kind}s": self.holders(kind) for kind in HOLDERS}
            found |= {key: [one._asdict() for one in moved] for key, moved in rows.items() if moved}
            found["question"] = [{"name": name, "before": old, "after": new} for name, old, new in self.settings()]
        else:
            found["refusal"] = self.refusal
        if self.limit is not None:
            found["budget"] = {"limit_bytes": self.limit, "exceeded": self.is_over}
        return found


def _levels(answer: WrittenAnswer) -> dict[str, Any]:
    return {"needed_bytes": answer.needed_bytes, "peak": msgspec.to_builtins(answer.peak)}


def _moved(before: Mapping[str, int] | None = None, after: Mapping[str, int] | None = None) -> list[Moved]:
    old, new = before or {}, after or {}
    rows = (Moved(name, old.get(name, 0), new.get(name, 0)) for name in dict.fromkeys((*new, *old)))
    return sorted((row for row in rows if row.change), key=lambda row: -abs(row.change))


def _by_name(held: Iterable[Holding]) -> dict[str, int]:
    """Bytes by name; lines of a function are one, as any of them moves where another is put in before it."""
    found: dict[str, int] = {}
    for one in held:
        name = LINE.sub("", one.name)
        found[name] = found.get(name, 0) + one.num_bytes
    return found


def _flat(value: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, part in value.items():
        if isinstance(part, Mapping):
            yield from _flat(part, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", part


def compared_report(command: str, found: Comparison, words: Words, *, asked: str, today: date) -> parts.Report:
    """The report on a comparison; `asked` stands in its title alone."""
    sections = list(comparison_sections(found, words))
    title = words(f"report.title.{command}", name=_target(found.after))
    tone = TONES[Fit.NOT] if found.is_over else TONES[found.after.verdict]
    return answers.report(words, title, opening(found, words), tone, sections, today=today)


def _target(answer: WrittenAnswer) -> str:
    """What is asked about: a model or a traced target, on which cards."""
    asked = answer.question
    return ", ".join(str(asked[key]) for key in ("model", "target", "gpus", "gpu", "engine") if asked.get(key))


def opening(found: Comparison, words: Words) -> Iterator[str]:
    """How the peak changed, and what the budget says to that."""
    after = found.after
    facts = {
        "after": format_bytes(after.needed_bytes), "capacity": format_bytes(after.capacity_bytes),
        "verdict": word_of(after.verdict, words),
    }
    if found.before is None:
        yield words("compare.new", **facts)
        yield words("compare.no_base", name=found.names[0], reason=words.said(found.refusal))
    else:
        before, change = found.before.needed_bytes, after.needed_bytes - found.before.needed_bytes
        changed = f"{_signed(change)}, {change / before:+.1%}" if change else words("compare.same")
        yield words("compare.peak", before=format_bytes(before), change=changed, **facts)
    if found.budget is not None and found.limit is None:
        yield words("compare.no_limit", budget=found.budget)
    elif found.limit is not None:
        excess = after.needed_bytes - found.limit
        key = "compare.over" if found.is_over else "compare.within"
        yield words(key, budget=found.budget, limit=format_bytes(found.limit), size=format_bytes(abs(excess)))


def _signed(num_bytes: int) -> str:
    return ("+" if num_bytes > 0 else "") + format_bytes(num_bytes)


def comparison_sections(found: Comparison, words: Words) -> Iterator[parts.Section]:
    """Levels, entries, modules and lines, and what is asked differently."""
    if found.before is None:
        return
    peaks = (found.before.peak, found.after.peak)
    levels = [Moved(words(level), *(getattr(peak, f"{level}_bytes") for peak in peaks)) for level in LEVELS]
    yield _section("compare.levels", levels if any(row.change for row in levels) else [], words)
    yield _section("compare.entries", found.entries(), words)
    for kind, title, none in (
        ("module", "replay.modules", "replay.no_module"), ("function", "compare.functions", "replay.unnamed"),
    ):
        yield _section(title, [row._replace(name=row.name or words(none)) for row in found.holders(kind)], words)
    settings = tuple(found.settings())
    if len(settings) > LIST:
        settings = (*settings[:LIST], (words("compare.others", count=len(settings) - LIST), "", ""))
    head = (words("compare.what"), words("compare.before"), words("compare.after"))
    yield parts.Section(words("compare.settings"), (parts.Table(head, settings),) if settings else ())


def _section(title: str, rows: list[Moved], words: Words) -> parts.Section:
    kept, rest = rows[:LIST], rows[LIST:]
    if rest:
        others = Moved(words("compare.others", count=len(rest)), *(sum(part) for part in zip(*(
            (row.before, row.after) for row in rest), strict=True)))
        kept = [*kept, others]
    cells = tuple((row.name, *map(format_bytes, row[1:]), _signed(row.change)) for row in kept)
    head = (words("compare.what"), *(words(f"compare.{key}") for key in ("before", "after", "change")))
    return parts.Section(words(title), (parts.Table(head, cells, right=frozenset({1, 2, 3})),) if cells else ())


def render(found: Comparison, words: Words) -> str:
    """The same on a terminal."""
    first, *others = opening(found, words)
    lines = [first, *(f"  {line}" for line in others)]
    for section in comparison_sections(found, words):
        for part in section.parts:
            if isinstance(part, parts.Table):
                rows: Iterable[tuple[str, ...]] = [part.head, *(tuple(map(str, row)) for row in part.rows)]
                lines += ["", section.title, *table_lines(rows, right=part.right)]
    return "\n".join(lines) + "\n"


def read_answer_file(path: Path) -> WrittenAnswer:
    """The answer in a file.

    Raises: SourceError where it cannot be read, or is none
    """
    try:
        return read_answer(path.read_bytes(), str(path))
    except OSError as error:
        raise SourceError("{}: {}", path, error.strerror or str(error)) from None
