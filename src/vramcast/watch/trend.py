"""How a quantity grows: a slope that a few odd values do not bend, and how steady the growth is.

[Theil] Theil, Proc. Kon. Ned. Akad. Wet. 53 (1950); [Sen] Sen, JASA 63 (1968): the median of the slopes of all pairs.
[Kendall] Kendall, Biometrika 30 (1938): tau, pairs that rise less pairs that fall, of all pairs.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from itertools import combinations
from statistics import median
from typing import Final, NamedTuple

MOST_POINTS: Final = 60
"""1,770 pairs: half a millisecond."""
STEADY: Final = 0.6
"""tau above which growth counts as steady: a single jump has 0.6 of five or six points, less of more, ten equal steps
0.92."""
FEWEST_POINTS: Final = 5
"""Of four, a single jump in the middle has 0.67."""


class Slope(NamedTuple):
    """Growth over a window."""

    per_s: float
    steadiness: float  # Kendall's tau: 1 always rises, 0 neither, -1 always falls
    span_s: float  # between the first and the last point

    @property
    def rises(self) -> bool:
        """Whether it grows steadily."""
        return self.per_s > 0 and self.steadiness > STEADY


class Window:
    """The last values of one quantity, thinned out to a bounded number."""

    def __init__(self, window_s: float) -> None:
        self.window_s = window_s
        self._points: deque[tuple[float, float]] = deque(maxlen=MOST_POINTS + 1)

    def add(self, time_s: float, value: float) -> None:
        """A value; one that follows the last too closely replaces none and is left out."""
        if not self._points or time_s - self._points[-1][0] >= self.window_s / MOST_POINTS * 0.999:
            self._points.append((time_s, value))
        while time_s - self._points[0][0] > self.window_s:
            self._points.popleft()

    def slope(self) -> Slope | None:
        """Its slope, None with too few points."""
        return slope_of(self._points) if len(self._points) >= FEWEST_POINTS else None


def slope_of(points: Sequence[tuple[float, float]]) -> Slope:
    """Median slope and steadiness of points in the order of time.

    >>> slope_of([(0.0, 0.0), (1.0, 2.0), (2.0, 400.0), (3.0, 6.0)])
    Slope(per_s=2.0, steadiness=0.6666666666666666, span_s=3.0)
    """
    slopes = [(later - earlier) / (end - start) for (start, earlier), (end, later) in combinations(points, 2)]
    tau = sum((slope > 0) - (slope < 0) for slope in slopes) / len(slopes)
    return Slope(median(slopes), tau, points[-1][0] - points[0][0])
