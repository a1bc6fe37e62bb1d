"""A traced run as a Python object that shows itself: text at a prompt, a picture in a notebook, JSON, files."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vramcast.domain.answer import LedgerEntry
from vramcast.domain.snapshot import Snapshot
from vramcast.domain.traced import Holding, TraceAnswer
from vramcast.report.messages import Words, words_here
from vramcast.report.notebook import Shown
from vramcast.report.replay_words import plain
from vramcast.report.trace import opening, render, sections, verdict
from vramcast.report.trace_document import to_json

if TYPE_CHECKING:
    from vramcast.report.written.parts import Report


class ShownTrace(TraceAnswer, Shown, frozen=True):
    """An answer with its recording and its representations."""

    snapshot: Snapshot | None = None

    @property
    def ledger(self) -> tuple[LedgerEntry, ...]:
        """What is in the peak of the last step."""
        return self.fullest.ledger

    def __str__(self) -> str:
        return self.text(words_here())

    def __repr__(self) -> str:
        """Short: columns of a million events are no answer at a prompt."""
        return f"<{type(self).__name__} {next(verdict(self, words_here()))}>"

    def text(self, words: Words, **options: Any) -> str:
        """The report in a language; options are those of `report.trace.render`."""
        return render(self, words, **options)

    def to_json(self) -> str:
        """The document `vramcast trace --json` prints."""
        return to_json(self)

    def write_html(self, path: str | Path, language: str = "en") -> None:
        """The page `vramcast trace --html` writes: the answer, above the page of `replay` of this run.

        Raises: SourceError where it cannot be written
        """
        from vramcast.recordings.examine import Asked, examine
        from vramcast.report.replay_page import Lead, write_page

        if self.snapshot is None:
            return
        words = Words(language)
        said = words.spoken(self)
        lead = Lead(
            title=words("trace.page.title", name=self.snapshot.name), lines=tuple(opening(said, words)),
            sections=[one for one in sections(said, words, views=("category",)) if one[0] != words("trace.course")],
            modules=_rows(self.holdings.by_module), places=_rows(self.holdings.by_line),
        )
        found = [examine(self.snapshot, device, Asked()) for device in self.snapshot.devices]
        write_page(Path(path), found, words, top=Asked().top, lead=lead)

    def _brief(self, words: Words) -> Report:
        from vramcast.report.written.brief import trace_brief

        return trace_brief(self, words)


def _rows(holdings: Iterable[Holding]) -> tuple[tuple[str, int, int], ...]:
    return tuple((plain(one.name), one.num_bytes, one.count) for one in holdings)
