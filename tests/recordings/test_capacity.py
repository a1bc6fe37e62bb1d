"""What a card could have given, from its recording."""

from vramcast.recordings.replay import replay
from vramcast.recordings.variants import PAGE_BYTES, limit_by_retries
from vramcast.units import MIB

from ._made import FORWARD, PLAIN, Run
from ._record import device_of


def limit(run: Run) -> int | None:
    snapshot = run.dump()
    return limit_by_retries(snapshot.devices[0], replay(device_of(snapshot)))


def test_a_cache_returned_for_a_segment_tells_the_limit() -> None:
    run = Run(capacity_bytes=100 * MIB)
    run.drop(run.make(60 * MIB, FORWARD), PLAIN)
    run.make(70 * MIB, FORWARD)
    assert limit(run) == 130 * MIB - PAGE_BYTES
