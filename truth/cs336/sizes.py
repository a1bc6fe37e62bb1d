"""Sizes of the networks that the recordings are of, as their own events tell them."""

from __future__ import annotations

from typing import NamedTuple


class Sizes(NamedTuple):
    """One network and its batch [count]."""

    width: int
    hidden: int  # of the feed-forward layer
    layers: int
    heads: int
    context: int
    batch: int
    vocabulary: int = 10_000

    @property
    def head(self) -> int:
        """Width of one head."""
        return self.width // self.heads
