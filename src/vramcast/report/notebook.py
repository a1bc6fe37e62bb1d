"""The answer as a Python object that shows itself: text at a prompt, a picture in a notebook, JSON on request."""

from __future__ import annotations

from datetime import date
from typing import TYPE_CHECKING

from msgspec.structs import asdict

from vramcast.domain.answer import Answer, ServeAnswer
from vramcast.domain.failure import Diagnosis
from vramcast.domain.planning import PlanAnswer
from vramcast.report import failure, plan, plan_document
from vramcast.report.document import to_json
from vramcast.report.messages import Words, words_here
from vramcast.report.text import render, verdict

if TYPE_CHECKING:
    from vramcast.report.written.parts import Report


class Shown:
    """An object that notebooks show by a short report of its own, in the language of the locale."""

    def _brief(self, words: Words) -> Report:
        raise NotImplementedError

    def _repr_html_(self) -> str:
        from vramcast.report.written.html import cell

        return cell(self._brief(words_here()))

    def _repr_markdown_(self) -> str:
        from vramcast.report.written.markdown import markdown

        return markdown(self._brief(words_here()))


class ShownAnswer(Answer, Shown, frozen=True):
    """An answer with its representations."""

    def __str__(self) -> str:
        return render(self, words_here())

    def __repr__(self) -> str:
        """Short: a ledger of a hundred entries is no answer at a prompt."""
        return f"<{type(self).__name__} {next(verdict(self, words_here()))}>"

    def to_json(self) -> str:
        """The document `vramcast train --json` prints."""
        return to_json(self)

    def _brief(self, words: Words) -> Report:
        from vramcast.report.written.brief import answer_brief

        return answer_brief(self, words, date.today())


class ShownPlanAnswer(PlanAnswer, Shown, frozen=True):
    """The answer of a search with its representations."""

    def __str__(self) -> str:
        return plan.render(self, words_here())

    def __repr__(self) -> str:
        """Short: the ledgers of ten plans are no answer at a prompt."""
        from vramcast.report.written.plans import plan_verdict

        return f"<{type(self).__name__} {plan_verdict(self, words_here(), date.today())[0]}>"

    def to_json(self) -> str:
        """The document `vramcast plan train --json` prints."""
        return plan_document.to_json(self)

    def _brief(self, words: Words) -> Report:
        from vramcast.report.written.brief import plan_brief

        return plan_brief(self, words, date.today())


class ShownDiagnosis(Diagnosis, Shown, frozen=True):
    """A diagnosis with its representations."""

    def __str__(self) -> str:
        return failure.render(self, words_here())

    def to_json(self) -> str:
        """The document `vramcast oom --json` prints."""
        return failure.to_json(self)

    def _brief(self, words: Words) -> Report:
        from vramcast.report.written.brief import diagnosis_brief

        return diagnosis_brief(self, words, date.today())


class ShownServeAnswer(ServeAnswer, ShownAnswer, frozen=True):
    """An answer to a serving question with its representations."""


def shown_serving(answer: ServeAnswer) -> ShownServeAnswer:
    return ShownServeAnswer(**asdict(answer))


def shown(answer: Answer) -> ShownAnswer:
    return ShownAnswer(**asdict(answer))


def shown_diagnosis(found: Diagnosis) -> ShownDiagnosis:
    return ShownDiagnosis(**asdict(found))


def shown_plan(answer: PlanAnswer) -> ShownPlanAnswer:
    return ShownPlanAnswer(**asdict(answer))
