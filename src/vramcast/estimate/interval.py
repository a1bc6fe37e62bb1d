"""The 90 % interval of a prediction, from how far the same engine's predictions missed the measured cases.

Split conformal prediction on the ratio measured / predicted: the interval of a new case is its prediction times the
5th and 95th percentile of that ratio over the calibration cases [Vovk et al., Algorithmic Learning in a Random
World, 2005]. Every group of cases weighs the same, however many rows it has, because rows of one harness miss alike.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from math import ceil, floor
from typing import Final

from vramcast.estimate.calibration import RATIOS

LOW_SHARE: Final = 0.05
HIGH_SHARE: Final = 0.95
FEWEST_GROUPS: Final = 2
"""An engine with fewer calibrated groups borrows those of all engines."""


def interval(engine: str, num_bytes: int, *, without_group: str = "") -> tuple[int, int]:
    """Bytes the measured value lies between in nine cases of ten.

    Args:
        engine: whose calibration cases count
        num_bytes: the prediction [bytes]
        without_group: a group of cases to leave out, when its own rows are being judged
    """
    low, high = ratio_interval(_groups(engine, without_group).values())
    return floor(num_bytes * min(low, 1.0)), ceil(num_bytes * max(high, 1.0))


def ratio_interval(groups: Iterable[tuple[float, ...]]) -> tuple[float, float]:
    """The 5th and 95th percentile of measured / predicted, each group weighing the same."""
    weighted = sorted((ratio, 1 / len(ratios)) for ratios in groups if ratios for ratio in ratios)
    total = sum(weight for _, weight in weighted)
    return _quantile(weighted, LOW_SHARE * total), _quantile(weighted, HIGH_SHARE * total)


def _quantile(weighted: list[tuple[float, float]], target: float) -> float:
    passed = 0.0
    for ratio, weight in weighted:
        passed += weight
        if passed >= target:
            return ratio
    return weighted[-1][0]


def _groups(engine: str, without_group: str) -> Mapping[str, tuple[float, ...]]:
    own = {name: ratios for name, ratios in RATIOS.get(engine, {}).items() if name != without_group}
    if len(own) >= FEWEST_GROUPS:
        return own
    return {
        name: ratios for groups in RATIOS.values() for name, ratios in groups.items() if name != without_group
    }
