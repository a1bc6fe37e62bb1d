"""Which torch a row ran on: rows do not say, so the newest that was out when the month of the run began.

[cadence] pytorch RELEASE.md, "Release Cadence"
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final
from unittest.mock import patch

from vramcast.tracing.rules import layouts
from vramcast.tracing.rules.layouts import Version

RELEASED: Final[tuple[tuple[str, Version], ...]] = (
    ("2024-01", (2, 2)), ("2024-04", (2, 3)), ("2024-07", (2, 4)), ("2024-10", (2, 5)), ("2025-01", (2, 6)),
    ("2025-04", (2, 7)), ("2025-08", (2, 8)), ("2025-10", (2, 9)), ("2026-01", (2, 10)), ("2026-03", (2, 11)),
    ("2026-05", (2, 12)), ("2026-07", (2, 13)),
)
"""Month and release, oldest first [cadence]."""


def newest(timestamp: str) -> Version:
    """The newest release on the first day of a month.

    Args:
        timestamp: of a run, beginning with its year and month

    >>> newest("2025-08-07 12:00:00")
    (2, 7)
    """
    return max(version for month, version in RELEASED if month < timestamp[:7])


@contextmanager
def simulated(version: Version) -> Iterator[None]:
    """Kernels allocate as those of another version of torch; Python is that of the one installed."""
    with patch.object(layouts, "installed", lambda: version):
        yield
