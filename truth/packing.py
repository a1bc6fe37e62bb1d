"""How often cards run out that are packed to a promised risk: `python -m truth.packing`.

Runs of one harness, as those of one place, are drawn together onto a card that has just what is said to suffice them
in all but the promised share of runs; then the card runs out where what they took when measured adds up to more. What
is said to suffice: as `vramcast pack` has it, all missing by the same quantile; beside it by misses that know nothing
of each other. The harness's own runs are left out of what is known (unseen), or stand in it (seen).
"""

from __future__ import annotations

import random
import sys
from collections import defaultdict
from collections.abc import Sequence
from typing import Final, NamedTuple

from vramcast.estimate.interval import Case, measured_cases, weighted_ratios

PROMISED: Final = (0.01, 0.05, 0.1)
TOGETHER: Final = (1, 2, 3, 5)
DRAWS: Final = 60
"""Packings of each harness."""
SAMPLES: Final = 400
"""Of the sum of misses that know nothing of each other."""
SIZES: Final = (1.0, 10.0)
"""Predictions of jobs that are packed together [GiB]: large and small ones."""

Weighted = Sequence[tuple[float, float]]


class Row(NamedTuple):
    """Packings of so many jobs to a promised risk."""

    seen: bool
    promised: float
    jobs: int
    ran_out: float  # share of them
    ran_out_apart: float  # as if misses knew nothing of each other
    headroom: float  # what is kept free of predictions, on average


def enough(weighted: Weighted, share: float) -> float:
    """The ratio of measured to predicted that so large a share of the weight stays below."""
    whole, passed = sum(weight for _, weight in weighted), 0.0
    for ratio, weight in weighted:
        passed += weight
        if passed >= share * whole:
            return ratio
    return weighted[-1][0]


def rows(cases: Sequence[Case], *, seed: int = 1) -> list[Row]:
    """The table."""
    dice = random.Random(seed)
    harnesses: dict[str, list[Case]] = defaultdict(list)
    for case in cases:
        harnesses[case.harness].append(case)
    known: dict[tuple[object, str], Weighted] = {}

    def of(case: Case, left_out: str) -> Weighted:
        if (case.traits, left_out) not in known:
            known[case.traits, left_out] = weighted_ratios(
                case.traits, [one for one in cases if one.harness != left_out])
        return known[case.traits, left_out]

    found = []
    for seen in (False, True):
        for promised in PROMISED:
            for count in TOGETHER:
                ran_out = apart = total = 0
                free = 0.0
                for harness, own in harnesses.items():
                    for _ in range(DRAWS):
                        jobs = dice.choices(own, [len(case.ratios) for case in own], k=count)
                        sizes = [dice.uniform(*SIZES) for _ in jobs]
                        took = sum(size * dice.choice(case.ratios) for size, case in zip(sizes, jobs, strict=True))
                        spreads = [of(case, "" if seen else harness) for case in jobs]
                        room = sum(size * enough(spread, 1 - promised)
                                   for size, spread in zip(sizes, spreads, strict=True))
                        draws = [dice.choices([ratio for ratio, _ in spread], [weight for _, weight in spread],
                                              k=SAMPLES) for spread in spreads]
                        sums = sorted(sum(size * draw[index] for size, draw in zip(sizes, draws, strict=True))
                                      for index in range(SAMPLES))
                        ran_out += took > room
                        apart += took > sums[min(SAMPLES - 1, int((1 - promised) * SAMPLES))]
                        free += room / sum(sizes) - 1
                        total += 1
                found.append(Row(seen, promised, count, ran_out / total, apart / total, free / total))
    return found


def main() -> int:
    """Print the table."""
    print(f"{'harness':<9}{'promised':>9}{'jobs':>6}{'ran out':>9}{'apart':>8}{'kept free':>11}")
    for row in rows([case for case in measured_cases() if case.purpose == "training"]):
        print(f"{'seen' if row.seen else 'unseen':<9}{row.promised:>9.0%}{row.jobs:>6}{row.ran_out:>9.1%}"
              f"{row.ran_out_apart:>8.1%}{row.headroom:>11.0%}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
