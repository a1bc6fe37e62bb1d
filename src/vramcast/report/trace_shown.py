"""A traced run as a Python object that shows itself: text at a prompt, a table in a notebook, JSON, files."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape
from pathlib import Path
from typing import Any

from vramcast.domain.snapshot import Snapshot
from vramcast.domain.traced import Holding, TraceAnswer
from vramcast.report.messages import Words
from vramcast.report.replay_words import plain
from vramcast.report.trace import opening, render, sections, verdict
from vramcast.report.trace_document import to_json
from vramcast.units import format_bytes

SHOWN_ENTRIES = 20


class ShownTrace(TraceAnswer, frozen=True):
    """An answer with its recording and its representations."""

    snapshot: Snapshot | None = None

    def __str__(self) -> str:
        return self.text(Words("en"))

    def __repr__(self) -> str:
        """Short: columns of a million events are no answer at a prompt."""
        return f"<{type(self).__name__} {next(verdict(self, Words('en')))}>"

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
        lead = Lead(
            title=words("trace.page.title", name=self.snapshot.name), lines=tuple(opening(self, words)),
            sections=[one for one in sections(self, words, views=("category",)) if one[0] != words("trace.course")],
            modules=_rows(self.holdings.by_module), places=_rows(self.holdings.by_line),
        )
        found = [examine(self.snapshot, device, Asked()) for device in self.snapshot.devices]
        write_page(Path(path), found, words, top=Asked().top, lead=lead)

    def _repr_html_(self) -> str:
        words = Words("en")
        lines = "".join(f"<div>{escape(line)}</div>" for line in verdict(self, words))
        entries = self.fullest.ledger[:SHOWN_ENTRIES]
        largest = max(1, *(entry.num_bytes for entry in entries), 1)
        rows = "".join(
            f"<tr><td style='text-align:left'>{escape(entry.path)}</td><td>{format_bytes(entry.num_bytes)}</td>"
            f"<td>{entry.count}</td><td style='text-align:left'><div style='background:#4c78a8;height:0.8em;"
            f"width:{max(1, round(160 * entry.num_bytes / largest))}px'></div></td></tr>"
            for entry in entries
        )
        return f"<div><b>{lines}</b><table><tbody>{rows}</tbody></table></div>"


def _rows(holdings: Iterable[Holding]) -> tuple[tuple[str, int, int], ...]:
    return tuple((plain(one.name), one.num_bytes, one.count) for one in holdings)
