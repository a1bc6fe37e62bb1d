"""Sentences of a verdict."""

import pytest

from vramcast.domain.answer import LedgerEntry, Peak, RankAnswer
from vramcast.domain.program import Basis
from vramcast.report.messages import Words
from vramcast.report.sentences import what_fills
from vramcast.units import GIB


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
