"""Rates of counters that only grow."""

from __future__ import annotations


class Rates:
    """Remembers each counter's last value."""

    def __init__(self) -> None:
        self._before: dict[str, tuple[float, float]] = {}

    def of(self, name: str, value: float, time_s: float) -> float | None:
        """What a counter grew by a second since it was last seen; None the first time, and where it began anew.

        >>> rates = Rates()
        >>> rates.of("sent", 100, 1.0), rates.of("sent", 300, 2.0), rates.of("sent", 5, 3.0)
        (None, 200.0, None)
        """
        before = self._before.get(name)
        self._before[name] = (value, time_s)
        if before is None or value < before[0] or time_s <= before[1]:
            return None
        return (value - before[0]) / (time_s - before[1])
