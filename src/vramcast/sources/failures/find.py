"""Statements of a run of words: where plain words stand, patterns are tried; what says more takes the place.

A statement covers the text it was read from, so that what callers print of the same failure is no second one. A weak
statement, a title without figures, gives way to any other near it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

from vramcast.sources.failures.families import Known, by_roots, by_words
from vramcast.sources.failures.text import Run
from vramcast.sources.failures.wording import Match, Numbers, Table, match_at

ECHO_BEHIND: Final = 2_000
"""How far behind a statement a title is its echo [characters]."""

ECHO_BEFORE: Final = 800
"""How far before a statement a title announces it [characters]."""

TOGETHER: Final = 300
"""How far apart two lines of one failure stand [characters]."""

MOST_HITS: Final = 200_000
"""Places of one run that are looked at."""


WORD: Final = frozenset("abcdefghijklmnopqrstuvwxyz0123456789_")
"""Behind one of these a word goes on: "OutOfMemoryError" is no "MemoryError"."""


class Spoken(NamedTuple):
    """A statement at its place in a run."""

    start: int
    end: int
    family: str
    about: str
    wording: str
    versions: str
    weak: bool
    numbers: Numbers


Remembered = dict[str, list[Spoken]]
LONGEST_REMEMBERED: Final = 1_024
MOST_REMEMBERED: Final = 1_024


class Hit(NamedTuple):
    """Plain words at a place."""

    start: int
    order: int  # the longer words first
    words: str
    following: int  # where the same words stand next


def spoken(run: Run) -> list[Spoken]:
    """All statements of a run, in order."""
    strong: list[Spoken] = []
    weak: list[Spoken] = []
    covered = 0
    remembered: Remembered = {}
    for hit in _hits(run):
        if hit.start < covered:
            continue
        found = _said(run, hit, remembered)
        if not found:
            continue
        if found[0].weak:
            weak += found
        else:
            strong += found
            covered = found[-1].end
    return _told_together(sorted([*strong, *_alone(weak, strong)], key=lambda item: item.start))


def _told_together(items: list[Spoken]) -> list[Spoken]:
    """Lines of one library that follow each other and contradict nothing are one failure told in several."""
    joined: list[Spoken] = []
    for item in items:
        last = joined[-1] if joined else None
        if last is None or item.start - last.end > TOGETHER or not _agree(last, item):
            joined.append(item)
            continue
        teller = last if len(last.numbers) >= len(item.numbers) else item
        joined[-1] = teller._replace(start=last.start, end=item.end, numbers=item.numbers | last.numbers)
    return joined


def _agree(one: Spoken, other: Spoken) -> bool:
    if one.family != other.family or one.about == "support":
        return False
    if one.wording == other.wording and one.numbers == other.numbers and one.numbers:
        return False  # said again
    return all(one.numbers[name] == value for name, value in other.numbers.items() if name in one.numbers)


def _hits(run: Run) -> list[Hit]:
    hits: list[Hit] = []
    for words in (words for root, group in by_roots().items() if root in run.lowered for words in group):
        start = run.lowered.find(words)
        inside_word = words[0].isalnum()
        while start >= 0 and len(hits) < MOST_HITS:
            following = run.lowered.find(words, start + len(words))
            if not (inside_word and start and run.lowered[start - 1] in WORD):
                hits.append(Hit(start, -len(words), words, following if following >= 0 else len(run.text)))
            start = following
    return sorted(hits)


def _said(run: Run, hit: Hit, remembered: Remembered) -> list[Spoken]:
    """What is said at a place: by whoever is asked first. Logs repeat themselves, so short messages are remembered."""
    if hit.following - hit.start > LONGEST_REMEMBERED or any(_looks_back(known) for known in by_words()[hit.words]):
        return next(filter(None, (_tried(known, run, hit) for known in by_words()[hit.words])), [])
    text = run.text[hit.start : hit.following]
    if text not in remembered:
        if len(remembered) >= MOST_REMEMBERED:
            remembered.clear()
        found = next(filter(None, (_tried(known, run, hit) for known in by_words()[hit.words])), [])
        remembered[text] = [item._replace(start=item.start - hit.start, end=item.end - hit.start) for item in found]
    return [item._replace(start=item.start + hit.start, end=item.end + hit.start) for item in remembered[text]]


def _looks_back(known: Known) -> bool:
    return isinstance(known.entry, Table) or bool(known.entry.before or known.entry.preceded)


def _tried(known: Known, run: Run, hit: Hit) -> list[Spoken]:
    entry = known.entry
    if isinstance(entry, Table):
        stop = min(len(run.text), hit.start + entry.reach, hit.following)
        return [_spoken(known, match, match.start, "", False) for match in entry.read(run.text, hit.start, stop)]
    match = match_at(entry, run.text, run.lowered, hit.start, hit.following)
    return [_spoken(known, match, hit.start, entry.versions, entry.weak)] if match else []


def _spoken(known: Known, match: Match, start: int, versions: str, weak: bool) -> Spoken:
    return Spoken(start, match.end, known.family, known.about, match.name, versions, weak, match.numbers)


def _alone(weak: list[Spoken], strong: list[Spoken]) -> Iterator[Spoken]:
    """The weak statements that no other explains."""
    near = [item for item in strong if item.about != "support"]
    index, last = 0, -ECHO_BEHIND
    for item in weak:
        while index < len(near) and near[index].end + ECHO_BEHIND < item.start:
            index += 1
        if index < len(near) and near[index].start - ECHO_BEFORE < item.end:
            continue
        if item.start - last >= ECHO_BEHIND // 4:
            yield item
        last = item.end
