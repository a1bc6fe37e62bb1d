"""A replayed recording as a Python object that shows itself: text at a prompt, a table in a notebook, JSON, a page."""

from __future__ import annotations

from html import escape
from pathlib import Path

from vramcast.domain.model import Noun
from vramcast.recordings.examine import Examined
from vramcast.report.messages import Words
from vramcast.report.replay import about, headline, render
from vramcast.report.replay_document import to_json
from vramcast.report.replay_page import write_page
from vramcast.report.replay_words import category_name, share
from vramcast.units import format_bytes


class ShownReplay(Noun, frozen=True):
    """What a recording shows, device by device, with its representations."""

    devices: tuple[Examined, ...]
    top: int = 10

    def __repr__(self) -> str:
        """Short: columns of a million events are no answer at a prompt."""
        words = Words("en")
        said = "; ".join(f"{found.snapshot.name}: {headline(found, words)}" for found in self.devices)
        return f"<{type(self).__name__} {said}>"

    def __str__(self) -> str:
        return self.text(Words("en"))

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

    def _repr_html_(self) -> str:
        words = Words("en")
        return "".join(_device_html(examined, words) for examined in self.devices)


def _device_html(found: Examined, words: Words) -> str:
    lines = "".join(f"<div>{escape(line)}</div>" for line in about(found, words))
    largest = max(1, *(group.size_bytes for group in found.held.by_category), 1)
    rows = "".join(
        f"<tr><td style='text-align:left'>{escape(category_name(group.name, words))}</td>"
        f"<td>{format_bytes(group.size_bytes)}</td><td>{share(group.size_bytes / (found.held.size_bytes or 1))}</td>"
        f"<td style='text-align:left'><div style='background:#4c78a8;height:0.8em;"
        f"width:{max(1, round(160 * group.size_bytes / largest))}px'></div></td></tr>"
        for group in found.held.by_category
    )
    return f"<div><b>{escape(headline(found, words))}</b>{lines}<table><tbody>{rows}</tbody></table></div>"
