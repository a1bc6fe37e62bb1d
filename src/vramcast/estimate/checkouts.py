"""Releases of training engines whose versions are dates: when each was made.

[titan] pytorch/torchtitan assets/version.txt: b461ea82c, 29624e37f, 64b5e15fa, 73a0e6979
[litgpt] Lightning-AI/litgpt, its tags; 0.1.0 and 0.2.0 pyproject.toml: 2bcb2c3e, 34fc98c2
"""

from __future__ import annotations

from typing import Final

from vramcast.domain.version import LAST, Version, last_patch, read_version

MADE: Final[dict[str, str]] = {
    "torchtitan": "0.1.0 2025-06-05, 0.2.0 2025-10-17, 0.2.1 2025-12-26, 0.2.2 2026-02-20",
    "litgpt": """
    0.1.0 2024-03-11, 0.2.0 2024-03-15, 0.3.1 2024-05-08, 0.4.0 2024-06-10, 0.4.1 2024-06-17, 0.4.2 2024-06-25,
    0.4.3 2024-07-05, 0.4.4 2024-07-10, 0.4.5 2024-07-17, 0.4.6 2024-07-24, 0.4.7 2024-08-01, 0.4.8 2024-08-02,
    0.4.9 2024-08-08, 0.4.10 2024-08-13, 0.4.11 2024-08-23, 0.4.12 2024-09-11, 0.4.13 2024-09-27, 0.5.0
    2024-10-04, 0.5.1 2024-10-10, 0.5.2 2024-10-22, 0.5.3 2024-10-29, 0.5.4 2024-12-23, 0.5.5 2025-01-08, 0.5.6
    2025-01-24, 0.5.7 2025-01-27, 0.5.8 2025-05-06, 0.5.9 2025-06-12, 0.5.10 2025-08-13, 0.5.11 2025-09-09,
    0.5.12 2025-12-18, 0.5.13 2026-06-29
    """,
}
"""Engine -> releases and the days of their code."""


YEARS: Final = 1000
"""Versions that begin with a larger number are dates."""


def checkout(engine: str, written: str) -> Version | None:
    """The day of a release of an engine whose versions are dates; None for whatever else is behind "@".

    A series is its last release; one newer than all is newer than every date, and keeps its name.

    >>> checkout("torchtitan", "0.2.0"), checkout("torchtitan", "0.2"), checkout("torchtitan", "2026-01-05")
    ((2025, 10, 17), (2026, 2, 20), None)
    """
    found = read_version(written)
    if engine not in MADE or found is None or found[0] >= YEARS:
        return None
    made = {read_version(name) or (): day for name, day in map(str.split, MADE[engine].split(","))}
    if found > max(made):
        return (LAST, *found)
    days = [day for name, day in made.items() if name <= last_patch(found)]
    return read_version(days[-1]) if days else None
