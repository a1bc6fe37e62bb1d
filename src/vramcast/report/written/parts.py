"""What reports are made of. A part is plain text and figures; how it looks is the business of a format."""

from __future__ import annotations

from typing import NamedTuple


class Text(NamedTuple):
    """A paragraph."""

    text: str


class Items(NamedTuple):
    """A list."""

    texts: tuple[str, ...]
    numbered: bool = False  # in an order that matters


class Code(NamedTuple):
    """What is typed or printed, as it is."""

    text: str


class Pairs(NamedTuple):
    """Names with their values, many and short."""

    head: tuple[str, str]
    rows: tuple[tuple[str, str], ...]


class Ref(NamedTuple):
    """A cell that points to a numbered source, from 1; 0: to none."""

    number: int


class Table(NamedTuple):
    """Rows below a head. Every row has as many cells as the head."""

    head: tuple[str, ...]
    rows: tuple[tuple[str | Ref, ...], ...]
    right: frozenset[int] = frozenset()  # columns of figures
    strong: frozenset[int] = frozenset()  # rows that sum up those below them
    title: str = ""


class Slice(NamedTuple):
    """A part of a bar."""

    kind: str  # what the colour stands for: "weights", "attention"
    label: str
    value: float  # bytes, seconds; slices of a bar add up to what it shows
    shown: str  # the value with its unit


class Bar(NamedTuple):
    """One stacked bar."""

    label: str
    slices: tuple[Slice, ...]
    shown: str  # the sum with its unit
    mark: float | None = None  # a point that matters on this bar alone: the highest moment of all phases
    mark_label: str = ""


class Bars(NamedTuple):
    """Stacked bars of one scale, with a legend of the first."""

    title: str
    bars: tuple[Bar, ...]
    limit: float | None = None  # what there is
    limit_label: str = ""


class Picture(NamedTuple):
    """Something drawn: as SVG, and with characters where no SVG can stand."""

    title: str
    svg: str  # styled by the page around it, which gives the ground
    text: str
    legend: tuple[Slice, ...] = ()


class Sources(NamedTuple):
    """What numbers rest on, counted from 1; `Ref` points here."""

    texts: tuple[str, ...]


Part = Text | Items | Code | Pairs | Table | Bars | Picture | Sources


class Section(NamedTuple):
    """A heading and what stands below it."""

    title: str
    parts: tuple[Part, ...]
    folded: bool = False  # details that formats may keep closed on a screen; paper shows them


class Report(NamedTuple):
    """A whole report."""

    language: str
    title: str
    verdict: tuple[str, ...]  # the answer first, then what belongs to it
    tone: str  # of the verdict, see `report.sentences`
    sections: tuple[Section, ...]
    footer: tuple[str, ...] = ()  # what made it, when
