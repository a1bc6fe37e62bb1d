"""An answer as the file that --report writes, for all routes that hand one out."""

from __future__ import annotations

from typing import Any, Final

from vramcast.web.exchange import HTML, MARKDOWN, Reply

TYPES: Final[dict[str, str]] = {"html": HTML, "md": MARKDOWN}
"""Format of a report -> its content type."""


def written(command: str, answer: Any, shape: str, language: str, *, asked: str = "") -> Reply:
    """The report as a file to save.

    Args:
        command: whose answer it is
        answer: what the function of that name returns
        shape: of `TYPES`
        language: "en" or "zh"
        asked: the command line that asks the question
    """
    from vramcast.report.written import report_of

    text = report_of(command, answer, shape, language, asked=asked)
    name = f'attachment; filename="vramcast-{command.replace(" ", "-")}.{shape}"'
    return Reply(200, TYPES[shape], text.encode(), (("content-disposition", name),))
