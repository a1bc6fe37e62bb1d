"""Answers and recordings as Python objects that show themselves: text at a prompt, a short report or a picture in a
notebook, JSON on request, a page."""

from __future__ import annotations

from datetime import date
from pathlib import Path
from typing import Any

from vramcast.domain.answer import Answer, LedgerEntry, PostTrainingAnswer, ServeAnswer
from vramcast.domain.failure import Diagnosis
from vramcast.domain.model import Noun
from vramcast.domain.planning import PlanAnswer
from vramcast.domain.snapshot import Snapshot
from vramcast.domain.trace_job import Holding, TraceAnswer
from vramcast.recordings.examine import Asked, Examined, examine
from vramcast.report import document, failure, plan, replay, replay_document, text, trace
from vramcast.report.messages import Shown, Words, words_here
from vramcast.report.replay_page import Lead, write_page
from vramcast.report.replay_words import plain


class ShownAnswer(Answer, Shown, frozen=True):
    """An answer with its representations."""

    def __repr__(self) -> str:
        """Short: a ledger of a hundred entries is no answer at a prompt."""
        return f"<{type(self).__name__} {next(text.verdict(self, words_here()))}>"

    def text(self, words: Words) -> str:
        return text.render(self, words)

    def to_json(self) -> str:
        """The document `vramcast train --json` prints."""
        return document.to_json(self)


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
        return document.plan_json(self)


class ShownDiagnosis(Diagnosis, Shown, frozen=True):
    """A diagnosis with its representations."""

    def text(self, words: Words) -> str:
        return failure.render(self, words)

    def to_json(self) -> str:
        """The document `vramcast oom --json` prints."""
        return failure.to_json(self)


class ShownReplay(Noun, Shown, frozen=True):
    """What a recording shows, device by device, with its representations."""

    devices: tuple[Examined, ...]
    top: int = 10

    def __repr__(self) -> str:
        """Short: columns of a million events are no answer at a prompt."""
        words = words_here()
        said = "; ".join(f"{found.snapshot.name}: {replay.headline(found, words)}" for found in self.devices)
        return f"<{type(self).__name__} {said}>"

    def text(self, words: Words) -> str:
        return replay.render(self.devices, words, top=self.top)

    def to_json(self) -> str:
        """The document `vramcast replay --json` prints."""
        return replay_document.to_json(self.devices, top=self.top)

    def write_html(self, path: str | Path, language: str = "en") -> None:
        """The page `vramcast replay --html` writes.

        Raises: SourceError where it cannot be written
        """
        write_page(Path(path), self.devices, Words(language), top=self.top)


class ShownTrace(TraceAnswer, Shown, frozen=True):
    """An answer with its recording and its representations."""

    snapshot: Snapshot | None = None

    @property
    def ledger(self) -> tuple[LedgerEntry, ...]:
        """What is in the peak of the last step."""
        return self.fullest.ledger

    def __repr__(self) -> str:
        """Short: columns of a million events are no answer at a prompt."""
        return f"<{type(self).__name__} {next(trace.verdict(self, words_here()))}>"

    def text(self, words: Words, **options: Any) -> str:
        """The report in a language; options are those of `report.trace.render`."""
        return trace.render(self, words, **options)

    def to_json(self) -> str:
        """The document `vramcast trace --json` prints."""
        return trace.to_json(self)

    def write_html(self, path: str | Path, language: str = "en") -> None:
        """The page `vramcast trace --html` writes: the answer, above the page of `replay` of this run.

        Raises: SourceError where it cannot be written
        """
        if self.snapshot is None:
            return

        def rows(holdings: tuple[Holding, ...]) -> tuple[tuple[str, int, int], ...]:
            return tuple((plain(one.name), one.num_bytes, one.count) for one in holdings)

        words = Words(language)
        said = words.spoken(self)
        sections = trace.sections(said, words, views=("category",))
        lead = Lead(
            title=words("trace.page.title", name=self.snapshot.name), lines=tuple(trace.opening(said, words)),
            sections=[one for one in sections if one[0] != words("trace.course")],
            modules=rows(self.holdings.by_module), places=rows(self.holdings.by_line),
        )
        found = [examine(self.snapshot, device, Asked()) for device in self.snapshot.devices]
        write_page(Path(path), found, words, top=Asked().top, lead=lead)
