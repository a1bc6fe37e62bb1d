"""The picture of cost against speed: every point is inside, nothing is converted, and the file is what it says."""

from __future__ import annotations

import math
from itertools import pairwise
from pathlib import Path
from xml.etree import ElementTree

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from vramcast.domain.planning import Point
from vramcast.errors import InvalidSpec, SourceError
from vramcast.report.messages import Words
from vramcast.report.picture import (
    COLUMNS,
    LETTERS,
    WIDTH,
    axis_of,
    by_unit,
    html,
    labelled,
    scatter,
    svg,
    write_picture,
)

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


@given(found=points)
def test_characters_show_a_letter_for_each_point_of_a_unit_and_stay_in_their_columns(found: list[Point]) -> None:
    lines = list(scatter(found, EN))
    for unit, alike in by_unit(found).items():
        if len(alike) > 1:
            assert EN("plan.cost_axis", unit=unit) in "\n".join(lines)
    drawn = [line.partition("|")[2] for line in lines if line[10:13] == " |" or "|" in line[:13]]
    assert all(len(row) <= COLUMNS for row in drawn)
    listed = sum(min(len(alike), len(LETTERS)) for alike in by_unit(found).values() if len(alike) > 1)
    assert sum(line[2:3].isalpha() and line[3:5] == "  " for line in lines) == listed


@given(values=st.lists(st.floats(1e-9, 1e15), min_size=1, max_size=20))
@example(values=[999999999999502.0, 999999999999505.0])
def test_an_axis_holds_its_values_between_distinct_labels(values: list[float]) -> None:
    axis = axis_of(values)
    assert all(-1e-9 <= axis.place(value) <= 1 + 1e-9 for value in values)
    labels = labelled(axis)
    assert len(labels) < 30
    assert len({text for _, text in labels}) == len(labels)
    assert all(axis.low <= tick <= axis.high for tick, _ in labels)


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
