"""All families, in the order in which they are asked where several could speak."""

from __future__ import annotations

from functools import cache
from typing import Final, NamedTuple

from vramcast.sources.failures import engines, frameworks, ggml, host, libraries, tables, torch_allocators, torch_parts
from vramcast.sources.failures.wording import Family, Table, Wording

FAMILIES: Final[dict[str, Family]] = {
    **engines.FAMILIES,
    **ggml.FAMILIES,
    **torch_parts.FAMILIES,
    **frameworks.FAMILIES,
    **torch_allocators.FAMILIES,
    **libraries.FAMILIES,
    **host.FAMILIES,
    **tables.FAMILIES,
}


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
        for entry in (*family.wordings, *family.tables):
            found.setdefault(entry.words.lower(), []).append(Known(name, family.about, entry))
    return {words: tuple(sorted(entries, key=_order)) for words, entries in found.items()}


def _order(known: Known) -> tuple[bool, bool, int]:
    entry = known.entry
    if isinstance(entry, Table):
        return (False, False, 0)
    return (entry.weak, not entry.preceded, -len(entry.holds))


@cache
def roots() -> tuple[str, ...]:
    """A few single words of which every wording has one: a text without them needs no closer look."""
    wanted = set(by_words())
    chosen: list[str] = []
    candidates = sorted({word for words in wanted for word in _words(words)}, key=len)
    while wanted:
        best = max(candidates, key=lambda word: sum(word in words for words in wanted))
        chosen.append(best)
        wanted = {words for words in wanted if best not in words}
    return tuple(chosen)


def _words(words: str) -> list[str]:
    """Runs without a space, at least four characters where there are any."""
    split = words.split()
    return [word for word in split if len(word) >= 4] or split
