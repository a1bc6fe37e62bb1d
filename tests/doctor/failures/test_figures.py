"""What the figures of a message say together."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.doctor.failures._statements import FRAGMENTED, sizes
from vramcast.doctor.failures.case import figures_of
from vramcast.units import GIB


@pytest.mark.parametrize(("numbers", "expected"), [
    # between live tensors: 14.21 - 10.34; neither free nor reserved: 15.78 - 0.4458 - 14.21
    (FRAGMENTED, {"unallocated": 3.87, "outside": 1.12, "process": None, "others": None, "short": 0.79}),
    # the process tells its own libraries, 20.81 - 12.09 - 4.84, from other processes, 23.65 - 1.66 - 20.81
    (sizes(total=23.65, free=1.66, process=20.81, allocated=12.09, unallocated=4.84), {"beside": 3.88, "others": 1.18}),
    # inside a container the process listed is oneself: what it leaves of the card, 0.01, holds nothing
    (sizes(total=79.33, free=26.16, other_processes=53.16, allocated=11.97, unallocated=40.69), {"others": None}),
    (sizes(total=79.11, free=14.41, other_processes=64.69, allocated=61.20, unallocated=2.13),
     {"others": None, "process": 64.69, "beside": 1.36, "own": True}),
    # cut off before what PyTorch allocated: 0.02 is left beside the one listed, less than a context takes
    (sizes(total=79.14, free=3.79, other_processes=75.33), {"others": None, "process": 75.33, "own": True}),
    (sizes(total=79.14, free=3.79, other_processes=74.83), {"others": 74.83, "process": None, "own": False}),
    (sizes(total=24, free=1, other_processes=15, allocated=6, unallocated=1), {"others": 15, "own": False}),
    (sizes(total=24, used=20), {"free": 4}),
    (sizes(total=79.15, free=38.09, process=41.06), {"others": 0}),  # each printed with two decimals
    ({"shape": "[8192,50257]", "dtype": "half"}, {"tried": round(8192 * 50257 * 2 / GIB, 2)}),
    ({"shape": "[64,512,112,112]", "dtype": "float"}, {"tried": round(64 * 512 * 112 * 112 * 4 / GIB, 2)}),
    ({"shape": "[8192,50257]", "dtype": "variant"}, {"tried": None}),
])
def test_what_follows_from_the_figures(numbers: dict[str, Any], expected: dict[str, Any]) -> None:
    """In GiB."""
    found = {name: getattr(figures_of(numbers), name) for name in expected}
    assert {
        name: value if value is None or isinstance(value, bool) else round(value / GIB, 2)
        for name, value in found.items()
    } == expected


NAMES = [
    f"{name}_bytes" for name in (
        "tried", "total", "free", "allocated", "reserved", "unallocated", "process", "other_processes", "allowed",
        "used",
    )
]


@given(st.dictionaries(st.sampled_from(NAMES), st.integers(0, 1 << 40)))
def test_no_holder_has_more_than_the_card(numbers: dict[str, int]) -> None:
    found = figures_of(numbers)
    if found.total is not None and found.free is not None:
        assert all(part is None or part <= found.total for part in (found.outside,))
        if "other_processes_bytes" not in numbers:
            assert found.others is None or found.others <= found.total
