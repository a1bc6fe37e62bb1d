"""A device looked at as a whole: failures, settings, and recordings of other people's runs."""

from vramcast.recordings.variants import Variant, advice
from vramcast.units import MIB


def variant(conf: str, reserved: int, failed: int | None = None) -> Variant:
    return Variant(
        conf=conf, capacity_bytes=None, peak_allocated_bytes=MIB, peak_reserved_bytes=reserved, num_alloc_retries=0,
        out_of_memory=failed,
    )


def test_without_other_settings_there_is_no_advice() -> None:
    assert advice([]) is None
    assert advice([variant("", MIB)]) is None
