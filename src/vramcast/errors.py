"""Sentences that keep what they were made of, and everything vramcast raises on purpose.

A `Note` is English by itself; the catalogues of `report/words/zh` hold its template, and the same in Chinese.

VramcastError
├── InvalidSpec        what was asked contradicts itself or the model        exit 2
│   └── Unsupported    valid, but not modelled; the text says what would work exit 3
├── UnknownName        no such model, GPU or option value; nearest names given exit 4
├── SourceError        a file, header or hub answer could not be used         exit 5
└── OutOfMemory        the simulated allocator could not serve a request      exit 6

An answer that says "does not fit" is an answer, not an error: it exits 1.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Final

if TYPE_CHECKING:
    from collections.abc import Iterable

CATALOGUES: Final = {"GPU": "; `vramcast gpus` lists all", "model": "; `vramcast models` lists all"}
"""Kind of a name -> where all of them stand."""
MOST_LISTED: Final = 64
"""Names that an error lists where none is near."""


class Note(str):
    """`template` with `values` in its gaps, each a `{}` as `str.format` takes it; without values as it stands.

    A value may be a note itself. Values that are neither texts nor numbers are kept as texts.

    >>> Note("ep={}: {} has no experts to divide; use ep=1", 8, "gpt2")
    'ep=8: gpt2 has no experts to divide; use ep=1'
    """

    __slots__ = ("template", "values")

    template: str
    values: tuple[object, ...]

    def __new__(cls, template: str, *values: object) -> Note:
        self = super().__new__(cls, template.format(*values) if values else template)
        self.template = template
        self.values = tuple(value if isinstance(value, (str, int, float)) else str(value) for value in values)
        return self

    def __getnewargs__(self) -> tuple[Any, ...]:  # pickle and copy make it anew
        return self.template, *self.values


def joined(joint: str, texts: Iterable[str], *, most: int | None = None) -> Note:
    """Several sentences or names in one, with "; ", ": " or ", " between them: as many as so many characters hold, at
    least the first.

    >>> joined("; ", ("use ep=1", "use tp=2"))
    'use ep=1; use tp=2'
    """
    values = tuple(texts)
    while most is not None and len(values) > 1 and len(joint.join(values)) > most:
        values = values[:-1]
    return Note(joint.join(["{}"] * len(values)), *values)


def listed(names: Iterable[str], last: str = "or") -> Note:
    """Names one after the other, a word before the last of them.

    >>> listed(("tp", "pp", "ep"), "and")
    'tp, pp and ep'
    """
    *others, end = names
    return Note("{} " + last + " {}", joined(", ", others), end) if others else Note("{}", end)


NOTHING: Final = Note("")


def parts_of(note: object) -> list[object]:
    """What a note is made of, for a process that reads it with `note_of` (`enc_hook` of msgspec)."""
    if isinstance(note, Note):
        return [note.template, list(note.values)]
    raise NotImplementedError(f"no parts of {type(note).__name__}")


def note_of(kind: type, parts: Any) -> Note:
    """The note again (`dec_hook` of msgspec)."""
    template, values = parts
    return Note(template, *(note_of(kind, one) if isinstance(one, list) else one for one in values))


def text_of(value: object) -> str:
    """A note as the text it is, for encoders that know no kinds of texts (`enc_hook` of msgspec).

    Raises: NotImplementedError: of anything else
    """
    if isinstance(value, Note):
        return str(value)
    raise NotImplementedError(f"no JSON of {type(value).__name__}")


class VramcastError(Exception):
    """One sentence: what was given, which rule broke, what would work; a template and its values, as a `Note` is."""

    exit_code: ClassVar[int] = 2

    def __init__(self, message: str, *values: object) -> None:
        super().__init__(message if isinstance(message, Note) else Note(message, *values))

    def __str__(self) -> Note:
        note: Note = self.args[0]
        return note

    def _render_traceback_(self) -> list[str]:
        """What notebooks show in place of the frames that led to it [IPython/core/interactiveshell.py
        `showtraceback`]: a typo is the reader's, and the sentence says which."""
        return [f"{type(self).__name__}: {self}"]


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
        hint = Note("; did you mean {}?", ", ".join(near)) if near else Note("")
        if not near and names:
            every = Note("; known: {}", ", ".join(names)) if len(names) <= MOST_LISTED else Note("")
            hint = Note(CATALOGUES[kind]) if kind in CATALOGUES else every
        return cls("unknown {} {!r}{}", kind if isinstance(kind, Note) else Note(kind), shown, hint)


class SourceError(VramcastError):
    """A file, header or hub answer that cannot be used."""

    exit_code: ClassVar[int] = 5


class OutOfMemory(VramcastError):
    """The simulated allocator could not serve a request."""

    exit_code: ClassVar[int] = 6
