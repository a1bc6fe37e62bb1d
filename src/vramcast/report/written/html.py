"""A report as one HTML file: no scripts, nothing fetched, light and dark, on paper and on a phone."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from importlib.resources import files
from typing import Final

from vramcast.report.looks import COLOURS, look
from vramcast.report.written import parts
from vramcast.report.written.pictures import bars_svg, legend, markup

WIDE: Final = 4
"""Columns of a table that a phone shows without scrolling."""

POLICY: Final = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"

MARKED: Final = re.compile(r"https?://[\w./?=&%#~+:@,;-]*[\w/]|(?<!\S)--[a-z][a-z-]{0,40}(?!\S)", re.A)
"""Addresses, which become links, and options, which browsers would break behind their dashes."""


def html(report: parts.Report) -> str:
    style = _style(COLOURS, "report/page/report.css", "report/page/parts.css")
    return (
        f'<!doctype html>\n<html lang="{report.language}">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="referrer" content="no-referrer">\n'
        f"<title>{markup(report.title)}</title>\n<style>\n{style}</style>\n</head>\n"
        f'<body>\n<main class="vramcast">\n{_body(report)}</main>\n</body>\n</html>\n'
    )


def cell(report: parts.Report) -> str:
    """The report as output of a notebook: its colours are made of the ink of the page around it, light or dark."""
    style = _style("report/page/parts.css", "report/page/notebook.css")
    return f'<div class="vramcast cell">\n<style>\n{style}</style>\n{_body(report)}</div>\n'


def _style(*names: str) -> str:
    return "".join((files("vramcast") / name).read_text(encoding="utf-8") for name in names)


def _body(report: parts.Report) -> str:
    first, *others = report.verdict
    kind = f" {report.tone}" if report.tone else ""
    said = "".join(f"<p>{_linked(line)}</p>" for line in others)
    sections = "".join(map(_section, report.sections))
    footer = "".join(f"<p>{_linked(line)}</p>" for line in report.footer)
    return (
        f"<header>{_heading(1, report.title)}"
        f'<div class="verdict{kind}"><p class="answer">{_linked(first)}</p>{said}</div></header>\n'
        f"{sections}{f'<footer>{footer}</footer>' if footer else ''}\n"
    )


def _section(section: parts.Section) -> str:
    body = "".join(text for part in section.parts for text in shown(part))
    if section.folded:
        return f"<details>\n<summary>{markup(section.title)}</summary>\n{body}</details>\n"
    return f"<section>\n{_heading(2, section.title)}{body}</section>\n"


def _heading(level: int, text: str) -> str:
    return f"<h{level}>{markup(text)}</h{level}>\n" if text else ""


def shown(part: parts.Part) -> Iterator[str]:
    match part:
        case parts.Text():
            yield f"<p>{_linked(part.text)}</p>\n"
        case parts.Items():
            items, kind = "".join(f"<li>{_linked(text)}</li>" for text in part.texts), "ol" if part.numbered else "ul"
            yield f"<{kind}>{items}</{kind}>\n"
        case parts.Code():
            yield f'<pre tabindex="0"><code>{_linked(part.text)}</code></pre>\n'
        case parts.Pairs():
            pairs = "".join(f"<div><dt>{markup(name)}</dt><dd>{markup(value)}</dd></div>" for name, value in part.rows)
            yield f"<dl>{pairs}</dl>\n"
        case parts.Table():
            yield from _table(part)
        case parts.Bars():
            yield f"<figure>{bars_svg(part)}<figcaption>{markup(part.title)}</figcaption>"
            yield from _legend(legend(part), valued=len(part.bars) == 1)  # of several a table has the figures
            yield "</figure>\n"
        case parts.Picture():
            title = markup(part.title)
            yield f'<figure tabindex="0" aria-label="{title}">{part.svg}<figcaption>{title}</figcaption>'
            yield from (*_legend(part.legend, valued=False), "</figure>\n")
        case parts.Sources():
            yield '<ol class="sources">'
            yield from (f'<li id="source-{number}">{_linked(text)}</li>' for number, text in enumerate(part.texts, 1))
            yield "</ol>\n"


def _legend(slices: Sequence[parts.Slice], *, valued: bool) -> Iterator[str]:
    if not slices:
        return
    yield '<ul class="legend">'
    for one in slices:
        value = f" <b>{markup(one.shown)}</b>" if valued else ""
        yield f'<li><i style="background:{look(one.kind).colour}"></i>{markup(one.label)}{value}</li>'
    yield "</ul>"


def _table(part: parts.Table) -> Iterator[str]:
    yield _heading(3, part.title)
    label = markup(part.title or part.head[0])
    yield f'<div class="table" tabindex="0" role="region" aria-label="{label}">'
    yield f'<table{" class=wide" if len(part.head) > WIDE else ""}>\n<thead><tr>'
    for column, text in enumerate(part.head):
        yield f'<th scope="col"{_side(part, column)}>{markup(text)}</th>'
    yield "</tr></thead>\n<tbody>\n"
    for number, row in enumerate(part.rows):
        cells = "".join(f"<td{_side(part, column)}>{_cell(cell)}</td>" for column, cell in enumerate(row))
        yield f'<tr class="sum">{cells}</tr>\n' if number in part.strong else f"<tr>{cells}</tr>\n"
    yield "</tbody></table></div>\n"


def _side(part: parts.Table, column: int) -> str:
    return ' class="figure"' if column in part.right else ""


def _cell(cell: str | parts.Ref) -> str:
    if isinstance(cell, parts.Ref):
        return f'<a href="#source-{cell.number}">[{cell.number}]</a>' if cell.number else ""
    return _linked(cell)


def _linked(text: str) -> str:
    """The text with its addresses as links, its options kept in one piece; everything else is text.

    >>> _linked("see https://arxiv.org/abs/1910.02054, <b>")
    'see <a href="https://arxiv.org/abs/1910.02054" rel="noreferrer">https://arxiv.org/abs/1910.02054</a>, &lt;b&gt;'
    """
    texts, end = [], 0
    for found in MARKED.finditer(text):
        marked = markup(found[0])
        is_option = marked.startswith("--")
        shown = f"<span>{marked}</span>" if is_option else f'<a href="{marked}" rel="noreferrer">{marked}</a>'
        texts += [markup(text[end : found.start()]), shown]
        end = found.end()
    return "".join([*texts, markup(text[end:])])
