"""How kinds of memory and time are drawn: one palette for reports, pictures and pages.

The page's own rules for the same kinds, `.cat-NAME` in web/page/answer.css, are held against it by a test.
"""

from __future__ import annotations

from typing import Final, NamedTuple


class Look(NamedTuple):
    """How a kind of thing is drawn."""

    colour: str  # on light and dark grounds
    character: str


LOOKS: Final[dict[str, Look]] = {
    "weights": Look("#0072b2", "W"), "gradients": Look("#c0568f", "G"), "optimizer": Look("#3f9fd1", "O"),
    "activations": Look("#e69f00", "A"), "temporaries": Look("#b8a21a", "T"), "communication": Look("#c4500a", "C"),
    "workspaces": Look("#7a828c", "X"), "inputs": Look("#7b4fa3", "I"), "kv cache": Look("#009e73", "K"),
    "cuda graphs": Look("#8c6d31", "P"), "lora slots": Look("#117733", "L"), "draft model": Look("#44889b", "D"),
    "encoder cache": Look("#882255", "E"), "allocator": Look("#a3abb5", "="), "slack": Look("#8d99a6", "-"),
    "products": Look("#4c78a8", "M"), "attention": Look("#f58518", "A"), "pointwise": Look("#54a24b", "N"),
    "tensor": Look("#d4568c", "T"), "context": Look("#8c6bb1", "C"), "expert": Look("#3f8f6b", "E"),
    "pipeline": Look("#9d755d", "P"), "gathered": Look("#5fa8a3", "W"), "offload": Look("#7d8f2f", "F"),
    "host": Look("#98a3ad", "H"), "stragglers": Look("#7a858f", "S"),
    "generate": Look("#5fa8a3", "G"), "old_log_prob": Look("#d0a82c", "O"), "ref_log_prob": Look("#9d755d", "R"),
    "reward": Look("#7d8f2f", "S"), "values": Look("#8c6bb1", "V"), "update_critic": Look("#e45756", "C"),
    "update_actor": Look("#4c78a8", "A"), "update_weights": Look("#f58518", "W"),
    "compute": Look("#54a24b", "M"), "cache": Look("#5fa8a3", "K"), "launch": Look("#98a3ad", "L"),
    "allocated": Look("#4c78a8", "#"), "unallocated": Look("#d0a82c", "="), "beside": Look("#9d755d", "o"),
    "others": Look("#e45756", "x"), "outside": Look("#e45756", "x"), "free": Look("#b6bec6", "."),
    "backward": Look("#d67195", "B"), "held before": Look("#8c9bb0", "H"), "unknown": Look("#98a3ad", "?"),
}
"""Kind -> look. What is not listed is grey."""

OTHER: Final = Look("#98a3ad", "+")


def look(kind: str) -> Look:
    """How a kind is drawn.

    >>> look("weights").character, look("what nobody foresaw").character
    ('W', '+')
    """
    return LOOKS.get(kind, OTHER)
