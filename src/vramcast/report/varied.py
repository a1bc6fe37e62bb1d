"""The peak as a function of sizes, as text: the formula, the largest that fit, and a map.

What was tried on a script, as text: the best, its patch, and a table of every trace.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from typing import Final

from vramcast.domain.varied import MEMORY, TOKENS, Axis, Piece, Term, TunedAnswer, TunedRun, VariedAnswer, VariedPoint
from vramcast.report.columns import table_lines
from vramcast.report.document import SCHEMA, as_text, plain
from vramcast.report.messages import Shown, Words
from vramcast.units import GIB, KIB, MIB, format_bytes, format_seconds


class ShownTuned(TunedAnswer, Shown, frozen=True):
    """The answer with its representations."""

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {' + '.join(self.runs[self.best].changes) or 'as it is'}>"

    def text(self, words: Words) -> str:
        """The report in a language."""
        return "\n".join(_tried_lines(self, words)) + "\n"

    def to_json(self) -> str:
        """The document `vramcast tune ... --json` prints."""
        return as_text({"schema": SCHEMA, **plain(self)}).rstrip()


def _tried_lines(answer: TunedAnswer, words: Words) -> Iterator[str]:
    before, best = answer.runs[0], answer.runs[answer.best]
    yield _headline(answer, words)
    yield "  " + words("tune.basis", gpu=str(answer.question.get("gpu", "")), traces=len(answer.runs))
    yield "  " + _batch(before, best, words)
    if answer.rounds:
        yield "  " + words("tune.rounds", changes=_joined(answer.rounds, words))
    if answer.best:
        yield from ("", words("tune.changes"))
        for change in best.changes:
            cost = answer.costs.get(change)
            yield f"  - {words.said(change)}" + (f": {words.said(cost)}" if cost else "")
    yield from ("", words("tune.tried", count=len(answer.runs)))
    yield from table_lines(list(_table(answer, words)), right=frozenset({2, 3, 4, 5}), folded=1)
    for row in answer.runs:
        if row.failure:
            yield f"    {_tried_words(row, words)}: {words.said(row.failure)}"
    if answer.not_offered:
        yield from ("", words("tune.not_offered"))
        yield from (f"  - {words.said(text)}" for text in answer.not_offered)
    if answer.not_allowed:
        yield from ("", words("tune.not_allowed", names=",".join(answer.not_allowed)))
    if answer.assumptions:
        yield from ("", words("assumed"))
        yield from (f"  - {words.said(text)}" for text in answer.assumptions)
    if answer.best:
        yield from ("", *_result(answer, words))


def _headline(answer: TunedAnswer, words: Words) -> str:
    before, best = answer.runs[0], answer.runs[answer.best]
    fits = words("tune.fits" if best.fits else "tune.too_large", size=format_bytes(best.device_bytes or 0),
                 capacity=format_bytes(answer.capacity_bytes))
    if not answer.best:
        return words("tune.as_it_is", rate=_rate(answer, best, words), fits=fits)
    if answer.goal == MEMORY or not before.fits:
        before_size, after = format_bytes(before.device_bytes or 0), format_bytes(best.device_bytes or 0)
        return words("tune.smaller", before=before_size, after=after, rate=_rate(answer, best, words), fits=fits)
    factor = _number(answer, best) / max(1e-12, _number(answer, before))
    return words("tune.faster", before=_rate(answer, before, words), after=_rate(answer, best, words),
                 factor=f"{factor:.2f}", fits=fits)


def _number(answer: TunedAnswer, row: TunedRun) -> float:
    return (row.tokens_per_s if answer.goal == TOKENS else row.samples_per_s) or 0.0


def _rate(answer: TunedAnswer, row: TunedRun, words: Words) -> str:
    if row.tokens_per_s is not None and answer.goal != "samples/s":
        return words("tune.tokens", rate=_count(row.tokens_per_s))
    return words("tune.samples", rate=_count(row.samples_per_s or 0.0))


def _count(rate: float) -> str:
    return f"{rate:,.0f}" if rate >= 100 else f"{rate:.3g}"


def _batch(before: TunedRun, best: TunedRun, words: Words) -> str:
    sizes = [words("tune.sizes", micro=row.micro_batch, accumulate=row.accumulate) for row in (before, best)]
    key = "tune.batch_kept" if before.samples == best.samples else "tune.batch_other"
    return words(key, samples=best.samples, sizes=" -> ".join(dict.fromkeys(sizes)), before=before.samples)


def _joined(texts: tuple[str, ...], words: Words) -> str:
    return ", ".join(words.said(text) for text in texts)


def _tried_words(row: TunedRun, words: Words) -> str:
    return " + ".join(words.said(text) for text in row.changes) or words("tune.plain")


def _table(answer: TunedAnswer, words: Words) -> Iterator[tuple[str, ...]]:
    rate = words("tune.column.tokens" if answer.runs[0].tokens_per_s is not None else "tune.column.samples")
    yield "", words("tune.column.changes"), words("tune.column.peak"), "", words("tune.column.step"), rate
    for index, row in enumerate(answer.runs):
        mark = "*" if index == answer.best else ""
        if row.device_bytes is None:
            yield mark, _tried_words(row, words), "-", words("tune.no_candidate"), "-", "-"
            continue
        number = row.tokens_per_s if row.tokens_per_s is not None else row.samples_per_s
        yield (
            mark, _tried_words(row, words), format_bytes(row.device_bytes),
            words("tune.yes" if row.fits else "tune.no"), format_seconds(row.step_s or 0.0), _count(number or 0.0),
        )


def _result(answer: TunedAnswer, words: Words) -> Iterator[str]:
    best = answer.runs[answer.best]
    if answer.arguments:
        yield words("tune.arguments", arguments=shlex.join(answer.arguments))
    if not answer.patch:
        yield words("tune.only_arguments")
        return
    yield words(
        "tune.proof", number=answer.best + 1, size=format_bytes(best.device_bytes or 0),
        step=format_seconds(best.step_s or 0.0), rate=_rate(answer, best, words),
    )
    if answer.patch_path is not None:
        yield words("tune.patch_written", path=answer.patch_path)
    else:
        yield from (words("tune.patch_below"), "", answer.patch.rstrip("\n"))


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
