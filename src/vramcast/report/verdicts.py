"""The verdict in words and in tones: one line, one word and one colour for every surface.

The words are those of `domain.verdict.Fit`; when each is said stands there. Tones are names of colours in style sheets
of reports, notebooks and the page; a terminal's colours stand in `cli.shared`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from vramcast.domain.answer import Answer
from vramcast.domain.verdict import Fit
from vramcast.report.messages import Words
from vramcast.units import format_bytes

if TYPE_CHECKING:
    from vramcast.domain.planning import PlanAnswer

TONES: Final[dict[Fit, str]] = {
    Fit.FITS: "good", Fit.CLOSELY: "good", Fit.MAY_RUN_OUT: "close", Fit.NOT: "bad",
}
"""Verdict -> tone."""

NO_TONE: Final = ""


def word_of(fit: Fit, words: Words) -> str:
    return words(f"verdict.{fit}")


def headline(answer: Answer, words: Words, *, per_gpu: bool = True) -> str:
    """The first line of an answer whose memory or load decides: the verdict, what is needed of what there is.

    `per_gpu`: whether the sizes are those of one of several cards.
    """
    needed, capacity, fit = answer.fullest.needed_bytes, answer.capacity_bytes, answer.verdict
    if answer.shortfall and needed <= capacity:
        return words("verdict.line", verdict=word_of(fit, words), reason=words.said(answer.shortfall))
    key = {Fit.FITS: "within", Fit.NOT: "beyond"}.get(fit, "close")
    reason = words(
        f"verdict.{key}{'.per_gpu' if per_gpu else ''}", needed=format_bytes(needed), capacity=format_bytes(capacity),
        high=format_bytes(answer.high_bytes), excess=format_bytes(needed - capacity),
    )
    return words("verdict.line", verdict=word_of(fit, words), reason=reason)


def tone_of(answer: Answer | PlanAnswer) -> str:
    """The tone of an answer; of a search that of its best plan, none where nothing was searched."""
    if isinstance(answer, Answer):
        return TONES[answer.verdict]
    if not answer.num_plans:
        return NO_TONE
    return TONES[answer.plans[0].verdict if answer.plans else Fit.NOT]
