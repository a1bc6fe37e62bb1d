"""Texts of others made fit to be shown: names of files, models and modules may hold any character."""

from __future__ import annotations

import re
from html import escape
from typing import Final

UNPRINTABLE: Final = re.compile(
    "[\\x00-\\x08\\x0b\\x0c\\x0e-\\x1f\\x7f-\\x9f\\u202a-\\u202e\\u2066-\\u2069\\ud800-\\udfff\\ufffe\\uffff]"
)
"""Controls, marks that turn the direction of writing, halves of characters."""


def printable(text: str) -> str:
    """The text with a mark in place of everything that is no character to read.

    >>> printable("a" + chr(0x202e) + "b" + chr(27) + "c") == "a\\ufffdb\\ufffdc"
    True
    """
    return UNPRINTABLE.sub("\ufffd", text)


def markup(text: str) -> str:
    """The text as it stands in HTML and SVG, in elements and in quoted attributes."""
    return escape(printable(text))
