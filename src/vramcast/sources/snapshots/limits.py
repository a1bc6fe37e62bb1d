"""What a recording may cost, so that a hostile file ends in one sentence and not in an exhausted machine."""

from __future__ import annotations

from typing import Final

LARGEST_BYTES: Final = 8 * 2**30
"""Unpacked; a million events with stacks take a quarter of a GB to one GB [bytes]."""
LARGEST_RATIO: Final = 250
"""Unpacked over packed size; real recordings have 20 to 100."""
FREE_RATIO_BYTES: Final = 256 * 2**20
"""Below this any ratio is taken [bytes]."""
MOST_EVENTS: Final = 1 << 24
"""49 bytes each in columns and a few references: about 2 GB."""
MOST_VALUES: Final = 1 << 25
"""Values held at once beside the events; a container counts as 8, a text by its length."""
FREE_VALUES: Final = 1 << 20
"""So many of them any file may hold."""
VALUES_PER_BYTE: Final = 2
"""And so many more for each of its bytes: recordings with nothing but blocks and stacks have 0.8."""
VALUES_PER_PACKED_BYTE: Final = 100
"""The same of a compressed one: 5 where little is alike, as many times more as it is smaller where much is."""
LONGEST_TEXT: Final = 1 << 20
DEEPEST: Final = 100
"""Containers inside one another."""
MOST_DEVICES: Final = 4096
LARGEST_ADDRESS: Final = 2**64 - 1
LARGEST_SIZE: Final = 2**63 - 1


def most_values(file_bytes: int, *, is_packed: bool) -> int:
    """Values that a file of that size may hold beside its events: a small file must not ask for much work."""
    each = VALUES_PER_PACKED_BYTE if is_packed else VALUES_PER_BYTE
    return min(MOST_VALUES, FREE_VALUES + each * file_bytes)
