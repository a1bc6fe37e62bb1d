"""What was tried on a script, as text: the best, its patch, and a table of every trace."""

from __future__ import annotations

import shlex
from collections.abc import Iterator

from vramcast.domain.varied import MEMORY, TOKENS, TunedAnswer, TunedRun
from vramcast.report.columns import table_lines
from vramcast.report.document import SCHEMA, as_text, plain
from vramcast.report.messages import Shown, Words
from vramcast.units import format_bytes, format_seconds


class ShownTuned(TunedAnswer, Shown, frozen=True):
    """The answer with its representations."""

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {' + '.join(self.runs[self.best].changes) or 'as it is'}>"

    def text(self, words: Words) -> str:
        """The report in a language."""
        return "\n".join(_lines(self, words)) + "\n"

    def to_json(self) -> str:
        """The document `vramcast tune ... --json` prints."""
        return as_text({"schema": SCHEMA, **plain(self)}).rstrip()


def _lines(answer: TunedAnswer, words: Words) -> Iterator[str]:
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
            yield f"    {_said(row, words)}: {words.said(row.failure)}"
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


def _said(row: TunedRun, words: Words) -> str:
    return " + ".join(words.said(text) for text in row.changes) or words("tune.plain")


def _table(answer: TunedAnswer, words: Words) -> Iterator[tuple[str, ...]]:
    rate = words("tune.column.tokens" if answer.runs[0].tokens_per_s is not None else "tune.column.samples")
    yield "", words("tune.column.changes"), words("tune.column.peak"), "", words("tune.column.step"), rate
    for index, row in enumerate(answer.runs):
        mark = "*" if index == answer.best else ""
        if row.device_bytes is None:
            yield mark, _said(row, words), "-", words("tune.no_candidate"), "-", "-"
            continue
        number = row.tokens_per_s if row.tokens_per_s is not None else row.samples_per_s
        yield (
            mark, _said(row, words), format_bytes(row.device_bytes), words("tune.yes" if row.fits else "tune.no"),
            format_seconds(row.step_s or 0.0), _count(number or 0.0),
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
