"""Versions of torch whose allocator is simulated, and what changed between them.

For default options one algorithm covers all of them; the rest are options that came later (see options.OPTIONS) and:
[caching] pytorch c10/cuda/CUDACachingAllocator.cpp at the releases named
"""

from __future__ import annotations

from typing import Final

Version = tuple[int, int]
"""Of torch: major and minor."""

OLDEST: Final[Version] = (1, 10)
NEWEST: Final[Version] = (2, 13)

ONE_DIVISION_IS_OFF_SINCE: Final[Version] = (2, 3)
"""Before, one division between powers of two passed the test for rounding and then failed a check."""
NEWEST_POOL_FIRST_SINCE: Final[Version] = (2, 10)
"""Before, of several captures or pools whose filter accepts a stream the oldest won."""
LAST_RESORT_BEFORE_RELEASE_SINCE: Final[Version] = (2, 10)
"""Before, pools made with `use_on_oom` were searched only after the cache had been given back."""


def dotted(version: Version) -> str:
    """As people write it.

    >>> dotted((2, 13))
    '2.13'
    """
    return f"{version[0]}.{version[1]}"
