"""Facts beside a failure, as tables: versions, cards and settings anywhere; what a traceback passes through; steps.

They decide nothing here. Patterns are bounded and tried only where plain words stand.
"""

from __future__ import annotations

import re
from collections import deque
from functools import cache
from typing import Final, NamedTuple

from vramcast.sources.failures.figures import table
from vramcast.sources.failures.text import Run

VERSION: Final = r"[0-9]{1,4}\.[0-9]{1,4}(?:\.[0-9]{1,6})?(?:[.+-]?[0-9A-Za-z.+]{1,40})?"


class Said(NamedTuple):
    """A fact that stands anywhere: plain words, and a pattern that begins with them; its group is the value."""

    words: str
    pattern: str
    meaning: str = ""


def _facts() -> dict[str, tuple[Said, ...]]:
    found: dict[str, tuple[Said, ...]] = {}
    for name, words, pattern, *meaning in table("facts.csv"):
        for said in words.split("\n"):
            first = meaning[0] if meaning and name not in found else ""
            found[name] = (*found.get(name, ()), Said(said, pattern.replace("VERSION", VERSION), first))
    return found


FACTS: Final[dict[str, tuple[Said, ...]]] = _facts()
"""Name -> where it stands; the meaning is told once."""

ROOTS: Final = ("nan", "-inf", "loss=inf", "loss: inf", "overflow", "loss scale")
"""What stands in a stretch without any failure that facts are looked for in all the same, in lower case."""

PATHS: Final[dict[str, tuple[tuple[str, ...], str]]] = {
    name: (tuple(words.split("\n")), meaning) for name, words, meaning in table("paths.csv")
}
"""Name -> words of a traceback that passes there, and what that means."""

FRAME: Final = re.compile(r"File \"([^\"]{1,400})\", line ([0-9]{1,8}), in ([\w.<>]{1,120})", re.ASCII)
LIBRARY: Final = re.compile(
    r"site-packages|dist-packages|[/\\]lib[/\\]python[0-9.]{1,5}[/\\]|[/\\]torch[/\\]|<frozen|<string>|[/\\]vllm[/\\]|[/\\]sglang[/\\]|[/\\]bin[/\\]",
    re.ASCII,
)
PROGRESS: Final[dict[str, re.Pattern[str]]] = {
    "epoch": re.compile(r"\bepochs?\b[\"' :=\[(#]{1,4}([0-9]{1,7})", re.ASCII | re.IGNORECASE),
    "step": re.compile(
        r"\b(?:global_step|step|steps|iter|iteration|batch)\b[\"' :=\[(#]{1,4}([0-9]{1,9})", re.ASCII | re.IGNORECASE
    ),
}
"""Where a run stood: the last number stated before the failure."""

RANK: Final = re.compile(
    r"\[(?:rank|default|Rank|RANK) ?:?([0-9]{1,5})\]|\brank ?([0-9]{1,5}):|\[[0-9]{1,4},([0-9]{1,5})\]<std", re.ASCII
)

MOST_OF_A_FACT: Final = 16
"""Different values that are kept of one fact."""

WINDOW: Final = 16 << 10
"""How far before a statement its traceback and progress are looked for [characters]."""


class Stated(NamedTuple):
    """A fact at a place of a run."""

    name: str
    value: str | int
    at: int


@cache
def _compiled(pattern: str) -> re.Pattern[str]:
    return re.compile(pattern, re.ASCII | re.IGNORECASE)


def stated(run: Run) -> list[Stated]:
    """What a run says anywhere."""
    found: list[Stated] = []
    for name, sayings in FACTS.items():
        values: dict[str, int] = {}
        for said in sayings:
            start = run.lowered.find(said.words)
            tries = 0
            while start >= 0 and len(values) < MOST_OF_A_FACT and tries < 4 * MOST_OF_A_FACT:
                match = _compiled(said.pattern).match(run.text, start, start + 400)
                if match is not None:
                    values.setdefault((match[1] or said.words).strip(), start)
                tries += 1
                start = run.lowered.find(said.words, start + len(said.words))
        found += [Stated(name, value, at) for value, at in values.items()]
    return found


def passed(run: Run, since: int, until: int) -> list[Stated]:
    """What the traceback before a statement passes through, its last frame of the user, and where the run stood."""
    since = max(since, until - WINDOW)
    trace = run.text.rfind("Traceback (most recent call last)", since, until)
    frames_since = trace if trace >= 0 else since
    found = [
        Stated(name, "yes", frames_since)
        for name, (words, _) in PATHS.items()
        if any(run.lowered.find(word.lower(), frames_since, until) >= 0 for word in words)
        and (trace >= 0 or run.lowered.find('file "', frames_since, until) >= 0)
    ]
    frames = list(FRAME.finditer(run.text, frames_since, until))
    own = [frame for frame in frames if not LIBRARY.search(frame[1])]
    for name, frame in (("user_frame", own[-1] if own else None), ("last_frame", frames[-1] if frames else None)):
        if frame is not None:
            found.append(Stated(name, f"{frame[1]}:{frame[2]} {frame[3]}", frame.start()))
    for name, pattern in PROGRESS.items():
        last = next(iter(deque(pattern.finditer(run.text, since, until), maxlen=1)), None)
        if last is not None:
            found.append(Stated(name, int(last[1]), last.start()))
    return found
