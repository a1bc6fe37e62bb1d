"""All families, in the order in which they are asked where several could speak."""

from __future__ import annotations

import re
from functools import cache
from typing import Final, NamedTuple

from vramcast.sources.failures import (
    engines,
    frameworks,
    ggml,
    host,
    libraries,
    programs,
    tables,
    torch_allocators,
    torch_parts,
)
from vramcast.sources.failures.wording import Family, Table, Wording

FAMILIES: Final[dict[str, Family]] = {
    **engines.FAMILIES,
    **ggml.FAMILIES,
    **programs.FAMILIES,
    **torch_parts.FAMILIES,
    **frameworks.FAMILIES,
    **torch_allocators.FAMILIES,
    **libraries.FAMILIES,
    **host.FAMILIES,
    **tables.FAMILIES,
}


NO_WORDS: Final = re.compile(r"\\.|\(\?P<\w+>|<[a-z_:]+>|\[[^\]]*\]")
"""Of a pattern: escapes, names of groups and figures, sets of characters."""


class Known(NamedTuple):
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


def _longest(words: str) -> list[str]:
    """The two longest runs without a space: everyday words are short."""
    return sorted(words.split(), key=len)[-2:]
