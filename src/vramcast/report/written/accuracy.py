"""How far predictions of an engine missed the measured runs that are known, as a section of a report."""

from __future__ import annotations

from statistics import median

from vramcast.estimate.calibration import CASES
from vramcast.report.messages import Words
from vramcast.report.written.parts import Section, Table, Text

MOST_KEPT = 21
"""`estimate.calibration` keeps that many quantiles of larger cases: there were at least as many runs."""


def accuracy(engine: str, purpose: str, words: Words) -> Section:
    """A row for each group of measured runs of the engine; a sentence where there is none.

    Args:
        engine: without its version
        purpose: "training" or "serving"
        words: of a language
    """
    groups: dict[str, list[tuple[float, ...]]] = {}
    for case in CASES:
        if case.purpose == purpose and case.traits.engine == engine:
            groups.setdefault(case.harness, []).append(case.ratios)
    if not groups:
        others = len({case.harness for case in CASES if case.purpose == purpose})
        return Section(words("report.accuracy"), (Text(words("report.accuracy_none", engine=engine, groups=others)),))
    keys = ("group", "cases", "median", "lowest", "most_high")
    rows = tuple(_row(group, ratios, words) for group, ratios in groups.items())
    table = Table(tuple(words(f"report.{key}") for key in keys), rows, right=frozenset({1, 2, 3, 4}))
    said = Text(words("report.accuracy_of", engine=engine))
    return Section(words("report.accuracy"), (said, table, Text(words("report.accuracy_note"))))


def _row(group: str, cases: list[tuple[float, ...]], words: Words) -> tuple[str, ...]:
    errors = [1 / ratio - 1 for ratios in cases for ratio in ratios]  # of the prediction, relative to what was measured
    whole = all(len(ratios) < MOST_KEPT for ratios in cases)
    count = str(len(errors)) if whole else words("report.at_least", count=len(errors))
    low, high = min(errors), max(errors)
    return (
        group, count, f"{median(map(abs, errors)):.1%}", f"{low:+.1%}" if low < 0 else "",
        f"{high:+.1%}" if high > 0 else "",
    )
