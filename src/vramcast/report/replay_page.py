"""A replayed recording as one HTML file that asks nothing of any network.

Everything that comes from the recording is data: JSON in the page, put into it as text. A policy in the page forbids
requests, should a browser find a way to make one.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from html import escape
from importlib.resources import files
from pathlib import Path
from typing import Any, Final, NamedTuple

from vramcast.domain.snapshot import BlockView, Frame
from vramcast.recordings.examine import Examined, main_device
from vramcast.recordings.fragmentation import Bar, Fragmentation, Hole
from vramcast.recordings.lives import CATEGORIES
from vramcast.recordings.peak import Group, Held
from vramcast.recordings.stacks import is_python, is_users, place_of, shown, top_frames
from vramcast.report import replay_words as say
from vramcast.report.looks import COLOURS, look
from vramcast.report.messages import Words, rare_messages
from vramcast.report.replay import about
from vramcast.report.replay_document import blocks_plain
from vramcast.sources.files import write_whole

MOST_BLOCKS: Final = 1000
"""Live blocks of the peak in the page; the sums count all of them."""

MOST_GROUPS: Final = 12
MOST_FRAMES: Final = 60
"""Of one stack."""

PARTS: Final = (COLOURS, "report/page/page.css", "web/page/parts/blocks.js", "report/page/page.js")
"""Of the page: its style, the picture of blocks that the web page draws as well, and the rest."""

POLICY: Final = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:"

PAGE_WORDS: Final = (
    "no_stack", "no_module", "unnamed", "held", "modules", "lines", "stacks", "largest", "holes", "pinned", "edge",
    "failures", "leaks", "notes", "unlisted",
)
"""Words of the text report that the page uses as well; its own begin with "replay.page."."""


class Lead(NamedTuple):
    """What stands above a recording that was predicted: the answer it belongs to."""

    title: str
    lines: Sequence[str]  # the answer first
    sections: Sequence[tuple[str, Sequence[str]]]  # title and lines of each
    modules: Sequence[tuple[str, int, int]]  # name, bytes and blocks at the peak; the recording knows no modules
    places: Sequence[tuple[str, int, int]]  # the same by line


def write_page(
    path: Path, found: Sequence[Examined], words: Words, *, top: int, lead: Lead | None = None
) -> None:
    """The page as a file.

    Raises: SourceError where it cannot be written
    """
    write_whole(path, page(found, words, top=top, lead=lead))


def page(found: Sequence[Examined], words: Words, *, top: int, lead: Lead | None = None) -> str:
    style, script = style_and_script()
    data = page_data(found, words, top=top, lead=lead)
    return (
        f'<!doctype html>\n<html lang="{words.language}">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(data['title'])}</title>\n<style>\n{style}</style>\n</head>\n<body>\n<main></main>\n"
        f'<script type="application/json" id="data">{embedded(data)}</script>\n'
        f"<script>\n{script}</script>\n</body>\n</html>\n"
    )


def style_and_script() -> tuple[str, str]:
    """What stands in each such page, whatever recording it is of: pages that show one allow it by its hash."""
    colours, style, picture, script = ((files("vramcast") / name).read_text(encoding="utf-8") for name in PARTS)
    return colours + style, picture.replace("export ", "") + script


def embedded(data: Any) -> str:
    """JSON that ends no script element, whatever its texts are.

    >>> embedded("</script><!--")
    '"\\\\u003c/script\\\\u003e\\\\u003c!--"'
    """
    text = json.dumps(data, ensure_ascii=True, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def page_data(
    found: Sequence[Examined], words: Words, *, top: int, lead: Lead | None = None
) -> dict[str, Any]:
    used: dict[int, None] = {}
    devices = [_device(examined, words, used, top) for examined in found]
    if lead is not None and len(devices) == 1:
        devices[0]["peak"] |= {"modules": lead.modules[:MOST_GROUPS], "lines": lead.places[:MOST_GROUPS]}
    table = found[0].snapshot.stacks if found else ()
    title = words("replay.page.title", name=found[0].snapshot.name if found else "") if lead is None else lead.title
    return {
        "title": say.plain(title),
        "lead": None if lead is None else {
            "lines": [say.plain(line) for line in lead.lines],
            "sections": [(name, "\n".join(map(say.plain, part))) for name, part in lead.sections],
        },
        "words": _words(words),
        "colours": {name: look(name).colour for name in (*CATEGORIES, "slack")},
        "devices": devices,
        "shown": main_device(found),
        "stacks": {stack: _frames(table[stack]) for stack in used if 0 < stack < len(table)},
        "remarks": [say.plain(words.said(text)) for text in (found[0].snapshot.remarks if found else ())],
    }


def _words(words: Words) -> dict[str, str]:
    named = {name: words(f"replay.{name}") for name in PAGE_WORDS}
    named |= {name: words(name) for name in ("reserved", "allocated")}
    for key, texts in rare_messages().items():
        if key.startswith("replay.category."):
            named[key.removeprefix("replay.")] = words(key)
        elif key.startswith("replay.page.") and key != "replay.page.title":
            named[key.removeprefix("replay.page.")] = texts[words.language]
    return named


def _frames(stack: tuple[Frame, ...]) -> list[tuple[str, int]]:
    """Frames with whether they are the user's; of long stacks the innermost of C++ that fit."""
    others = max(0, MOST_FRAMES - sum(map(is_python, stack)))
    rows = []
    for frame in stack:
        others -= not is_python(frame)
        if is_python(frame) or others >= 0:
            rows.append((say.plain(shown(frame)), int(is_users(frame))))
    return rows[: 2 * MOST_FRAMES]


def _device(found: Examined, words: Words, used: dict[int, None], top: int) -> dict[str, Any]:
    replayed, parts = found.replayed, found.fragmentation
    return {
        "name": words("replay.device", device=found.device).rstrip(": ："),
        "about": list(about(found, words)),
        "allocations": replayed.allocations,
        "matched": replayed.addresses_matched,
        "fragmentation": None if found.fragmentation_of_run is None else say.share(found.fragmentation_of_run),
        "peak": {"event": max(0, replayed.peak_event), "reserved": replayed.peak_reserved_bytes,
                 "allocated": replayed.peak_allocated_bytes}
        | _held(found.held, found, words, used),
        "blocks": blocks_plain(found),
        "unallocated": None if parts is None else _unallocated(found, parts, words, used, top),
        "segments": [_segment(bar) for bar in found.segments],
        "variants": _variants(found, words),
        "failures": [
            {"event": failure.event, "text": say.failed(failure, words),
             "room": say.could_have(failure, words), "stack": _use(failure.stack, used)}
            for failure in found.failures
        ],
        "leaks": None if found.leaks is None else {
            "said": say.leaks_said(found.leaks, words),
            "rows": [
                {"text": say.leak_line(leak, words), "first": _first(found, leak.stack, words),
                 "stack": _use(leak.stack, used)}
                for leak in found.leaks.leaks[:MOST_GROUPS]
            ],
        },
        "difference": None if found.difference is None else {
            "title": words("replay.difference", name=say.plain(found.difference.before)),
            "said": words(f"replay.same_process.{found.difference.same_process}"),
            "rows": say.difference_rows(found.difference, words),
        },
    }


def _use(stack: int, used: dict[int, None]) -> int:
    used[stack] = None
    return stack


def _first(found: Examined, stack: int, words: Words) -> str:
    table = found.snapshot.stacks
    frames = top_frames(table[stack], 2) if 0 <= stack < len(table) else ()
    return " < ".join(map(say.plain, frames)) or words("replay.no_stack")


def _held(held: Held, found: Examined, words: Words, used: dict[int, None]) -> dict[str, Any]:
    stacks = found.snapshot.stacks
    lines = {
        block.stack: say.plain(place_of(stacks[block.stack]).line) or words("replay.no_stack")
        for block in held.blocks[:MOST_BLOCKS]
    }

    def named(groups: Iterable[Group]) -> list[tuple[str, int, int]]:
        return [(say.plain(group.name), group.size_bytes, group.num_blocks) for group in groups]

    return {
        "held": held.size_bytes,
        "num_blocks": len(held.blocks),
        "said": list(say.held_sentences(held, words)),
        "categories": named(held.by_category),
        "modules": named(held.by_module[:MOST_GROUPS]),
        "lines": named(held.by_line[:MOST_GROUPS]),
        "stacks": [
            (_first(found, group.stack, words), group.size_bytes, group.num_blocks, _use(group.stack, used))
            for group in held.by_stack[:MOST_GROUPS]
        ],
        "blocks": [
            {
                "address": f"{block.address:#x}", "size": block.size_bytes, "category": block.category,
                "age": say.age(block, words, has_times=say.has_times(found.snapshot)), "stack": _use(block.stack, used),
                "line": lines[block.stack],
            }
            for block in held.blocks[:MOST_BLOCKS]
        ],
    }


def _unallocated(
    found: Examined, parts: Fragmentation, words: Words, used: dict[int, None], top: int
) -> dict[str, Any]:
    return {
        "title": words("replay.fragmentation", run=say.share(found.fragmentation_of_run)),
        "said": say.fragmentation_said(parts, words),
        "reserved": parts.reserved_bytes,
        "parts": say.parts_of(parts, words),
        "classes": list(say.hole_classes(parts, words)),
        "holes": [_hole(hole, found, words, used) for hole in parts.holes[:top]],
        "pinned": [
            {"text": say.pinned_line(one, words), "pins": [_block(block, found, words, used) for block in one.pins]}
            for one in parts.pinned[:top]
        ],
    }


def _hole(hole: Hole, found: Examined, words: Words, used: dict[int, None]) -> dict[str, Any]:
    neighbours = [
        (side, 0, "", None) if block is None else (side, *_block(block, found, words, used))
        for side, block in say.sides(hole, words)
    ]
    return {"text": say.hole_line(hole, words), "sides": neighbours}


def _block(block: BlockView, found: Examined, words: Words, used: dict[int, None]) -> tuple[int, str, int]:
    return block.size_bytes, _first(found, block.stack, words), _use(block.stack, used)


def _segment(bar: Bar) -> dict[str, Any]:
    kinds = ["small" if bar.is_small else "large", f"stream {bar.stream:#x}"]
    kinds += ["expandable"] * bar.is_expandable + [f"pool {bar.pool}"] * any(bar.pool)
    return {
        "address": f"{bar.address:#x}", "size": bar.size_bytes, "live": bar.live_bytes, "free": bar.free_bytes,
        "kind": ", ".join(kinds), "stretches": [(int(stretch.part), stretch.size_bytes) for stretch in bar.stretches],
    }


def _variants(found: Examined, words: Words) -> dict[str, Any]:
    tried = say.settings(found, words)
    if tried is None:
        return {"rows": []}
    head, *rows = tried.cells
    return {
        "title": say.variants_title(found.variants, words),
        "said": tried.advice or None,
        "note": tried.note,
        "helps": found.advice is not None and found.advice.kind in ("avoids", "lowers"),
        "head": head,
        "rows": [
            {"reserved": variant.peak_reserved_bytes, "cells": cells}
            for variant, cells in zip(found.variants, rows, strict=True)
        ],
    }
