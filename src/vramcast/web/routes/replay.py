"""`/api/replay`: a recording of GPU memory, as JSON or as the page that shows it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from vramcast.errors import InvalidSpec
from vramcast.report.messages import LANGUAGES, Words
from vramcast.web.exchange import HTML, Asked, Reply, choice_field
from vramcast.web.limits import LARGEST_UNPACKED
from vramcast.web.routes.written import written

if TYPE_CHECKING:
    from vramcast.domain.snapshot import Snapshot

FORMATS: Final = ("json", "html", "md")
MOST_TOP: Final = 1000
MOST_DEVICE: Final = 1 << 16
LONGEST_NAME: Final = 120
UNNAMED: Final = "recording"


def replay(asked: Asked) -> dict[str, Any] | Reply:
    """The document that `vramcast replay --json` prints, the page that --html writes, or --report's Markdown."""
    from vramcast.api.observed import replayed
    from vramcast.question.amounts import parse_bytes
    from vramcast.recordings.examine import Asked as LookAt

    query = asked.query
    language = choice_field(query, "lang", LANGUAGES, "en")
    shape = choice_field(query, "format", FORMATS, "json")
    device = number(query.get("device", ""), "device", most=MOST_DEVICE)
    look_at = LookAt(
        top=number(query.get("top", ""), "top", least=1, most=MOST_TOP) or 10,
        leaks=asked.flag("leaks"),
        confs=tuple(filter(None, (query.get("alloc-conf"),))),
        all_confs=asked.flag("all-confs"),
        capacity_bytes=parse_bytes("capacity", query["capacity"]) if query.get("capacity") else None,
    )
    found = replayed(recording_of(asked), look_at, device=device)
    if shape == "html":
        from vramcast.report.replay_page import page

        return Reply(200, HTML, page(found.devices, Words(language), top=look_at.top).encode())
    if shape == "md":
        return written("replay", found, shape, language)
    from vramcast.report.replay import about
    from vramcast.report.replay_document import replay_document

    document = replay_document(found.devices, top=look_at.top)
    for device, shown in zip(document["devices"], found.devices, strict=True):
        device["about"] = list(about(shown, Words(language)))
    if "warnings" in document:
        document["warnings"] = [asked.words.said(text) for text in document["warnings"]]
    return document


def recording_of(asked: Asked) -> Snapshot:
    """The recording that the body holds; pickles are read as data, none of their code is run."""
    from vramcast.sources.snapshots import snapshot_of

    name = "".join(mark for mark in asked.query.get("name", "")[:LONGEST_NAME] if mark.isprintable())
    return snapshot_of(asked.body, name=name or UNNAMED, limit_bytes=LARGEST_UNPACKED)


def number(text: str, name: str, *, least: int = 0, most: int) -> int | None:
    """A whole number of the query; None where it is not given.

    Raises: InvalidSpec
    """
    if not text:
        return None
    if not (text.isascii() and text.isdecimal() and len(text) < 10 and least <= int(text) <= most):
        raise InvalidSpec(f"{name}={text[:40]!r} must be a whole number from {least} to {most}")
    return int(text)
