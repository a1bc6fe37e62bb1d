"""Learn the intervals from the measured cases: `python -m truth.calibrate [FILE...]` rewrites estimate/measured.jsonl.

Of every harness the ratios measured / predicted are kept for each set of traits, at most 21 evenly spaced quantiles of
them. Rows marked `scope` or `suspect` and single-operator rows do not count. Cases of traced runs stay as they are:
`python -m truth.traced_vision FILE --calibrate` writes those.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final

from msgspec.structs import asdict

from truth.rows import SAME_RUNS, harness_of
from truth.score import PUBLISHED_FILES, Scored, has_interval, percentile, purpose_of, score_file
from vramcast.estimate import interval
from vramcast.estimate.interval import Case, Purpose, Traits

KEPT: Final = 21


def counted(scored: Iterable[Scored]) -> list[Scored]:
    """The measured cases whose misses tell of others."""
    return [
        item for item in scored
        if item.prediction is not None and has_interval(item.level) and not item.mark and item.engine is not None
        and item.group not in SAME_RUNS and item.error > -1
    ]


def case_of(item: Scored) -> tuple[Purpose, str, Traits]:
    """What a measured case is kept under."""
    assert item.prediction is not None and item.engine is not None
    traits = item.prediction.traits or Traits(item.engine, item.engine)
    return purpose_of(traits), harness_of(item.group), traits


def cases_of(items: Iterable[Scored], *, kept: int | None = KEPT) -> list[Case]:
    """One case for each harness and set of traits, with all ratios or so many quantiles of them."""
    found: dict[tuple[Purpose, str, Traits], list[float]] = defaultdict(list)
    for item in items:
        found[case_of(item)].append(1 / (1 + item.error))
    return [Case(*key, quantiles(values, kept), len(values)) for key, values in sorted(found.items())]


def quantiles(values: list[float], kept: int | None) -> tuple[float, ...]:
    """The values, or so many quantiles from the smallest to the largest where there are more."""
    if kept is not None and len(values) > kept:
        values = [percentile(values, step / (kept - 1)) for step in range(kept)]
    return tuple(round(value, 4) for value in sorted(values))


def text_of(cases: Iterable[Case]) -> str:
    """The lines of measured.jsonl: traits that are empty are left out; so is how many runs there were, where all stand.
    """
    rows = (
        {name: value for name, value in asdict(case).items() if name != "runs" or value > len(case.ratios)}
        | {"traits": {name: word for name, word in asdict(case.traits).items() if word}}
        for case in cases
    )
    return "".join(f"{json.dumps(row)}\n" for row in rows)


def main(arguments: list[str] | None = None) -> int:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m truth.calibrate", description=__doc__.splitlines()[0])
    parser.add_argument("files", nargs="*", type=Path, default=PUBLISHED_FILES, metavar="FILE")
    options = parser.parse_args(arguments)
    cases = cases_of(counted(item for path in options.files for item in score_file(path)))
    write([*cases, *(case for case in interval.measured_cases() if case.purpose == "tracing")])
    return 0


def write(cases: Sequence[Case]) -> None:
    """Put them into the package."""
    target = Path(interval.__file__).with_name(interval.MEASURED)
    target.write_text(text_of(cases), encoding="utf-8")
    print(f"{len(cases)} cases of {len({case.harness for case in cases})} harnesses written to {target.name}")


if __name__ == "__main__":
    sys.exit(main())
