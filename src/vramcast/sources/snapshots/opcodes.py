"""The opcodes of Python pickles that plain containers need, as byte patterns.

Possessive repeats: no pattern ever steps back, whatever the bytes.
[pickle] CPython Lib/pickletools.py
"""

from __future__ import annotations

import re
from typing import Final

STOP: Final = 0x2E
STACK_GLOBAL: Final = 0x93
OBJECTS: Final = frozenset(b"cRbioPQ\x81\x82\x83\x84\x92\x93")
"""Opcodes that name or build objects: GLOBAL, REDUCE, BUILD, INST, OBJ, persistent ids, NEWOBJ, extensions."""

GET: Final = rb"(?:h.|j.{4})"
PUT: Final = rb"(?:\x94|q.|r.{4})"
INTEGER: Final = (
    rb"(?:K.|M..|J.{4}|\x8a(?:\x06.{6}|\x07.{7}|\x05.{5}|\x08.{8}|\x04.{4}|\x09.{9}|\x03.{3}|\x02.{2}|\x01.|\x00))"
)
_LONGEST_INLINE: Final = 64
INLINE_TEXT: Final = (
    rb"\x8c(?:" + b"|".join(re.escape(bytes([n])) + b".{%d}" % n for n in range(_LONGEST_INLINE + 1)) + rb")\x94"
)
TEXT: Final = rb"(?:" + GET + rb"|" + INLINE_TEXT + rb")"
STACK: Final = rb"(?:" + GET + rb"|\]\x94(?:\(" + GET + rb"++e|" + GET + rb"a)?+)"
POOL: Final = rb"(?:" + GET + rb"|" + INTEGER + INTEGER + rb"\x86\x94)"

REFERENCES: Final = re.compile(rb"\](" + PUT + rb")?+\((" + GET + rb"++)e", re.DOTALL)
"""A list of things that were written before, as nearly all stacks are; groups: its memo entry, the references."""
RUN: Final = re.compile(GET + rb"++", re.DOTALL)
_REFERENCE: Final = re.compile(rb"h(.)|j(.{4})", re.DOTALL)


def memo_index(reference: bytes) -> int:
    """Which memo entry a BINGET or LONG_BINGET fetches."""
    return int.from_bytes(reference[1:], "little")


def memo_indices(references: bytes) -> list[int]:
    """The same of a run of them."""
    return [int.from_bytes(short or long, "little") for short, long in _REFERENCE.findall(references)]


def small_integer(raw: bytes) -> int:
    """The value of an INTEGER; 0 for nothing.

    >>> small_integer(bytes([0x8A, 2, 0, 1]))
    256
    """
    kind = raw[:1]
    if kind == b"\x8a":
        return int.from_bytes(raw[2:], "little", signed=True)
    return int.from_bytes(raw[1:], "little", signed=kind == b"J")
