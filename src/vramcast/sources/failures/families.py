"""All families of failures, in the order in which they are asked, and the statements of a run of words.

What each says stands in tables: `families.csv` has one row a library, `wordings.csv` one row a message, `phrases.csv`
what several messages have in common, written {name} there. A cell of `parts` or `holds` has one entry a line. A row
whose name begins with * stands for all rows of a template, as libraries made after PyTorch word things alike.

Where plain words stand, patterns are tried; what says more takes the place. A statement covers the text it was read
from, so that what callers print of the same failure is no second one. A weak statement, a title without figures, gives
way to any other near it.
[cuda] pytorch/pytorch c10/cuda/CUDACachingAllocator.cpp, c10/cuda/CUDAMallocAsyncAllocator.cpp
[torch] pytorch/pytorch aten/src/ATen/cuda/Exceptions.h, CUDABlas.cpp, CublasHandlePool.cpp, aten/src/ATen/native/cudnn
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from functools import cache
from typing import Final, NamedTuple

from msgspec import Struct
from msgspec.structs import replace

from vramcast.lazy import lazy_pattern
from vramcast.sources.failures.tables import TABLES
from vramcast.sources.failures.text import Run
from vramcast.sources.failures.wording import Family, Match, Numbers, Table, Wording, match_at, table

TRIED: Final = r"[.!:]{0,2} ?Tried to allocate ?<tried_bytes>"
MARKS: Final = (
    ("fraction", r"<allowed_bytes> allowed;"),
    ("pools", r"allocated in private pools"),
    ("other-process", r"Process [0-9]{1,10} has ?SIZE memory in use"),
)
OTHERS: Final = r"Process [0-9]{1,10} has ?<other_processes_bytes> memory in use"
REACH: Final = 1_600
CALLING: Final = r" ?,? when calling `?(?P<call__>[\w:]{1,80}(?:\([\w*&, >.-]{0,160}\))?)"

LAYOUTS: Final[dict[str, tuple[tuple[str, tuple[str, ...], str], ...]]] = {
    "": (
        ("capacity-2.13-vllm", ("total capacity of", "VLLM_MEMORY_PROFILER_ESTIMATE_CUDAGRAPHS"), "2.10 - 2.13"),
        ("capacity-2.10", ("total capacity of", "PYTORCH_ALLOC_CONF"), "2.10 - 2.13"),
        ("capacty-2.1", ("total capacty of",), "2.1"),
        ("capacity-2.2", ("total capacity of",), "2.2 - 2.9"),
        ("reserved+active", ("current active", "reserved in total"), "all"),
        ("reserved-advice-1.10", ("reserved in total", "reserved memory is >>"), "1.10 - 2.0"),
        ("reserved-1.4", ("already allocated", "reserved in total"), "1.4 - 1.9"),
        # its "cached" is what later versions call "reserved but unallocated": the source prints cached less allocated
        ("cached-1.0", ("already allocated", " cached"), "0.4.1 - 1.3"),
    ),
    "hip": (("capacity-2.2", ("total capacity of", "PYTORCH_HIP_ALLOC_CONF"), "2.2 - 2.8"),),
}
"""Name, words that must stand behind "Tried to allocate", versions of torch; the first that fits."""


def _layouts(words: str, kind: str, rest: str = r" ?<tried_bytes>") -> Iterator[Wording]:
    """A caching allocator's message in every version; where a log lost the first words, the layout tells PyTorch's."""
    for name, holds, versions in LAYOUTS[kind]:
        yield Wording(name, words, rest, _torch_parts(), holds, REACH, sums=OTHERS, marks=MARKS, versions=versions)


def _allocator(device: str, _: str) -> Iterator[Wording]:
    """Everything that the caching allocator of a device says."""
    words, parts = f"{device} out of memory", _torch_parts()
    yield Wording("1eb", words, r"\. ?Tried to allocate more than 1EB", versions="1.9 - 2.13")
    rejected = r"\.? ?Allocation (?:was )?preemptively rejected"
    yield Wording("preempted-2.13", words, rejected, parts, reach=REACH, versions="2.12 - 2.13")
    yield from _layouts(words, "", TRIED)
    yield Wording("tried-only", words, TRIED, parts, (), REACH, sums=OTHERS, marks=MARKS, versions="all")
    yield Wording("title-only", words, weak=True, versions="all")


def _errors(device: str, prefix: str) -> Iterator[Wording]:
    """What the check of a runtime call says."""
    at = r"(?: \([a-z]{2,8}ErrorMemoryAllocation\))?"
    told = (r"Search for [`']?[a-z]{2,8}ErrorMemoryAllocation", r"kernel errors might be asynchronously reported")
    yield Wording("driver", f"{device} error: out of memory", at, told, versions="1.5 - 2.13")
    yield Wording("driver", f"{device} error:out of memory")  # as people type it
    yield Wording("driver", f"{device} error: memory allocation", "", versions="2.0 - 2.13")
    yield Wording("driver-api", f"{device} driver error: out of memory", versions="2.1 - 2.13")
    for words in ("error (2) :", "error (2):", "err(2):"):
        yield Wording("runtime-0.4", f"{prefix} runtime {words} out of memory", versions="0.1 - 1.4")


def _status(status: str, name: str) -> Iterator[Wording]:
    """A library's status: as PyTorch words it, as others do, and bare."""
    for library in ("CUDA", "HIP", "cuDNN", "cusolver"):
        rest = r"(?: You can try to repro)?" if library == "cuDNN" else CALLING
        yield Wording(f"{name}-torch", f"{library} error: {status}", rest)
    yield Wording(name, status, before=r"(?P<call__>cu[a-z]{3,8}[A-Z]\w{2,60}\([^()]{0,60}\))")


TEMPLATES: Final[dict[str, Callable[[str, str], Iterator[Wording]]]] = {
    "*allocator": _allocator, "*errors": _errors, "*layouts": _layouts, "*status": _status,
}


@cache
def _phrases() -> dict[str, str]:
    phrases: dict[str, str] = {}
    for name, patterns in table("phrases.csv"):
        phrases[f"{{{name}}}"] = _written_out(patterns, phrases)
    return phrases


def _written_out(cell: str, phrases: dict[str, str]) -> str:
    for name, patterns in phrases.items() if "{" in cell else ():
        cell = cell.replace(name, patterns)
    return cell


def _lines(cell: str) -> tuple[str, ...]:
    return tuple(_written_out(cell, _phrases()).split("\n")) if cell else ()


@cache
def _torch_parts() -> tuple[str, ...]:
    """Each figure of a caching allocator's message on its own, since logs cut and shorten messages."""
    return _lines("{torch}")


def _wordings(row: list[str]) -> Iterator[Wording]:
    name, words, rest, parts, holds, reach, before, preceded, weak, versions = row + [""] * (10 - len(row))
    if name.startswith("*"):
        yield from TEMPLATES[name](words, rest)
    else:
        yield Wording(
            name, words, _written_out(rest, _phrases()), _lines(parts), _lines(holds), int(reach or 600), before,
            preceded, weak=bool(weak), versions=versions,
        )


def _families() -> dict[str, Family]:
    found: dict[str, list[Wording]] = {}
    for family, *row in table("wordings.csv"):
        found.setdefault(family, []).extend(_wordings(row))
    listed = {
        name: Family(title, tuple(found[name]), about, source) for name, title, about, source in table("families.csv")
    }
    return listed | TABLES


FAMILIES: Final[dict[str, Family]] = _families()
"""Of two that word the same, the first speaks."""

NO_WORDS: Final = lazy_pattern(r"\\.|\(\?P<\w+>|<[a-z_:]+>|\[[^\]]*\]")
"""Of a pattern: escapes, names of groups and figures, sets of characters."""


class Known(Struct, frozen=True):
    """A wording or a table, and whose it is."""

    family: str
    about: str
    entry: Wording | Table


@cache
def by_words() -> dict[str, tuple[Known, ...]]:
    """Plain words in lower case -> what may begin with them; what asks for more comes first."""
    found: dict[str, list[Known]] = {}
    for name, family in FAMILIES.items():
        entries: list[Wording | Table] = [*family.wordings, *family.tables]
        for entry in entries:
            found.setdefault(entry.words.lower(), []).append(Known(name, family.about, entry))
    return {words: tuple(sorted(entries, key=_order)) for words, entries in found.items()}


def _order(known: Known) -> tuple[bool, bool, int]:
    entry = known.entry
    if isinstance(entry, Table):
        return (False, False, 0)
    return (entry.weak, not entry.preceded, -len(entry.holds))


@cache
def vocabulary() -> frozenset[str]:
    """Every word that a wording consists of, in lower case."""
    entries = [entry for family in FAMILIES.values() for entry in family.wordings]
    texts = (" ".join((entry.words, entry.rest, *entry.parts, *entry.holds)) for entry in entries)
    return frozenset(word for text in texts for word in re.findall("[a-z]{2,}|a", NO_WORDS.sub(" ", text).lower()))


@cache
def by_roots() -> dict[str, tuple[str, ...]]:
    """A few single words -> the plain words that hold them: a text without a root needs no closer look for those."""
    wanted = set(by_words())
    candidates = sorted({word for words in wanted for word in _longest(words)})
    holders = {word: {words for words in wanted if word in words} for word in candidates}
    grouped: dict[str, tuple[str, ...]] = {}
    while wanted:
        best = max(candidates, key=lambda word: len(holders[word] & wanted))
        grouped[best] = tuple(sorted(holders[best] & wanted))
        wanted -= holders[best]
    return grouped


SHORT: Final = 1 << 14
"""Of such a text all plain words are looked for: it takes less than finding roots does [characters]."""


def may_speak(lowered: str) -> bool:
    """Whether a text in lower case may hold a statement: it does where one is, and seldom where none is."""
    if len(lowered) < SHORT and any(words in lowered for words in by_words()):
        return True
    unbroken = lowered.replace("\r", "").replace("\n", "")  # a line may end inside the root
    return any(root in lowered or root in unbroken for root in by_roots())


def _words_in(lowered: str) -> Iterator[str]:
    """The plain words that a text may hold."""
    if len(lowered) < SHORT:
        return iter(by_words())
    return (words for root, group in by_roots().items() if root in lowered for words in group)


def _longest(words: str) -> list[str]:
    """The two longest runs without a space: everyday words are short."""
    return sorted(words.split(), key=len)[-2:]


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


class Spoken(Struct, frozen=True):
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
        joined[-1] = replace(teller, start=last.start, end=item.end, numbers=item.numbers | last.numbers)
    return joined


def _agree(one: Spoken, other: Spoken) -> bool:
    if one.family != other.family or one.about == "support":
        return False
    if one.wording == other.wording and one.numbers == other.numbers and one.numbers:
        return False  # said again
    return all(one.numbers[name] == value for name, value in other.numbers.items() if name in one.numbers)


def _hits(run: Run) -> list[Hit]:
    hits: list[Hit] = []
    for words in _words_in(run.lowered):
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
        remembered[text] = [replace(item, start=item.start - hit.start, end=item.end - hit.start) for item in found]
    return [replace(item, start=item.start + hit.start, end=item.end + hit.start) for item in remembered[text]]


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
