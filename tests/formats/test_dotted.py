"""Names that name one another end, however many there are and whatever they come to."""

import pytest

from vramcast.formats.table import resolved
from vramcast.formats.tools.verl import _resolved


@pytest.mark.parametrize("named", [
    {f"a{place}": f"${{a{place + 1}}}${{a{place + 1}}}" for place in range(19)} | {"a19": "x" * 100},
    {f"a{place}": f"${{a{(place + 1) % 3000}}}" for place in range(3000)},
    {"a0": "${a0}"},
])
def test_names_that_name_one_another_come_to_little(named: dict[str, str]) -> None:
    found = resolved(named, {f"b{place}": "${a0}" for place in range(50)})
    assert sum(map(len, found.values())) < 500_000
    assert len(_resolved(named)) == len(named)


def test_a_name_is_put_in_wherever_it_stands() -> None:
    assert resolved({"a": 2, "b": "${mul:${a},3}", "c": "${d}"}, {"x": "${b}-${a}", "y": "${c}"}) == {
        "x": "6-2", "y": "${c}"}
