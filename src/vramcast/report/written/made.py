"""An answer made into a report, and written to a file."""

from __future__ import annotations

from collections.abc import Callable
from datetime import date
from pathlib import Path
from typing import Any, Final

from vramcast.errors import InvalidSpec
from vramcast.report.messages import Words
from vramcast.report.written.answers import answer_report
from vramcast.report.written.brief import plan_report
from vramcast.report.written.compared import compared_report
from vramcast.report.written.html import html
from vramcast.report.written.markdown import markdown
from vramcast.report.written.parts import Report
from vramcast.report.written.recordings import diagnosis_report, replay_report, trace_report
from vramcast.sources.files import check_writable

FORMATS: Final[dict[str, Callable[[Report], str]]] = {"html": html, "md": markdown}
"""Format, which is also the ending of its files -> what writes it."""

BUILDERS: Final[dict[str, Callable[..., Report]]] = {
    "train": answer_report, "serve": answer_report, "rl": answer_report,
    "plan train": plan_report, "plan serve": plan_report,
    "oom": diagnosis_report, "replay": replay_report, "trace": trace_report, "compare": compared_report,
}
"""Command -> what makes a report of its answer."""


def report_of(
    command: str, answer: Any, format: str, language: str, *, asked: str = "", today: date | None = None
) -> str:
    """An answer as the text of a report.

    Args:
        command: whose answer it is: "train", "serve", "rl", "plan train", "plan serve", "oom", "replay", "trace",
            "compare"
        answer: what the function of that name returns
        format: "html" or "md"
        language: "en" or "zh"
        asked: the command line that asks the question, as it is typed
        today: day of the report; None: this one

    Raises: InvalidSpec for another command or format
    """
    for what, name, known in (("command", command, BUILDERS), ("format", format, FORMATS)):
        if name not in known:
            raise InvalidSpec("a report has no {} {!r}; use {}", what, name[:40], ", ".join(known))
    report = BUILDERS[command](command, answer, Words(language), asked=asked, today=today or date.today())
    return FORMATS[format](report)


def check_report(path: Path) -> None:
    """Refuse, before any work, a path that no report can be written to.

    Raises: InvalidSpec for an ending of no known format, SourceError for a folder that is not there
    """
    if path.suffix.removeprefix(".") not in FORMATS:
        raise InvalidSpec("--report {} must end in {}", str(path)[:80], " or ".join(f".{name}" for name in FORMATS))
    check_writable(path)
