"""Sentences of a report: messages, failures, prices and pictures."""

import csv
import math
from datetime import date
from itertools import pairwise
from pathlib import Path
from string import Formatter
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from tests.doctor.failures._statements import FRAGMENTED, stated
from vramcast.doctor.failures.causes import DETAILS, FOLLOWING, ORDER, RULES
from vramcast.doctor.failures.diagnose import MOST_FINDINGS, Told, diagnosis
from vramcast.doctor.failures.fixes import REMEDIES
from vramcast.doctor.failures.job import CHECKS
from vramcast.domain.answer import LedgerEntry, Peak, RankAnswer
from vramcast.domain.device import Cost, Price
from vramcast.domain.failure import Cause, Diagnosis
from vramcast.domain.job import Phase
from vramcast.domain.planning import Point
from vramcast.domain.program import Basis, Category
from vramcast.errors import InvalidSpec, SourceError
from vramcast.report import messages
from vramcast.report.document import plain
from vramcast.report.failure import render
from vramcast.report.messages import LANGUAGES, MESSAGES, Words, language_of, rare_messages
from vramcast.report.picture import (
    WIDTH,
    axis_of,
    html,
    scatter,
    svg,
    write_picture,
)
from vramcast.report.sentences import age_days, what_fills
from vramcast.units import GIB, MIB

# Both languages say the same things.

CATALOGUES = sorted((Path(messages.__file__).parent / "words").glob("*.csv"))


def placeholders(text: str) -> set[str]:
    return {name for _, name, _, _ in Formatter().parse(text) if name}


def test_every_message_exists_once_in_every_language_with_the_same_placeholders() -> None:
    tables = [list(csv.reader(path.open(encoding="utf-8"))) for path in CATALOGUES]
    assert {tuple(head) for head, *_ in tables} == {("key", *LANGUAGES)}
    rows = {key: texts for _, *table in tables for key, *texts in table}
    assert len(rows) == sum(len(table) - 1 for table in tables) == len(MESSAGES) + len(rare_messages())
    differing = [key for key, texts in rows.items() if len({frozenset(placeholders(text)) for text in texts}) > 1]
    assert not differing and all(all(texts) for texts in rows.values())


def test_every_category_and_phase_has_a_name() -> None:
    assert {f"category.{category}" for category in Category} <= set(MESSAGES)
    assert {f"phase.{phase}" for phase in Phase} <= set(MESSAGES)


def test_rules_fixes_and_checks_of_failures_have_words() -> None:
    keys = {rule.key for rule in RULES if rule.key}
    keys |= {remedy.key for remedy in REMEDIES} | {check.key for check in CHECKS}
    keys |= {f"detail.{row.name}" for row in DETAILS}
    keys |= {f"{kind}.{cause}" for cause in Cause for kind in ("failed", "name")}
    keys |= {f"{kind}.{name}" for name in (*ORDER, *FOLLOWING) for kind in ("means", "short")}
    assert keys <= set(rare_messages())


def test_the_locale_chooses_the_language() -> None:
    assert [language_of(name) for name in ("zh_CN.UTF-8", "en_US", "C", "")] == ["zh", "en", "en", "en"]


# Sentences of a verdict.

@pytest.mark.parametrize(("load", "said"), [
    (35, "most is allocated in one phase, load: 35.00 GiB"),  # the step holds 4 of what loading left reserved
    (20, "largest entry: allocator/reserved but not allocated, 33.00 GiB"),
])
def test_what_a_phase_left_reserved_is_said_by_that_phase(load: int, said: str) -> None:
    peak = Peak(allocated_bytes=4 * GIB, reserved_bytes=37 * GIB, device_bytes=38 * GIB)
    loading = Peak(allocated_bytes=load * GIB, reserved_bytes=36 * GIB, device_bytes=37 * GIB)
    left = LedgerEntry(path="allocator/reserved but not allocated", num_bytes=33 * GIB, basis=Basis.FORMULA)
    rank = RankAnswer(
        role="all", count=1, peak=peak, interval_bytes=(30 * GIB, 40 * GIB), phases={"load": loading, "step": peak},
        ledger=(left,), chance_to_fit=0.0, likest=None,
    )
    assert what_fills(rank, Words("en")).startswith(said)


# Diagnoses as reports show them.

def ranks(count: int) -> Diagnosis:
    """As many ranks of one job fail, each with its own figures."""
    statements = tuple(
        stated(line=6 * rank, **(FRAGMENTED | {"device": rank, "free_bytes": 400 * MIB + rank}))
        for rank in range(count)
    )
    return diagnosis("train.log", Told(statements=statements))


def test_failures_beyond_the_most_that_are_explained_are_counted() -> None:
    found = ranks(MOST_FINDINGS + 3)
    assert found.left_out == 3
    assert "3 more failures of this text are not shown" in render(found, Words("en"))


def test_chinese_reports_use_chinese_punctuation() -> None:
    text = render(ranks(1), Words("zh"))
    assert "；最多省 3.87 GiB" in text and "; " not in text


# Prices in reports: with their age, in both languages, unknown parts absent.

PRICE = Price(per_hour=98.32, currency="USD", region="eastus", date="2026-06-18", source="list")
COST = Cost(price=PRICE, machines=2, per_hour=196.64, per_million_tokens=0.0123, per_run=12345.6, run_hours=62.8)
TODAY = date(2026, 11, 21)


def test_the_document_names_everything_that_is_known() -> None:
    said = plain(replace(COST, age_days=age_days(PRICE, TODAY)))
    assert (said["age_days"], said["per_hour"], said["machine_per_hour"]) == (156, 196.64, 98.32)
    assert age_days(PRICE, None) is None


# The picture of cost against speed: every point is inside, nothing is converted, and the file is what it says.

EN = Words("en")
SVG = "{http://www.w3.org/2000/svg}"

points = st.lists(
    st.builds(
        Point,
        what=st.sampled_from(("--gpus 8xh100 --tp 2", "a < b & c", "")),
        gpus=st.just(8),
        tokens_per_s=st.floats(1e-3, 1e12),
        cost_per_million_tokens=st.floats(1e-6, 1e9),
        unit=st.sampled_from(("USD", "CNY", "GPU-hours")),
        on_front=st.booleans(),
    ),
    max_size=40,
)


@given(found=points)
def test_every_point_is_drawn_inside_the_picture(found: list[Point]) -> None:
    root = ElementTree.fromstring(svg(found, EN))
    height = float(root.attrib["height"])
    circles = [circle for circle in root.iter(f"{SVG}circle") if circle.find(f"{SVG}title") is not None]
    assert len(circles) == len(found)
    for circle in circles:
        assert 0 < float(circle.attrib["cx"]) < WIDTH
        assert 0 < float(circle.attrib["cy"]) < max(1.0, height)


@given(low=st.floats(1e-3, 1e6), span=st.floats(1.01, 9))
def test_ticks_of_a_linear_axis_are_multiples_of_one_two_or_five(low: float, span: float) -> None:
    ticks = axis_of([low, low * span]).ticks()
    steps = {round(after - before, 12) for before, after in pairwise(ticks)}
    step = ticks[1] - ticks[0]
    assert 3 <= len(ticks) <= 9
    assert round(step / 10 ** math.floor(math.log10(step) + 1e-9), 3) in (1, 2, 5)
    assert all(abs(other - step) < 1e-6 * step + 1e-9 for other in steps)


def test_a_capital_marks_what_is_on_the_front() -> None:
    fast = Point(what="--gpus a --tp 8", gpus=8, tokens_per_s=100, cost_per_million_tokens=1, unit="USD", on_front=True)
    slow = Point(what="--gpus a --tp 4", gpus=8, tokens_per_s=50, cost_per_million_tokens=2, unit="USD", on_front=False)
    shared, *legend = list(scatter((slow, fast), EN))[-3:]
    assert shared == "  all with --gpus a"
    assert legend[0] == "  A  100 tokens/s, 1 USD per million tokens  --tp 8"
    assert legend[1].startswith("  b  ")


def test_files_are_written_by_their_ending(tmp_path: Path) -> None:
    point = Point(what="x", gpus=8, tokens_per_s=100, cost_per_million_tokens=1, unit="USD", on_front=True)
    for name, start in (("p.svg", "<svg"), ("p.html", "<!doctype html>")):
        write_picture(tmp_path / name, (point,), EN)
        assert (tmp_path / name).read_text(encoding="utf-8").startswith(start)
    assert 'lang="zh"' in html((point,), Words("zh"))
    with pytest.raises(InvalidSpec, match="must end in"):
        write_picture(tmp_path / "p.png", (point,), EN)
    with pytest.raises(InvalidSpec, match="nothing to draw"):
        write_picture(tmp_path / "p.svg", (), EN)
    with pytest.raises(SourceError, match="No such file"):
        write_picture(tmp_path / "missing" / "p.svg", (point,), EN)
