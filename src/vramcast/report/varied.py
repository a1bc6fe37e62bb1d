"""The peak as a function of sizes, as text: the formula, the largest that fit, and a map."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from vramcast.domain.varied import Axis, Piece, Term, VariedAnswer, VariedPoint
from vramcast.report.columns import table_lines
from vramcast.report.document import SCHEMA, as_text, plain
from vramcast.report.messages import Shown, Words
from vramcast.units import GIB, KIB, MIB, format_bytes

SHADES: Final = " ░▒▓█"
"""How much of the card is taken, in quarters."""
NO_ROOM: Final = "x"
SMALLEST_SHARE: Final = 0.01  # of the map: pieces of the formula below are counted, not printed
MOST_PIECES: Final = 6


class ShownVaried(VariedAnswer, Shown, frozen=True):
    """The answer with its representations."""

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {formula(self.formula[0], Words('en'))}>"

    def text(self, words: Words) -> str:
        """The report in a language."""
        return "\n".join(_lines(self, words)) + "\n"

    def to_json(self) -> str:
        """The document `vramcast trace --vary ... --json` prints."""
        return as_text({"schema": SCHEMA, **plain(self)}).rstrip()


def _lines(answer: VariedAnswer, words: Words) -> Iterator[str]:
    for one in answer.largest:
        others = ", ".join(f"{name} {value:,}" for name, value in one.at.items())
        at = words("vary.at", others=others) if others else ""
        if one.value is None:
            yield words("vary.none", axis=one.axis, at=at, size=format_bytes(one.device_bytes or 0))
        else:
            key = "vary.more" if one.is_end else "vary.largest"
            yield words(key, axis=one.axis, value=f"{one.value:,}", at=at, size=format_bytes(one.device_bytes or 0))
    yield words(
        "vary.card", gpu=str(answer.question.get("gpu", "")), capacity=format_bytes(answer.capacity_bytes),
        axes="; ".join(_said(axis) for axis in answer.axes),
    )
    yield from ("", words("vary.formula"))
    yield from (f"  {line}" for line in _formula(answer, words))
    yield from ("", words("vary.map"))
    yield from table_lines(list(_map(answer)), right=frozenset(range(64)))
    yield from ("", words(
        "vary.basis", traces=answer.traces, checked=answer.checked, regions=answer.regions,
    ))
    if answer.assumptions:
        yield from ("", words("assumed"))
        yield from (f"  - {words.said(text)}" for text in answer.assumptions)


def _said(axis: Axis) -> str:
    step = f"/{axis.step}" if axis.step > 1 else ""
    where = f" ({axis.where})" if axis.where else ""
    return f"{axis.name}{where} {axis.low:,}..{axis.high:,}{step}"


def _formula(answer: VariedAnswer, words: Words) -> Iterator[str]:
    shown = [piece for piece in answer.formula if piece.share >= SMALLEST_SHARE][:MOST_PIECES] or answer.formula[:1]
    if len(shown) > 1:
        yield words("vary.largest_of")
    for piece in shown:
        within = ", ".join(f"{name} {low:,}..{high:,}" for name, (low, high) in piece.within.items())
        yield f"{formula(piece, words)}{f'   [{within}]' if within else ''}"
        yield words("vary.moment" if piece.is_exact else "vary.moment_close", moment=piece.moment)
    yield words("vary.off", share=f"{100 * answer.off_share:.2f} %")


def formula(piece: Piece, words: Words) -> str:
    """One moment: "1.92 GiB + batch x 310.20 MiB"."""
    text = ""
    for term in piece.terms:
        sign = "-" if term.num_bytes < 0 else "+"
        text += f" {sign} {_term(term)}" if text else f"{'-' if sign == '-' else ''}{_term(term)}"
    return text or words("vary.nothing")


def _term(term: Term) -> str:
    factors = [name if power == 1 else f"{name}^{power}" for name, power in term.powers.items()]
    return " x ".join([*factors, size_text(abs(term.num_bytes))])


def size_text(num_bytes: float) -> str:
    """As sizes are printed, with as many digits as a factor needs.

    >>> size_text(325263360), size_text(88544.0), size_text(12.0), size_text(0.25)
    ('310.195 MiB', '86.4688 KiB', '12 B', '0.25 B')
    """
    for unit, factor in (("GiB", GIB), ("MiB", MIB), ("KiB", KIB)):
        if num_bytes >= factor:
            return f"{num_bytes / factor:.6g} {unit}"
    return f"{num_bytes:.4g} B"


def _map(answer: VariedAnswer) -> Iterator[tuple[str, ...]]:
    """Rows of the first axis, columns of the second; further axes at their low ends."""
    first, *others = answer.axes
    fixed = {axis.name: axis.low for axis in others[1:]}
    points = [point for point in answer.points if all(point.at[name] == value for name, value in fixed.items())]
    if not others:
        yield first.name, "GiB"
        for point in points:
            yield f"{point.at[first.name]:,}", cell(point, answer.capacity_bytes)
        return
    second = others[0]
    yield (f"{first.name} \\ {second.name}", *(f"{value:,} " for value in _values(points, second)))
    for value in _values(points, first):
        row = [point for point in points if point.at[first.name] == value]
        yield (f"{value:,}", *(cell(point, answer.capacity_bytes) for point in row))


def _values(points: Sequence[VariedPoint], axis: Axis) -> list[int]:
    return list(dict.fromkeys(point.at[axis.name] for point in points))


def cell(point: VariedPoint, capacity_bytes: int) -> str:
    """GiB of the device and how much of the card that is."""
    size = point.device_bytes / GIB
    shade = SHADES[min(len(SHADES) - 1, int((len(SHADES)) * point.device_bytes / max(1, capacity_bytes)))]
    return f"{size:.1f}{shade if point.fits else NO_ROOM}" if size < 1000 else f"{size:,.0f}{NO_ROOM}"
