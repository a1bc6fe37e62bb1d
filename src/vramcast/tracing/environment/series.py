"""Tables of the benchmarks of long forecasts, where their files are not there: a row for each moment, all zeros.

How many variables a table has decides the sizes of a network, so that only these known ones are made.
[Wu] Wu et al., Autoformer, NeurIPS 2021, arXiv:2106.13008, section 4 and appendix A: what each has, and how often
[Zhou] Zhou et al., Informer, AAAI 2021, arXiv:2012.07436: columns of ETT
"""

from __future__ import annotations

from datetime import datetime, timedelta
from pathlib import Path
from typing import Final, NamedTuple

from vramcast.errors import Note

ETT: Final = ("HUFL", "HULL", "MUFL", "MULL", "LUFL", "LULL")
TARGET: Final = "OT"  # of all of them, last
START: Final = datetime(2016, 7, 1)
NO_SERIES: Final = "{}: it is not there; {:,} rows of {} zeros stand in, as many as the published table has"


class Series(NamedTuple):
    """One of them."""

    variables: int
    rows: int
    step: timedelta

    @property
    def columns(self) -> tuple[str, ...]:
        others = ETT if self.variables == len(ETT) + 1 else tuple(map(str, range(self.variables - 1)))
        return *others, TARGET

    @property
    def dates(self) -> list[str]:
        return [str(START + number * self.step) for number in range(self.rows)]


HOUR, DAY = timedelta(hours=1), timedelta(days=1)
SERIES: Final = {
    "ETTh1": Series(7, 17_420, HOUR), "ETTh2": Series(7, 17_420, HOUR), "ETTm1": Series(7, 69_680, HOUR / 4),
    "ETTm2": Series(7, 69_680, HOUR / 4), "electricity": Series(321, 26_304, HOUR),
    "traffic": Series(862, 17_544, HOUR), "weather": Series(21, 52_696, HOUR / 6),
    "exchange_rate": Series(8, 7_588, DAY), "national_illness": Series(7, 966, 7 * DAY),
}
"""Name of a file or of a subset -> what it holds."""


def make_series(place: Path, path: str) -> Note:
    """Write one as a CSV file."""
    series = SERIES[Path(path).stem]
    zeros = ",0.0" * series.variables
    lines = (date + zeros for date in series.dates)
    place.write_text("\n".join((",".join(("date", *series.columns)), *lines)) + "\n", encoding="utf-8")
    return told_series(path)


def told_series(path: str) -> Note:
    """What is said of it."""
    series = SERIES[Path(path).stem]
    return Note(NO_SERIES, path, series.rows, series.variables)
