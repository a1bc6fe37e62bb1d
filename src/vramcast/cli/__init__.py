"""The command line."""

import gc
from typing import Final

YOUNG_OBJECTS: Final = 50_000
"""New objects between two collections of garbage: what start-up makes stays, and looking through it again and again
takes a tenth of the time to an answer [count]."""

gc.set_threshold(YOUNG_OBJECTS)  # before anything else is imported
