"""Words and figures that the text and the page of a recording share."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from vramcast.domain.snapshot import PREDICTED, Snapshot
from vramcast.recordings.examine import Examined
from vramcast.recordings.fragmentation import Fragmentation
from vramcast.recordings.lives import Category
from vramcast.recordings.peak import Held, Holder
from vramcast.recordings.stacks import top_frames
from vramcast.report.messages import Words
from vramcast.units import format_bytes, format_seconds

FRAMES: Final = 4
"""Shown of a stack."""

NOTHING: Final = "-"

SAID_OF: Final[dict[str, str]] = {Category.UNKNOWN: "replay.unknown", Category.HELD: "replay.held_before"}
"""Categories that need a sentence."""


def held_sentences(held: Held, words: Words) -> Iterator[str]:
    """What is said of categories that say little."""
    for group in held.by_category:
        if group.name not in SAID_OF:
            continue
        unlisted = held.unlisted_bytes if group.name == held.unlisted else 0
        if group.size_bytes > unlisted:
            size = format_bytes(group.size_bytes - unlisted)
            yield words(SAID_OF[group.name], size=size, count=blocks(group.num_blocks, words))
        if unlisted and group.name == Category.HELD:
            yield words("replay.held_unlisted", size=format_bytes(unlisted))


class Stacks:
    """Stacks of a recording by index, as lines."""

    def __init__(self, found: Examined, words: Words) -> None:
        self._stacks = found.snapshot.stacks
        self._words = words

    def __call__(self, stack: int, most: int = FRAMES) -> str:
        frames = top_frames(self._stacks[stack], most) if 0 <= stack < len(self._stacks) else ()
        return " < ".join(map(plain, frames)) or self._words("replay.no_stack")


def plain(text: str) -> str:
    """Text of a file without what would move a terminal's cursor.

    >>> plain("a" + chr(27) + "[2J")
    'a?[2J'
    """
    return "".join(character if character.isprintable() else "?" for character in text)


def share(value: float | None) -> str:
    """A share with one decimal."""
    return NOTHING if value is None else f"{value:.1%}"


def blocks(count: int, words: Words) -> str:
    """How many blocks; none: of what holds them nothing is listed."""
    if not count:
        return words("replay.unlisted")
    return words("replay.block") if count == 1 else words("replay.blocks", count=f"{count:,}")


def known_size(num_bytes: int | None, words: Words) -> str:
    """A size, or that it is not known."""
    return words("replay.not_known") if num_bytes is None else format_bytes(num_bytes)


def signed(num_bytes: int) -> str:
    """A change with its sign."""
    return f"{'+' if num_bytes > 0 else ''}{format_bytes(num_bytes)}"


def category_name(category: str, words: Words) -> str:
    """A category in the language of the report."""
    return words(f"replay.category.{category}")


def has_times(snapshot: Snapshot) -> bool:
    """Whether the clock of a recording is one of time: that of a predicted one counts events."""
    return snapshot.format != PREDICTED


def age(block: Holder, words: Words, *, has_times: bool = True) -> str:
    """How long a block had been there."""
    if block.since is None:
        return words("replay.before")
    if block.age_us is None or not has_times:
        return words("replay.since", event=f"{block.since:,}")
    return words("replay.age", age=format_seconds(block.age_us / 1e6))


def parts_of(found: Fragmentation, words: Words) -> list[tuple[str, int]]:
    """Where reserved memory is; the parts add up to it."""
    return [
        (words("replay.part.requested"), found.requested_bytes),
        (words("replay.part.rounding"), found.rounding_bytes),
        (words("replay.part.awaiting"), found.awaiting_bytes),
        (words("replay.part.split"), found.split_free_bytes),
        (words("replay.part.cached"), found.cached_bytes),
    ]


def class_name(low: int, high: int | None, words: Words) -> str:
    """A class of holes in words."""
    if high is None:
        return words("replay.class_last", low=format_bytes(low))
    return words("replay.class", low=format_bytes(low), high=format_bytes(high))
