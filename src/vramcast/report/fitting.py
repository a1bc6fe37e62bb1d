"""The models that cards hold, as a table and as JSON."""

from __future__ import annotations

from vramcast.domain.planning import Fitting
from vramcast.report.columns import table_lines
from vramcast.report.messages import Words
from vramcast.report.sentences import word_of
from vramcast.units import format_bytes


def render(found: Fitting, words: Words) -> str:
    """One line per model, the largest first."""
    lines = [
        words(
            f"fitting.{found.purpose}", count=len(found.fits), all=found.looked_at, gpus=found.gpus,
            engine=found.engine, tokens=f"{found.length:,}",
        ),
        *(f"  {words.said(text)}" for text in found.said),
    ]
    rows = [
        (
            fit.name, f"{fit.parameters:,}", words(f"form.{fit.form}") if " " in fit.form else fit.form,
            word_of(fit.answer.verdict, words), format_bytes(fit.answer.fullest.needed_bytes),
            "" if fit.answer.tokens_per_s is None else words("plan.speed", rate=f"{fit.answer.tokens_per_s:,.0f}"),
        )
        for fit in found.fits
    ]
    if rows:
        head = ("model", words("parameters"), "", "", words("choices.needs"), words("choices.speed"))
        lines += ["", *table_lines([head, *rows], right=frozenset({1, 4, 5}))]
    return "\n".join(lines) + "\n"
