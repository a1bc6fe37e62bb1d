"""What stands between `${` and `}`: a name, an element, and what is done with the value."""

from __future__ import annotations

import re
from fnmatch import translate
from typing import Final, NamedTuple

REFERENCE: Final = re.compile(r"(!?)([A-Za-z_]\w{0,80}|\d{1,3}|[@*#])(?:\[([^\]]{0,80})\])?(.*)", re.DOTALL)
DEFAULT: Final = re.compile(r"(:?[-=+?])(.*)", re.DOTALL)
REPLACED: Final = re.compile(r"(//?[#%]?)([^/]{1,80})(?:/(.*))?", re.DOTALL)
SLICE: Final = re.compile(r":\s*(-?\d{1,6})(?::(-?\d{1,6}))?")
MOST_OF_A_VALUE: Final = 10_000
"""Characters of a value that is cut or replaced in."""


class Reference(NamedTuple):
    """A variable in braces."""

    name: str
    element: str | None = None  # "@", "*", a number
    rest: str = ""  # what is done with the value
    indirect: bool = False  # the value is the name of another one
    length: bool = False


def reference(text: str) -> Reference | None:
    """The parts of a reference; None for what is none.

    >>> reference("TP:-8"), reference("#A[@]")
    (Reference(name='TP', element=None, rest=':-8', indirect=False, length=False), \
Reference(name='A', element='@', rest='', indirect=False, length=True))
    """
    length = len(text) > 1 and text[0] == "#" and (text[1].isalnum() or text[1] in "_@*")
    match = REFERENCE.fullmatch(text[1:] if length else text)
    return Reference(match[2], match[3], match[4], bool(match[1]), length) if match is not None else None


def changed(value: str, rest: str) -> str | None:
    """A value cut, replaced in, or in other letters; None for what is not followed.

    >>> changed("a/b/c.sh", "##*/"), changed("c.sh", "%.sh"), changed("a-b", "//-/_"), changed("Ab", "^^")
    ('c.sh', 'c', 'a_b', 'AB')
    >>> changed("hello", ":1:3"), changed("x", "@Q")
    ('ell', None)
    """
    if len(value) > MOST_OF_A_VALUE or len(rest) > 200:
        return None
    if rest in ("^^", ",,", "^", ","):
        cut = value if len(rest) == 2 else value[:1]
        return (cut.upper() if rest[0] == "^" else cut.lower()) + value[len(cut):]
    if rest[:1] in ("#", "%"):
        return _cut(value, rest[0], rest[1:].removeprefix(rest[0]), longest=rest[1:2] == rest[0])
    if (found := SLICE.fullmatch(rest)) is not None:
        begin, size = int(found[1]), found[2]
        part = value[begin:]
        return part if size is None else part[: int(size)]
    replaced = REPLACED.fullmatch(rest)
    if replaced is None or re.search(r"[*?\[\\]", replaced[2]):
        return None
    kind, old, new = replaced[1], replaced[2], replaced[3] or ""
    if kind[-1] in "#%":
        ends = value.startswith(old) if kind[-1] == "#" else value.endswith(old)
        return (new + value[len(old):] if kind[-1] == "#" else value[: -len(old)] + new) if ends else value
    return value.replace(old, new, -1 if kind == "//" else 1)


def _cut(value: str, side: str, pattern: str, *, longest: bool) -> str:
    """A value without the shortest or longest beginning or end that a pattern fits."""
    fits = re.compile(translate(pattern)).match
    places = range(min(len(value), 1000) + 1)
    if side == "#":
        found = [place for place in places if fits(value[:place])]
        return value[(found[-1] if longest else found[0]):] if found else value
    found = [place for place in places if fits(value[len(value) - place:])]
    return value[: len(value) - (found[-1] if longest else found[0])] if found else value
