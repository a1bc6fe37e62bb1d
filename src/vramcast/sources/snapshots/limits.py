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
LONGEST_TEXT: Final = 1 << 20
DEEPEST: Final = 100
"""Containers inside one another."""
MOST_DEVICES: Final = 4096
LARGEST_ADDRESS: Final = 2**64 - 1
LARGEST_SIZE: Final = 2**63 - 1
