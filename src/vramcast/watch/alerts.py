"""Alerts with hysteresis: what is raised stays until it is clearly over, so that nothing flickers."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Final, NamedTuple

from vramcast.units import GIB

LEAK_BYTES_PER_S: Final = GIB / 3600
"""Growth of one process that counts as a leak where nothing else is asked for: 1 GiB an hour, steadily."""
WINDOW_S: Final = 600.0
"""Over so much time growth is judged: longer than the warm-up of a training step."""
CONFIRMED: Final = 2
"""Judgements in a row that raise a leak or end it."""
OVER: Final = 1.1
"""Free memory above the limit, relative to it, at which want of headroom is over."""


class Rules(NamedTuple):
    """What is worth an alert; None: never."""

    headroom_bytes: int | None = None  # free memory of a card below which it is short
    leak_bytes_per_s: float | None = LEAK_BYTES_PER_S
    window_s: float = WINDOW_S


class Latch:
    """Alerts by what they are about, each on or off."""

    def __init__(self, confirmed: int = 1) -> None:
        self.on: set[Hashable] = set()
        self._confirmed = confirmed
        self._streaks: dict[Hashable, int] = {}

    def judge(self, about: Hashable, *, raised: bool, over: bool) -> bool | None:
        """True where the alert begins with this judgement, False where it ends, None where nothing changes."""
        turning = over if about in self.on else raised
        self._streaks[about] = self._streaks.get(about, 0) + 1 if turning else 0
        if self._streaks[about] < self._confirmed:
            return None
        self._streaks[about] = 0
        self.on ^= {about}
        return about in self.on

    def forget(self, about: Hashable) -> bool:
        """Whether an alert was on about something that is no more."""
        self._streaks.pop(about, None)
        was_on = about in self.on
        self.on.discard(about)
        return was_on
