"""Answers as Python objects that show themselves: text at a prompt, a short report in a notebook, JSON on request.

What a recording or a traced run came to shows itself by classes of `report.replay` and `report.trace`.
"""

from __future__ import annotations

from datetime import date

from vramcast.domain.answer import Answer, PostTrainingAnswer, ServeAnswer
from vramcast.domain.failure import Diagnosis
from vramcast.domain.planning import PlanAnswer
from vramcast.report import failure, plan, plan_document, text
from vramcast.report.document import to_json
from vramcast.report.messages import Shown, Words, words_here


class ShownAnswer(Answer, Shown, frozen=True):
    """An answer with its representations."""

    def __repr__(self) -> str:
        """Short: a ledger of a hundred entries is no answer at a prompt."""
        return f"<{type(self).__name__} {next(text.verdict(self, words_here()))}>"

    def text(self, words: Words) -> str:
        return text.render(self, words)

    def to_json(self) -> str:
        """The document `vramcast train --json` prints."""
        return to_json(self)


class ShownServeAnswer(ServeAnswer, ShownAnswer, frozen=True):
    """An answer to a serving question with its representations."""


class ShownPostTrainingAnswer(PostTrainingAnswer, ShownAnswer, frozen=True):
    """An answer to a question about post-training with its representations."""


class ShownPlanAnswer(PlanAnswer, Shown, frozen=True):
    """The answer of a search with its representations."""

    def __repr__(self) -> str:
        """Short: the ledgers of ten plans are no answer at a prompt."""
        return f"<{type(self).__name__} {plan.opening(self, words_here(), date.today())[0]}>"

    def text(self, words: Words) -> str:
        return plan.render(self, words)

    def to_json(self) -> str:
        """The document `vramcast plan train --json` prints."""
        return plan_document.to_json(self)


class ShownDiagnosis(Diagnosis, Shown, frozen=True):
    """A diagnosis with its representations."""

    def text(self, words: Words) -> str:
        return failure.render(self, words)

    def to_json(self) -> str:
        """The document `vramcast oom --json` prints."""
        return failure.to_json(self)
