"""Everything vramcast raises on purpose.

VramcastError
├── InvalidSpec        what was asked contradicts itself or the model        exit 2
│   └── Unsupported    valid, but not modelled; the text says what would work exit 3
├── UnknownName        no such model, GPU or option value; nearest names given exit 4
├── SourceError        a file, header or hub answer could not be used         exit 5
└── OutOfMemory        the simulated allocator could not serve a request      exit 6

An answer that says "does not fit" is an answer, not an error: it exits 1.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Final

if TYPE_CHECKING:
    from collections.abc import Iterable

CATALOGUES: Final = {"GPU": "; `vramcast gpus` lists all", "model": "; `vramcast models` lists all"}
"""Kind of a name -> where all of them stand."""
MOST_LISTED: Final = 64
"""Names that an error lists where none is near."""


class VramcastError(Exception):
    """One sentence: what was given, which rule broke, what would work."""

    exit_code: ClassVar[int] = 2


class InvalidSpec(VramcastError):
    """The question contradicts itself, the model or the hardware."""


class Unsupported(InvalidSpec):
    """A combination that exists but is not modelled."""

    exit_code: ClassVar[int] = 3


class UnknownName(VramcastError):
    """A name that no catalogue lists."""

    exit_code: ClassVar[int] = 4

    @classmethod
    def of(cls, kind: str, name: str, known: Iterable[str]) -> UnknownName:
        """The error for `name`, with the nearest known names in it."""
        from difflib import get_close_matches

        shown = name if len(name) <= 80 else name[:77] + "..."
        names = list(known)
        near = get_close_matches(shown.lower(), names, n=3, cutoff=0.5)
        hint = f"; did you mean {', '.join(near)}?" if near else ""
        if not near and names:
            hint = CATALOGUES.get(kind) or ("; known: " + ", ".join(names) if len(names) <= MOST_LISTED else "")
        return cls(f"unknown {kind} {shown!r}{hint}")


class SourceError(VramcastError):
    """A file, header or hub answer that cannot be used."""

    exit_code: ClassVar[int] = 5


class OutOfMemory(VramcastError):
    """The simulated allocator could not serve a request."""

    exit_code: ClassVar[int] = 6
