"""The 90 % interval of a prediction, from how far predictions missed the measured cases.

Split conformal prediction on the ratio measured / predicted: the interval of a new case is its prediction times the
5th and 95th percentile of that ratio over the calibration cases [Vovk et al., Algorithmic Learning in a Random
World, 2005]. Two choices make it honest for a run of a kind nobody measured:

* Every group of cases weighs the same, however many rows it has: rows of one harness miss alike.
* The cases of all engines of a purpose count, those of the engine asked for `OWN_WEIGHT` times as much. An engine's
  own groups are few, and what is not known about a new harness (its logging, its batches, its extra buffers) is alike
  for all.

How often it holds is judged leaving each group out: `python -m truth.score` prints it, `tests/truth/test_budgets.py`
holds it between 85 and 95 % of the rows. Own groups alone are too narrow (Megatron's two exact harnesses would claim
1 to 6 % for a third one that misses by 30 %); all groups alike give an engine no credit for its own record.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from math import ceil, floor
from typing import Final, Literal

from vramcast.estimate.calibration import RATIOS

LOW_SHARE: Final = 0.05
HIGH_SHARE: Final = 0.95
OWN_WEIGHT: Final = 3

WeightedGroup = tuple[float, tuple[float, ...]]

Purpose = Literal["training", "serving"]


def interval(engine: str, num_bytes: int, *, purpose: Purpose = "training") -> tuple[int, int]:
    """Bytes the measured value lies between in nine cases of ten; the prediction always lies within.

    Args:
        engine: whose calibration cases count more
        num_bytes: the prediction [bytes]
        purpose: whose engines' cases count at all
    """
    low, high = ratio_bounds(engine, purpose=purpose)
    return floor(num_bytes * low), ceil(num_bytes * high)


@lru_cache
def ratio_bounds(engine: str, *, purpose: Purpose = "training", without_group: str = "") -> tuple[float, float]:
    """The factors from a prediction to both ends of its interval.

    Args:
        engine: whose calibration cases count more
        purpose: whose engines' cases count at all
        without_group: a group of cases to leave out, when its own rows are being judged
    """
    groups = (
        (OWN_WEIGHT if name == engine else 1, ratios)
        for name, groups in RATIOS.get(purpose, {}).items()
        for group, ratios in groups.items()
        if group != without_group
    )
    low, high = ratio_interval(groups)
    return min(low, 1.0), max(high, 1.0)


def ratio_interval(groups: Iterable[WeightedGroup]) -> tuple[float, float]:
    """The 5th and 95th percentile of measured / predicted over groups with their weights."""
    weighted = sorted((ratio, weight / len(ratios)) for weight, ratios in groups for ratio in ratios)
    if not weighted:
        return 1.0, 1.0
    total = sum(weight for _, weight in weighted)
    return _quantile(weighted, LOW_SHARE * total), _quantile(weighted, HIGH_SHARE * total)


def _quantile(weighted: list[tuple[float, float]], target: float) -> float:
    passed = 0.0
    for ratio, weight in weighted:
        passed += weight
        if passed >= target:
            return ratio
    return weighted[-1][0]
