"""Fields that rows of all serving engines share, as questions need them."""

from __future__ import annotations

import re
from typing import Any, Final

from msgspec.structs import replace

from truth.contract import Refused
from truth.rows.names import card_of
from vramcast.catalogue.gpus import gpu_names, load_gpu
from vramcast.domain.device import Cluster, Gpu
from vramcast.units import GIB

Row = dict[str, Any]

VISIBLE: Final = re.compile(r"(\d+(?:\.\d+)?)\s*GiB(?:\s+(?:visible|usable))?", re.IGNORECASE)
BYTES: Final = re.compile(r"(\d{1,3}(?:,\d{3}){3,})\s*B\b")
SIZE: Final = re.compile(r"(?<![\d.])(\d+)\s*GB", re.IGNORECASE)
COUNT: Final = re.compile(r"^(\d+)\s*x\s|\bx(\d+)\b")
NUMBER: Final = r"\D{{0,3}}(\d+)"


def gpu_of(row: Row) -> Gpu:
    """The card, with the visible memory that the row's log states."""
    text = str(row.get("gpu") or "")
    if not text or "unstated" in text or " or " in text:
        raise Refused("the row names no card, or more than one")
    stated, whole = VISIBLE.search(text), BYTES.search(text)
    try:
        card = card_of(re.sub(r"^\d+\s*x\s*", "", text))
    except Refused:
        size = SIZE.search(text)
        if stated is None and size is None:
            raise
        return _nearest(float(stated[1])) if stated else _of_size(float(size[1]) if size else 0.0)
    if whole is not None:
        return replace(card, visible_bytes=int(whole[1].replace(",", "")))
    return replace(card, visible_bytes=round(float(stated[1]) * GIB)) if stated else card


def _nearest(visible_gib: float) -> Gpu:
    """The card whose visible memory is nearest to a figure that a log states without naming the card.

    Of those with bf16: on older ones engines refuse formats that such a log may be about.
    """
    cards = [card for card in map(load_gpu, gpu_names()) if card.vendor == "NVIDIA" and card.has_bf16]
    nearest = min(cards, key=lambda card: abs(card.visible_bytes / GIB - visible_gib))
    return replace(nearest, visible_bytes=round(visible_gib * GIB))


def _of_size(gb: float) -> Gpu:
    """A card of a printed size: NVIDIA's middle one by visible memory, of those whose total was published.

    Raises: Refused when none has that size
    """
    cards = [card for card in map(load_gpu, gpu_names()) if card.memory_nameplate == f"{gb:g} GB"]
    cards = [card for card in cards if card.vendor == "NVIDIA"] or cards
    cards = [card for card in cards if card.smi_total_bytes is not None] or cards
    if not cards:
        raise Refused(f"no card of {gb:g} GB in the catalogue")
    return sorted(cards, key=lambda card: card.visible_bytes)[len(cards) // 2]


def cluster_of(row: Row) -> Cluster:
    """As many cards as the row's degrees take, or as it counts."""
    ranks = int(row.get("tp") or 1) * int(row.get("pp") or 1)
    counted = COUNT.search(str(row.get("gpu") or ""))
    stated = int(next(filter(None, counted.groups()))) if counted else 1
    return Cluster(gpu=gpu_of(row), gpus_per_node=max(ranks, stated))


def noted(row: Row, name: str) -> int | None:
    """A number that the notes state as `name=123` or `--name 123`."""
    found = re.search(name.replace("_", "[-_]") + NUMBER.format(), str(row.get("notes") or ""))
    return int(found[1]) if found else None


def version_of(row: Row) -> tuple[int, ...] | None:
    """The first version number of the row's engine version."""
    found = re.search(r"(?<![\d-])v?(\d+\.\d+(?:\.\d+)*)", str(row.get("engine_version") or ""))
    return tuple(map(int, found[1].split("."))) if found else None


def value_of(row: Row) -> float:
    """The measured number.

    Raises: Refused when it is missing or no number
    """
    try:
        return float(row["value"])
    except (KeyError, TypeError, ValueError):
        raise Refused("the row holds no measured number") from None
