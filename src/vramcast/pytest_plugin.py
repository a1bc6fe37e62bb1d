"""pytest's plugin: tests that must fit a card, a card that is not there, peaks that must not creep up.

    @pytest.mark.fits("rtx-4090")          # runs on a simulated card, and fails with the report if it does not fit
    def test_step(simulated_gpu, peak_snapshot):
        step()
        peak_snapshot(simulated_gpu)       # beside the last peak, in peaks.json; --update-peaks takes the new one
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import pytest

import vramcast

FILE: Final = "peaks.json"
TOLERANCE: Final = 0.02
MIB: Final = 1 << 20


def pytest_addoption(parser: pytest.Parser) -> None:
    """`--update-peaks`."""
    parser.getgroup("vramcast").addoption("--update-peaks", action="store_true", help=f"write {FILE} anew")


def pytest_configure(config: pytest.Config) -> None:
    """The mark."""
    config.addinivalue_line("markers", "fits(gpu, **options): runs on a simulated card, which must hold it")


@pytest.fixture
def simulated_gpu(request: pytest.FixtureRequest) -> Iterator[Any]:
    """The simulated card of the mark `fits`, as `vramcast.simulate` gives it."""
    mark = request.node.get_closest_marker("fits")
    with vramcast.simulate(*(mark.args if mark else ()), **(mark.kwargs if mark else {})) as run:
        yield run
    if mark is not None and not run.fits:
        pytest.fail(str(run), pytrace=False)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """A test with the mark runs on the card, whether it asks for it or not."""
    for item in items:
        if isinstance(item, pytest.Function) and item.get_closest_marker("fits"):
            item.fixturenames[:] = dict.fromkeys(("simulated_gpu", *item.fixturenames))


@pytest.fixture
def peak_snapshot(request: pytest.FixtureRequest) -> Callable[..., None]:
    """Hold a peak against the one that was taken before, entry by entry."""

    def check(run: Any, tolerance: float = TOLERANCE) -> None:
        path = Path(request.node.path).with_name(FILE)
        known = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
        now = {"peak": run.peak.allocated_bytes}
        for entry in run.ledger:
            now[entry.category] = now.get(entry.category, 0) + entry.num_bytes
        before = known.get(request.node.name)
        if before is None or request.config.getoption("--update-peaks"):
            path.write_text(json.dumps(known | {request.node.name: now}, indent=1) + "\n", encoding="utf-8")
        elif abs(now["peak"] - before["peak"]) > tolerance * before["peak"]:
            names = dict.fromkeys((*before, *now))
            rows = [f"  {name:20} {before.get(name, 0) / MIB:10.1f} -> {now.get(name, 0) / MIB:10.1f} MiB"
                    for name in names if before.get(name) != now.get(name)]
            pytest.fail("\n".join([f"the peak moved by more than {tolerance:.0%}:", *rows]), pytrace=False)

    return check
