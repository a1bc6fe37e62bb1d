"""Versions of engines: as users write them, and as facts that hold since a release are compared."""

from __future__ import annotations

import re
from typing import Final

from vramcast.errors import InvalidSpec, Note
from vramcast.lazy import lazy_pattern

Version = tuple[int, ...]

LAST: Final = 1 << 30
"""Stands for the number of the last release of a series; none that is written is as large."""

WRITTEN: Final = lazy_pattern(
    r"[vb]?(\d{1,8}(?:[.-]\d{1,8}){0,3})(?:[.-]?(?:rc|a|b|alpha|beta|post|dev)\d*(?:\.\w+)*)*(?:\+[\w.]*)?", re.ASCII
)
"""A release, a build or a date, with what makes it a candidate or a local build behind it."""


def read_version(text: str) -> Version | None:
    """The release that a version belongs to; None for what is no version.

    >>> read_version("0.11.1rc2.dev123+g1a2b3c"), read_version("b5200"), read_version("2025-02-06")
    ((0, 11, 1), (5200,), (2025, 2, 6))
    >>> read_version("latest")
    """
    match = WRITTEN.fullmatch(text.strip().lower())
    return None if match is None else tuple(map(int, re.split(r"[.-]", match[1])))


def last_release(version: Version, *, parts: int, newest: Version = ()) -> Version:
    """A series stands for its last release: as long as `parts`, and never newer than the newest that is known.

    >>> last_release((0, 11), parts=3) > (0, 11, 2), last_release((5,), parts=2, newest=(5, 23))
    (True, (5, 23))
    """
    if len(version) >= parts:
        return version
    return newest if version == newest[: len(version)] else version + (LAST,) * (parts - len(version))


def version_text(version: Version) -> str:
    """As releases are written: "4.57.3"; of a series what names it."""
    return ".".join(str(part) for part in version if part != LAST)


def last_patch(version: Version) -> Version:
    """A release named without its patch is its last.

    >>> last_patch((0, 11)) > (0, 11, 2) > last_patch((0, 11, 0))
    True
    """
    return last_release(version, parts=len(("major", "minor", "patch")))


def date_text(version: Version) -> str:
    """A version that is a date, as far as it is one.

    >>> date_text((2025, 2, 6)), date_text((2026, 7))
    ('2025-02-06', '2026-07')
    """
    if version[:1] == (LAST,):  # a release newer than every date
        return "9999-12"
    return "-".join("99" if part == LAST else f"{part:02}" for part in version)


def named(engine: str, version: Version | None) -> str:
    """As users write both: "huggingface@4.57"."""
    return engine if version is None else f"{engine}@{version_text(version)}"


def check_version(engine: str, written: str, *, oldest: Version, newest: Version) -> Version:
    """The version behind "@", of a series the last; a newer one than is known is taken, and `newer` says so.

    Raises: InvalidSpec for what is no version, and for one older than any that is known
    """
    found, known = read_version(written), f"{version_text(oldest)} to {version_text(newest)}"
    if found is None:
        raise InvalidSpec(
            "engine version {!r} must be written like {}@{}; {}", written[:40], engine, version_text(newest), known
        )
    if found < oldest[: len(found)]:
        raise InvalidSpec("{} {} is not covered; known are versions {}", engine, version_text(found), known)
    return last_release(found, parts=len(newest), newest=newest)


def newer(engine: str, version: Version, newest: Version) -> tuple[str, ...]:
    """What the answer for a version is without that is newer than any that is known; none for others."""
    if version[: len(newest)] <= newest:
        return ()
    return (Note(
        "what {} {} changed since {}, the newest that is known", engine, version_text(version), version_text(newest)
    ),)
