"""A text as it is searched, cleaned line by line, then one run with single spaces; and facts that stand in it.

Logs wrap messages, quote them, escape them for JSON or HTML and put a time and a rank before every line. All of that
is taken away before anything is looked for; where a piece of text came from is kept. Facts beside a failure stand in
`facts.csv` (versions, cards and settings anywhere) and `paths.csv` (what a traceback passes through).
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Iterator
from functools import cache
from typing import Final

from msgspec import Struct

from vramcast.lazy import lazy_pattern
from vramcast.sources.failures.wording import table

BLOCK: Final = 256 << 10
"""How much of a text is cleaned and searched at a time [characters]."""

BACK: Final = 16 << 10
"""How much before a block is seen too: the traceback of a failure at its beginning [characters]."""

AHEAD: Final = 8 << 10
"""How much behind a block is seen too: the rest of a message at its end [characters]."""

LONGEST_PART: Final = 4 << 10
LONGEST_WORD: Final = 256

ENTITIES: Final[dict[str, str]] = {
    "&gt;": ">", "&lt;": "<", "&quot;": '"', "&#34;": '"', "&#39;": "'", "&#x27;": "'", "&apos;": "'", "&#96;": "`",
    "&#x60;": "`", "&nbsp;": " ", "&#160;": " ", "&amp;": "&",
}  # fmt: skip
ESCAPES: Final[dict[str, str]] = {
    "\\r": "", "\\n": "\n", "\\t": " ", '\\"': '"', "\\'": "'", "\\u001b": "\x1b", "\\x1b": "\x1b", "\\033": "\x1b",
    "\\u003e": ">", "\\u003c": "<", "\\u0026": "&", "\\/": "/",
}  # fmt: skip

COLOURS: Final = lazy_pattern(r"(?:\x1b|#033|\^\[)\[[0-9;?]{0,20}[A-Za-z]")
WINDOWS_PATH: Final = lazy_pattern(r"\b[A-Za-z]:\\(?!\\)")

PREFIX: Final = lazy_pattern(
    r"(?:"
    r"[ \t>#*|]{1,40}"  # quotes, comments, boxes
    r"|/{2,80} "
    r"|\[?[0-9]{4}[-/][0-9]{2}[-/][0-9]{2}[T _-][0-9]{2}:[0-9]{2}:[0-9]{2}"
    r"(?:[.,][0-9]{1,9})?(?:Z|[+-][0-9]{2}:?[0-9]{2})?\]?:?"
    r"|\[ ?[0-9]{1,9}\.[0-9]{1,9}\]"  # dmesg
    r"|[0-9]{1,4}\.[0-9]{2}\.[0-9]{3}\.[0-9]{3} [A-Z] "  # llama.cpp
    r"|(?:Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec) {1,2}[0-9]{1,2} [0-9]{2}:[0-9]{2}:[0-9]{2} [\w.-]{1,64} "
    r"|\[(?:rank|default|Rank|RANK) ?:?[0-9]{1,5}\]:?|\[[0-9]{1,5}\]:"
    r"|rank ?[0-9]{1,5}:|\[[0-9]{1,4},[0-9]{1,5}\]<std(?:out|err)>:"
    r"|[0-9]{1,4}: (?=[^0-9 ])"  # srun --label
    r"|\([A-Za-z_][\w .=-]{0,60}pid=[0-9]{1,10}(?:, ip=[0-9.]{7,15})?\)"  # Ray, vLLM
    r"|[\w.-]{1,64} {1,8}\| "  # docker compose
    r"|(?:INFO|WARNING|ERROR|CRITICAL|DEBUG) [0-9]{2}-[0-9]{2} [0-9]{2}:[0-9]{2}:[0-9]{2} \[[^\]]{1,80}\]"
    r"){1,8}",
    re.ASCII,
)


FIRST_WORD: Final = lazy_pattern(r"[A-Za-z]{1,32}", re.ASCII)
LAST_WORD: Final = lazy_pattern(r"(?<![A-Za-z])[A-Za-z]{1,32}$", re.ASCII)


class Place(Struct, frozen=True):
    """Where a piece of the run came from."""

    line: int  # from 1
    offset: int  # in the text, of the line or of the part of a long line


class Run:
    """A part of a text as one run of words."""

    def __init__(self, pieces: list[str], places: list[Place]) -> None:
        self.text = " ".join(pieces)
        lowered = self.text.lower()
        if len(lowered) != len(self.text):  # a few letters change their length with their case
            lowered = self.text.encode("ascii", "replace").lower().decode("ascii")
        self.lowered = lowered
        self._places = places
        self._starts: list[int] = []
        at = 0
        for piece in pieces:
            self._starts.append(at)
            at += len(piece) + 1

    def place(self, at: int) -> Place:
        """Line and offset of a place of the run."""
        return self._places[max(0, bisect_right(self._starts, at) - 1)] if self._places else Place(1, 0)

    def end_of_line(self, at: int) -> int:
        """Where the line that holds a place of the run ends."""
        following = bisect_right(self._starts, at)
        return self._starts[following] - 1 if following < len(self._starts) else len(self.text)


class Block(Struct, frozen=True):
    """A part of a text: what stands in it is reported, what stands around it is only seen."""

    seen: str
    start: int  # offset of the block in the text
    stop: int
    seen_start: int  # offset of what is seen
    line: int  # number of the line in which `seen` begins


def blocks(text: str) -> Iterator[Block]:
    """A text in parts that end with a line where one ends in time."""
    start, counted, line = 0, 0, 1
    while start < len(text):
        stop = min(len(text), start + BLOCK)
        if stop < len(text):
            stop = text.rfind("\n", start, stop) + 1 or stop
        seen_start = max(0, start - BACK)
        line += text.count("\n", counted, seen_start)
        counted = seen_start
        yield Block(text[seen_start : stop + AHEAD], start, stop, seen_start, line)
        start = stop


def run_of(block: Block, vocabulary: Callable[[], frozenset[str]] = frozenset) -> Run:
    """What is seen of a block, cleaned.

    Args:
        block: a part of a text
        vocabulary: words in lower case that are put together again where a line ends inside one, when they are needed
    """
    pieces: list[str] = []
    places: list[Place] = []
    offset = block.seen_start
    for number, line in enumerate(block.seen.split("\n"), block.line):
        for start, part in _parts(line, offset):
            for piece in _pieces(part):
                cleaned = " ".join(_stripped(piece).split())
                if pieces and cleaned[:1].isalpha() and (head := _cut_off(pieces[-1], cleaned, vocabulary)):
                    pieces[-1] += head
                    cleaned = cleaned[len(head) :].lstrip()
                if cleaned:
                    pieces.append(cleaned)
                    places.append(Place(number, start))
        offset += len(line) + 1
    return Run(pieces, places)


def _cut_off(before: str, after: str, vocabulary: Callable[[], frozenset[str]]) -> str:
    """What a terminal of fixed width cut off the last word of a line, where together they are a known word."""
    last = LAST_WORD.search(before, max(0, len(before) - LONGEST_WORD)) if before[-1].isalpha() else None
    head = FIRST_WORD.match(after) if last else None
    if head is None or last is None:
        return ""
    start, rest = last[0].lower(), head[0].lower()
    known = vocabulary()
    two_words = start in known and rest in known
    return head[0] if start + rest in known and not two_words else ""


def _parts(line: str, offset: int) -> Iterator[tuple[int, str]]:
    """A line in parts of bounded length with their offsets; cut at spaces, at places that depend on the text alone."""
    start = 0
    while len(line) - start > LONGEST_PART:
        grid = (offset + start) // LONGEST_PART * LONGEST_PART + LONGEST_PART - offset
        stop = line.rfind(" ", max(start + 1, grid - LONGEST_WORD), grid) + 1 or grid
        yield offset + start, line[start:stop]
        start = stop
    yield offset + start, line[start:]


def _pieces(line: str) -> list[str]:
    """A line as the lines it stands for: progress bars and escaped texts hold several."""
    if "\0" in line:
        line = line.replace("\0", "")
    if (
        "\\" in line
        and ("\\n" in line or '\\"' in line or "\\u00" in line or "\\x1b" in line)
        and not WINDOWS_PATH.search(line)
    ):
        for written, meant in ESCAPES.items():
            line = line.replace(written, meant)
    if "&" in line:
        for written, meant in ENTITIES.items():
            line = line.replace(written, meant)
    if "[" in line and ("\x1b" in line or "#033" in line or "^[" in line):
        line = COLOURS.sub("", line)
    if "**" in line:
        line = line.replace("**", "")
    return re.split(r"[\r\n]", line) if "\r" in line or "\n" in line else [line]


def _stripped(piece: str) -> str:
    match = PREFIX.match(piece)
    return piece[match.end() :] if match else piece


VERSION: Final = r"[0-9]{1,4}\.[0-9]{1,4}(?:\.[0-9]{1,6})?(?:[.+-]?[0-9A-Za-z.+]{1,40})?"


class Said(Struct, frozen=True):
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

FRAME: Final = lazy_pattern(r"File \"([^\"]{1,400})\", line ([0-9]{1,8}), in ([\w.<>]{1,120})", re.ASCII)
LIBRARY: Final = lazy_pattern(
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

RANK: Final = lazy_pattern(
    r"\[(?:rank|default|Rank|RANK) ?:?([0-9]{1,5})\]|\brank ?([0-9]{1,5}):|\[[0-9]{1,4},([0-9]{1,5})\]<std", re.ASCII
)

MOST_OF_A_FACT: Final = 16
"""Different values that are kept of one fact."""

WINDOW: Final = 16 << 10
"""How far before a statement its traceback and progress are looked for [characters]."""


class Stated(Struct, frozen=True):
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


IN_CODE: Final = ('file "', "while processing method ")
"""What says that names are of code, where no traceback is begun: a frame, and vLLM's word of a worker."""


def passed(run: Run, since: int, until: int) -> list[Stated]:
    """What the traceback before a statement passes through, its last frame of the user, and where the run stood."""
    since = max(since, until - WINDOW)
    trace = run.text.rfind("Traceback (most recent call last)", since, until)
    frames_since = trace if trace >= 0 else since
    found = [
        Stated(name, "yes", frames_since)
        for name, (words, _) in PATHS.items()
        if any(run.lowered.find(word.lower(), frames_since, until) >= 0 for word in words)
        and (trace >= 0 or any(run.lowered.find(word, frames_since, until) >= 0 for word in IN_CODE))
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
