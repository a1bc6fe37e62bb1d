"""How often the 90 % intervals hold: `python -m truth.coverage [FILE...]`.

Of every measured case the interval is made twice: without its whole harness, as for a user's own cluster (unseen), and
without the case alone, as for one more run of a harness that was measured (seen).
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from statistics import mean, median
from typing import NamedTuple

from msgspec.structs import replace

from truth.calibrate import cases_of, counted
from truth.score import PUBLISHED_FILES, score_file
from vramcast.estimate.interval import Case, Purpose, ratio_bounds


class Held(NamedTuple):
    """One case's interval, as factors of the prediction."""

    harness: str
    purpose: Purpose
    covered: bool
    width: float


def held(cases: Sequence[Case], *, seen: bool) -> list[Held]:
    """Every ratio's interval without its harness, or, where harnesses count as seen, without itself."""
    found = []
    for own in cases:
        others = [
            case for case in cases
            if case.purpose == own.purpose and (case is not own if seen else case.harness != own.harness)
        ]
        for index, ratio in enumerate(own.ratios):
            rest = own.ratios[:index] + own.ratios[index + 1 :]
            low, high = ratio_bounds(own.traits, [*others, replace(own, ratios=rest)] if seen and rest else others)
            found.append(Held(own.harness, own.purpose, low <= ratio <= high, high - low))
    return found


def table(found: list[Held]) -> str:
    """Coverage and median width, of all and of each harness; and the mean over harnesses, whatever their cases."""
    harnesses: dict[str, list[Held]] = {"all": found}
    for one in found:
        harnesses.setdefault(one.harness, []).append(one)
    lines = [
        f"{name:<32}{len(cases):>6}{coverage(cases):>10.1%}{median(case.width for case in cases):>10.1%}"
        for name, cases in harnesses.items()
    ]
    each = [coverage(cases) for name, cases in harnesses.items() if name != "all"]
    return "\n".join([*lines, f"{'mean over harnesses':<32}{len(each):>6}{mean(each):>10.1%}"])


def coverage(found: list[Held]) -> float:
    """Share of cases within their interval."""
    return sum(case.covered for case in found) / len(found)


def main(arguments: list[str] | None = None) -> int:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m truth.coverage", description=__doc__.splitlines()[0])
    parser.add_argument("files", nargs="*", type=Path, default=PUBLISHED_FILES, metavar="FILE")
    options = parser.parse_args(arguments)
    cases = cases_of(counted(item for path in options.files for item in score_file(path)), kept=None)
    for purpose in ("training", "serving"):
        for seen in (False, True):
            print(f"{purpose}, harness {'seen' if seen else 'unseen'}: cases, covered, median width of the prediction")
            print(table([one for one in held(cases, seen=seen) if one.purpose == purpose]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
