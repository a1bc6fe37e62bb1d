"""The picture of cost against speed: every point is inside, nothing is converted, and the file is what it says."""

import math
from itertools import pairwise
from pathlib import Path
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vramcast.domain.planning import Point
from vramcast.errors import InvalidSpec, SourceError
from vramcast.report.messages import Words
from vramcast.report.picture import (
    WIDTH,
    axis_of,
    html,
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
