"""Any text -> the failures it tells of."""

from __future__ import annotations

from bisect import bisect_right
from typing import Final

from msgspec.structs import replace

from vramcast.domain.failure import Statement
from vramcast.sources.failures.facts import RANK, Stated, passed, stated
from vramcast.sources.failures.facts import ROOTS as FACT_ROOTS
from vramcast.sources.failures.families import by_roots, vocabulary
from vramcast.sources.failures.find import Spoken, spoken
from vramcast.sources.failures.found import Fact, Failures
from vramcast.sources.failures.text import Block, Run, blocks, run_of

LONGEST_TEXT: Final = 2_000
"""Of a statement, as it is kept [characters]."""

MOST_STATEMENTS: Final = 10_000
"""Different statements that are kept of a text."""

MOST_EXPLAINED: Final = 200
"""Statements whose tracebacks are looked at."""

CHAINS: Final = (
    "during handling of the above exception, another exception occurred",
    "the above exception was the direct cause of the following exception",
)

Key = tuple[str, str, object]


class _Reader:
    """Collects what the blocks of a text say."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._statements: dict[Key, Statement] = {}
        self._facts: dict[tuple[str, object, int | None], Fact] = {}

    def block(self, block: Block) -> None:
        """Read one block."""
        run = run_of(block, vocabulary())
        chains = _places(run, CHAINS)
        last: dict[Key, int] = {}
        since = 0
        for item in spoken(run):
            if block.start <= run.place(item.start).offset < block.stop:
                self._add(run, item, since, chains, last)
            since = item.end
        for fact in stated(run):
            self._keep(fact, run, None)

    def facts(self, block: Block) -> None:
        """Read what a block without a failure says beside: what is not finite, what was set at the beginning."""
        run = run_of(block)
        for fact in stated(run):
            self._keep(fact, run, None)

    def _add(self, run: Run, item: Spoken, since: int, chains: list[int], last: dict[Key, int]) -> None:
        text = run.text[item.start : min(run.end_of_line(item.end), item.start + LONGEST_TEXT)]
        key: Key = (item.family, item.wording, tuple(sorted(item.numbers.items())) or text)
        known = self._statements.get(key)
        if known is not None:
            again = key in last and bisect_right(chains, item.start) > bisect_right(chains, last[key])
            self._statements[key] = known if again else replace(known, repeats=known.repeats + 1)
        elif len(self._statements) < MOST_STATEMENTS:
            place = run.place(item.start)
            number = len(self._statements)
            self._statements[key] = Statement(
                family=item.family,
                wording=item.wording,
                text=text,
                line=place.line,
                numbers=item.numbers,
                versions=item.versions,
            )
            if number < MOST_EXPLAINED:
                for fact in passed(run, since, item.start):
                    self._keep(fact, run, number)
                if (rank := RANK.search(self._text, place.offset, place.offset + 200)) is not None:
                    self._keep(Stated("rank", int(next(filter(None, rank.groups()))), item.start), run, number)
        last[key] = item.start

    def _keep(self, fact: Stated, run: Run, statement: int | None) -> None:
        made = Fact(name=fact.name, value=fact.value, line=run.place(fact.at).line, statement=statement)
        self._facts.setdefault((fact.name, fact.value, statement), made)

    def result(self) -> Failures:
        """Everything that was read, in the order of the text."""
        return Failures(
            statements=tuple(self._statements.values()),
            context=tuple(self._facts.values()),
            lines=self._text.count("\n") + bool(self._text and not self._text.endswith("\n")),
        )


def read_failures(text: str) -> Failures:
    """The failures that a text tells of, with their figures, and facts that help to explain them.

    Leaves out what it means: causes and fixes are the doctor's.

    Args:
        text: a message, a traceback or a whole log, in whatever state it was copied

    Returns: statements in the order of the text; a text that tells of none gives none

    >>> read_failures("RuntimeError: CUDA out of memory. Tried to allocate 2.00 GiB").statements[0].numbers
    {'tried_bytes': 2147483648}
    """
    reader = _Reader(text)
    for block in blocks(text):
        lowered = block.seen.lower()
        unbroken = lowered.replace("\r", "").replace("\n", "")  # a line may end inside the root
        if any(root in lowered or root in unbroken for root in by_roots()):
            reader.block(block)
        elif block.start == 0 or any(root in lowered for root in FACT_ROOTS):
            reader.facts(block)
    return reader.result()


def _places(run: Run, sayings: tuple[str, ...]) -> list[int]:
    places: list[int] = []
    for words in sayings:
        at = run.lowered.find(words)
        while at >= 0:
            places.append(at)
            at = run.lowered.find(words, at + 1)
    return sorted(places)
