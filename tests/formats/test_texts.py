"""YAML and shell texts read back to the values they were written from."""

import subprocess
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from vramcast.formats.lines import Line, plain, quoted, reasons, yaml_text

NAMES = st.text(st.characters(codec="utf-8", exclude_categories=["Cs", "Cc"]), min_size=1, max_size=12)
SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(10**12), 10**12),
    st.floats(allow_nan=False, allow_infinity=False),
    st.text(max_size=40),
    st.sampled_from(
        ["no", "on", "null", "~", "1e5", "0x1F", "12:30", "a: b", "- x", "# c", "'", '"', "", " lead", "x\ny\n", "*"]
    ),
)


def tables(values: Any) -> Any:
    lines = st.lists(
        st.tuples(NAMES, values, st.text(max_size=20)), min_size=1, max_size=4, unique_by=lambda line: line[0]
    )
    return lines.map(lambda found: tuple(Line(*line) for line in found))


TABLES = tables(
    st.recursive(
        SCALARS,
        lambda inner: st.one_of(
            tables(inner), st.lists(SCALARS, max_size=3), st.lists(tables(inner), min_size=1, max_size=2)
        ),
        max_leaves=8,
    )
)


@settings(max_examples=50)
@given(TABLES)
def test_yaml_gives_every_value_back(table: tuple[Line, ...]) -> None:
    assert yaml.safe_load(yaml_text(table)) == plain(table)


def test_yaml_puts_the_reason_behind_the_value_on_one_line() -> None:
    text = yaml_text((Line("stage", 3, "weights\nare split"),), head="first\nsecond")
    assert text == f"# first\n# second\n{'stage: 3':<45} # weights are split\n"


def test_reasons_name_the_path_of_what_they_are_for() -> None:
    table = (Line("zero", (Line("stage", 2, "why"),)), Line("specs", [(Line("count", 1, "one"),)]))
    assert reasons(table) == [("zero.stage", "why"), ("specs.count", "one")]


@pytest.mark.parametrize("value", [True, 3, "two words", ["a", "b c"]])
def test_quoting_survives_the_shell(value: Any) -> None:
    done = subprocess.run(["bash", "-c", f'printf "%s|" {quoted(value)}'], capture_output=True, text=True, check=True)
    parts = value if isinstance(value, list) else ["true" if value is True else str(value)]
    assert done.stdout == "".join(f"{part}|" for part in parts)
