"""How kinds of memory and time are drawn: one palette for reports, pictures and pages.

Six flat hues, each full and pale, and greys for what no tensor holds: kinds that belong together share a hue. The
page's own rules for the same hues and kinds, in web/page/colours.css and answer.css, are held against it by a test.
"""

from __future__ import annotations

from typing import Final, NamedTuple

COLOURS: Final = "web/page/colours.css"
"""The page's own rules for the hues, and all other colours of pages and reports."""

HUES: Final[dict[str, str]] = {
    "blue": "#2f6fb8", "orange": "#e08a1e", "green": "#2a9d6f", "pink": "#c9528f", "purple": "#7a55b0",
    "red": "#c84b31", "pale-blue": "#8db8e8", "pale-orange": "#f3c27d", "pale-green": "#8fd0b4",
    "pale-pink": "#e6a6c6", "pale-purple": "#bca8dc", "pale-red": "#eaa596", "dark-grey": "#69737f",
    "grey": "#98a3ad", "pale-grey": "#c3cad1",
}
"""Name -> colour, on light and dark grounds."""


class Look(NamedTuple):
    """How a kind of thing is drawn."""

    hue: str
    character: str

    @property
    def colour(self) -> str:
        """Of light and dark grounds alike."""
        return HUES[self.hue]


LOOKS: Final[dict[str, Look]] = {
    "weights": Look("blue", "W"), "gradients": Look("pink", "G"), "optimizer": Look("purple", "O"),
    "activations": Look("orange", "A"), "temporaries": Look("pale-orange", "T"), "communication": Look("red", "C"),
    "workspaces": Look("dark-grey", "X"), "inputs": Look("pale-red", "I"), "kv cache": Look("green", "K"),
    "cuda graphs": Look("pale-purple", "P"), "lora slots": Look("pale-pink", "L"),
    "draft model": Look("pale-blue", "D"), "encoder cache": Look("pale-green", "E"), "allocator": Look("grey", "="),
    "slack": Look("pale-grey", "-"),
    # causes of time
    "products": Look("blue", "M"), "attention": Look("orange", "A"), "pointwise": Look("green", "N"),
    "tensor": Look("red", "T"), "context": Look("pale-purple", "C"), "expert": Look("pale-pink", "E"),
    "pipeline": Look("pale-red", "P"), "gathered": Look("pale-blue", "W"), "offload": Look("pale-green", "F"),
    "host": Look("grey", "H"), "stragglers": Look("pale-grey", "S"),
    "compute": Look("purple", "M"), "cache": Look("green", "K"), "launch": Look("grey", "L"),
    # stages of post-training
    "generate": Look("green", "G"), "old_log_prob": Look("orange", "O"), "ref_log_prob": Look("pale-orange", "R"),
    "reward": Look("pale-green", "S"), "values": Look("pale-purple", "V"), "update_critic": Look("purple", "C"),
    "update_actor": Look("blue", "A"), "update_weights": Look("red", "W"),
    # who holds a card
    "allocated": Look("blue", "#"), "unallocated": Look("orange", "="), "beside": Look("purple", "o"),
    "others": Look("red", "x"), "outside": Look("red", "x"), "free": Look("pale-grey", "."),
    # what recordings tell apart
    "backward": Look("pale-pink", "B"), "held before": Look("dark-grey", "H"), "unknown": Look("grey", "?"),
}
"""Kind -> look. What is not listed is grey."""

OTHER: Final = Look("grey", "+")


def look(kind: str) -> Look:
    """How a kind is drawn.

    >>> look("weights").character, look("what nobody foresaw").character
    ('W', '+')
    """
    return LOOKS.get(kind, OTHER)
