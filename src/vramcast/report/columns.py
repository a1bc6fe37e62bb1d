"""Tables of text: columns that line up, whatever script their cells are in."""

from __future__ import annotations

from collections.abc import Iterable, Iterator


def width_of(text: str) -> int:
    """Columns a terminal takes for a text: two for a Chinese character."""
    if text.isascii():
        return len(text)
    from unicodedata import east_asian_width

    return sum(2 if east_asian_width(character) in "WF" else 1 for character in text)


def table_lines(rows: Iterable[tuple[str, ...]], *, right: frozenset[int] = frozenset()) -> Iterator[str]:
    """The lines of a table below a title; none where there is no row."""
    cells = list(rows)
    if cells:
        yield from (f"  {line}" for line in table(cells, right=right).splitlines())


def table(rows: Iterable[tuple[str, ...]], *, right: frozenset[int] = frozenset()) -> str:
    """Columns as wide as their widest cell; the columns of `right` end flush."""
    cells = [tuple(str(cell) for cell in row) for row in rows]
    widths = [max(width_of(row[index]) for row in cells) for index in range(len(cells[0]))]
    lines = []
    for row in cells:
        blanks = [" " * (width - width_of(cell)) for cell, width in zip(row, widths, strict=True)]
        padded = [
            blank + cell if index in right else cell + blank
            for index, (cell, blank) in enumerate(zip(row, blanks, strict=True))
        ]
        lines.append("  ".join(padded).rstrip())
    return "\n".join(lines) + "\n"
