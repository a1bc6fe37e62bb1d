"""Cards as a table, side by side, and one in full."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from msgspec import to_builtins

from vramcast.domain.device import RATED_DTYPES, Gpu
from vramcast.report.market import rate
from vramcast.report.messages import Words
from vramcast.report.text import table
from vramcast.units import GB, format_bytes


def gpu_table(cards: Sequence[Gpu], words: Words) -> str:
    """One row per card."""
    header = (words("gpu"), words("generation"), words("nameplate"), words("usable"), "GB/s", words("link"))
    rows = [
        (
            card.name,
            card.arch,
            card.memory_nameplate,
            format_bytes(card.visible_bytes),
            f"{card.bandwidth_bytes_per_s // GB:,}" if card.bandwidth_bytes_per_s else "",
            card.link or "PCIe",
        )
        for card in cards
    ]
    return table([header, *rows], right=frozenset({2, 3, 4}))


def comparison(cards: Sequence[Gpu], words: Words) -> str:
    """One column per card: memory on the box and usable, bandwidth, dense rates, link."""
    rows = [
        (words("gpu"), *(card.name for card in cards)),
        (words("vendor"), *(card.vendor for card in cards)),
        (words("generation"), *(card.arch for card in cards)),
        (words("nameplate"), *(card.memory_nameplate for card in cards)),
        (words("usable"), *(format_bytes(card.visible_bytes) for card in cards)),
        (words("bandwidth"), *(rate(card.bandwidth_bytes_per_s) for card in cards)),
    ]
    for dtype in RATED_DTYPES:
        rates = [card.flops_per_s(dtype) for card in cards]
        if any(rates):
            rows.append((words("dense_rate", dtype=dtype), *(_teraflops(value, dtype) for value in rates)))
    rows.append((words("link"), *(_link(card) for card in cards)))
    rows.append((words("watts"), *(f"{card.tdp_w} W" if card.tdp_w else "" for card in cards)))
    rows.append((words("confidence"), *(card.confidence for card in cards)))
    return table(rows)


def details(card: Gpu) -> str:
    """Every field of a card with its source."""
    facts = to_builtins(card).items()
    return table([(name, _fact(name, value)) for name, value in facts if value is not None])


def gpu_document(card: Gpu) -> dict[str, Any]:
    """Plain data of a card: what is unknown is absent."""
    return {name: value for name, value in to_builtins(card).items() if value is not None}


def _teraflops(value: float | None, dtype: str) -> str:
    return "" if value is None else f"{value / 1e12:,g} {'TOPS' if dtype.startswith('int') else 'TFLOPS'}"


def _link(card: Gpu) -> str:
    if card.link is None:
        return f"PCIe{card.pcie_generation or ''}"
    return f"{card.link} {rate(card.link_bytes_per_s)}".rstrip()


def _fact(name: str, value: object) -> str:
    if name.endswith("_bytes") and isinstance(value, int):
        return f"{value:,} ({format_bytes(value)})"
    return f"{value:,}" if isinstance(value, (int, float)) and not isinstance(value, bool) else str(value)
