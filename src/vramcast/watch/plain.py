"""Text of others, made safe to print: drivers, tools and processes choose it."""

from __future__ import annotations


def printable(text: str, most: int = 512) -> str:
    """The text without what a terminal would obey, cut.

    >>> printable("a\\x1b[2Jb")
    'a?[2Jb'
    """
    return "".join(character if character.isprintable() else "?" for character in text[:most])
