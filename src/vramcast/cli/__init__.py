"""The command line."""

import gc
from typing import Final

from vramcast.lazy import defer

YOUNG_OBJECTS: Final = 200_000
"""New objects between two collections of garbage: what start-up makes stays, and looking through it again and again
takes a tenth of the time to an answer [count]."""

gc.set_threshold(YOUNG_OBJECTS)  # before anything else is imported
for unasked in ("inspect", "json", "tomllib"):
    defer(unasked)
