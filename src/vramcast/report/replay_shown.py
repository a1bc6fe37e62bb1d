"""A replayed recording as a Python object that shows itself: text at a prompt, a picture in a notebook, JSON, page."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from vramcast.domain.model import Noun
from vramcast.recordings.examine import Examined
from vramcast.report.messages import Words, words_here
from vramcast.report.notebook import Shown
from vramcast.report.replay import headline, render
from vramcast.report.replay_document import to_json
from vramcast.report.replay_page import write_page

if TYPE_CHECKING:
    from vramcast.report.written.parts import Report


class ShownReplay(Noun, Shown, frozen=True):
    """What a recording shows, device by device, with its representations."""

    devices: tuple[Examined, ...]
    top: int = 10

    def __repr__(self) -> str:
        """Short: columns of a million events are no answer at a prompt."""
        words = words_here()
        said = "; ".join(f"{found.snapshot.name}: {headline(found, words)}" for found in self.devices)
        return f"<{type(self).__name__} {said}>"

    def __str__(self) -> str:
        return self.text(words_here())

    def text(self, words: Words) -> str:
        """The report in a language."""
        return render(self.devices, words, top=self.top)

    def to_json(self) -> str:
        """The document `vramcast replay --json` prints."""
        return to_json(self.devices, top=self.top)

    def write_html(self, path: str | Path, language: str = "en") -> None:
        """The page `vramcast replay --html` writes.

        Raises: SourceError where it cannot be written
        """
        write_page(Path(path), self.devices, Words(language), top=self.top)

    def _brief(self, words: Words) -> Report:
        from vramcast.report.written.brief import replay_brief

        return replay_brief(self, words)
