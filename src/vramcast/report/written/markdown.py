"""A report as Markdown that GitHub, GitLab and CommonMark with tables show alike.

Pictures are characters: GitHub removes data URIs and inline SVG. Whatever a text holds is shown as it is: every
character that Markdown or HTML would take for markup is escaped.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Final

from vramcast.report.written import parts
from vramcast.report.written.pictures import bars_text, markup, printable

ENTITIES: Final = str.maketrans({"&": "&amp;", "<": "&lt;", ">": "&gt;", "$": "&#36;", "|": "&#124;"})
"""What begins HTML, a formula or a cell, also behind a backslash in one renderer or another."""

INSIDE: Final = re.compile(r"[\\`*\[\]~]|(?<!\w)_+|_+(?!\w)")
"""Markup wherever it stands; underscores inside a word are none."""

AT_START: Final = re.compile(r"^(?:[-+](?=\s|$)|[-=](?=[-=\s]*$)|#(?=[#\s]|$)|\d{1,9}(?=[.)](?:\s|$)))")
"""What makes a heading, a list or a rule of a line that begins with it."""

SPACES: Final = re.compile(r"\s+")
FENCES: Final = re.compile(r"`{3,}")


def markdown(report: parts.Report) -> str:
    first, *others = report.verdict
    lines = [f"# {escaped(report.title)}", ""] if report.title else []
    lines += [f"**{escaped(first)}**", "", *_items(others), *([""] if others else [])]
    for section in report.sections:
        lines += _section(section)
    if report.footer:
        lines += ["---", "", *(f"{escaped(line)}\\" for line in report.footer[:-1]), escaped(report.footer[-1])]
    return "\n".join(lines).rstrip() + "\n"


def escaped(text: str) -> str:
    r"""A text of one line that is shown as it is.

    >>> escaped("a|b <i>*x*</i>"), escaped("exp_avg _y_"), escaped("1. one")
    ('a&#124;b &lt;i&gt;\\*x\\*&lt;/i&gt;', 'exp_avg \\_y\\_', '1\\. one')
    """
    line = inline(text)
    return AT_START.sub(lambda found: found[0] + "\\" if found[0].isdecimal() else "\\" + found[0], line)


def inline(text: str) -> str:
    """The same where a line cannot begin: in a cell, or behind other text."""
    line = SPACES.sub(" ", printable(text)).strip().translate(ENTITIES)
    return INSIDE.sub(lambda found: "".join("\\" + character for character in found[0]), line)


def _section(section: parts.Section) -> Iterator[str]:
    if section.folded:
        title = markup(SPACES.sub(" ", printable(section.title)))  # Markdown has no meaning inside this element
        yield from ("<details>", f"<summary>{title}</summary>", "")
    elif section.title:
        yield from (f"## {escaped(section.title)}", "")
    for part in section.parts:
        yield from _part(part)
        yield ""
    if section.folded:
        yield from ("</details>", "")


def _part(part: parts.Part) -> Iterator[str]:
    match part:
        case parts.Text():
            yield escaped(part.text)
        case parts.Items():
            yield from _items(part.texts, numbered=part.numbered)
        case parts.Code():
            yield from _fenced(part.text)
        case parts.Pairs():
            yield from _table(parts.Table(part.head, part.rows))
        case parts.Table():
            yield from _table(part)
        case parts.Bars():
            yield from _titled(part.title)
            yield from _fenced(bars_text(part))
        case parts.Picture():
            yield from _titled(part.title)
            yield from _fenced(part.text)
        case parts.Sources():
            yield from _items(part.texts, numbered=True)


def _titled(title: str) -> Iterator[str]:
    if title:
        yield from (f"### {escaped(title)}", "")


def _items(texts: Sequence[str], *, numbered: bool = False) -> Iterator[str]:
    for number, text in enumerate(texts, 1):
        yield f"{number}. {escaped(text)}" if numbered else f"- {escaped(text)}"


def _fenced(text: str) -> Iterator[str]:
    """A block that no row of backticks inside it ends."""
    fence = "`" * (1 + max((len(found) for found in FENCES.findall(text)), default=2))
    yield from (f"{fence}text", *printable(text).splitlines(), fence)


def _table(table: parts.Table) -> Iterator[str]:
    yield from _titled(table.title)
    yield _row([inline(cell) for cell in table.head])
    yield _row(["---:" if column in table.right else "---" for column in range(len(table.head))])
    for number, row in enumerate(table.rows):
        cells = [_cell(cell) for cell in row]
        yield _row([f"**{cell}**" if cell and number in table.strong else cell for cell in cells])


def _cell(cell: str | parts.Ref) -> str:
    if isinstance(cell, parts.Ref):
        return f"\\[{cell.number}\\]" if cell.number else ""
    return inline(cell)


def _row(cells: list[str]) -> str:
    return f"| {' | '.join(cells)} |"
