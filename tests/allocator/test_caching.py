import pytest

from vramcast.allocator import Allocator, DeviceOutOfMemory, Settings
from vramcast.errors import InvalidSpec

MIB = 1 << 20


class Log:
    """Collects segment events as (action, MiB)."""

    def __init__(self) -> None:
        self.events: list[tuple[str, float]] = []

    def __call__(self, action: str, address: int, size_bytes: int) -> None:
        self.events.append((action, size_bytes / MIB))


def sizes(allocator: Allocator) -> list[list[tuple[int, bool]]]:
    """(size, is_free) of each block of each segment."""
    return [[(b.size_bytes, b.is_free) for b in s.blocks] for s in allocator.segments()]


@pytest.mark.parametrize(
    ("request_bytes", "block_bytes"), [(11 * MIB, 12 * MIB), (11 * MIB - 512, 11 * MIB - 512), (19 * MIB, 20 * MIB)]
)
def test_a_rest_of_up_to_1_mib_stays_with_a_large_block_as_slack(request_bytes: int, block_bytes: int) -> None:
    allocator = Allocator()
    allocator.allocate(request_bytes)
    assert allocator.allocated_bytes == block_bytes


def test_an_empty_request_holds_nothing_and_its_handle_may_be_freed() -> None:
    allocator = Allocator()
    handle = allocator.allocate(0)
    allocator.free(handle)
    assert handle == 0 and allocator.reserved_bytes == 0


def test_a_handle_is_freed_only_once() -> None:
    allocator = Allocator()
    handle = allocator.allocate(512)
    allocator.free(handle)
    with pytest.raises(InvalidSpec, match="not a live block"):
        allocator.free(handle)
    with pytest.raises(InvalidSpec, match="not a live block"):
        allocator.free(12345)


def test_a_negative_request_is_refused() -> None:
    with pytest.raises(InvalidSpec, match="negative"):
        Allocator().allocate(-1)


def test_peaks_stay_until_they_are_reset() -> None:
    allocator = Allocator()
    handle = allocator.allocate(30 * MIB)
    allocator.free(handle)
    allocator.empty_cache()
    peaks = (allocator.peak_allocated_bytes, allocator.peak_requested_bytes, allocator.peak_reserved_bytes)
    assert peaks == (30 * MIB,) * 3
    allocator.reset_peaks()
    assert allocator.peak_allocated_bytes == allocator.peak_requested_bytes == allocator.peak_reserved_bytes == 0


def test_the_cache_is_released_large_pool_first_by_size_then_address() -> None:
    log = Log()
    allocator = Allocator(observer=log)
    handles = [allocator.allocate(n) for n in (512, 40 * MIB, 30 * MIB, 2 * MIB)]
    for handle in handles:
        allocator.free(handle)
    log.events.clear()
    allocator.empty_cache()
    assert log.events == [("segment_free", 20), ("segment_free", 30), ("segment_free", 40), ("segment_free", 2)]


def test_out_of_memory_carries_the_numbers_torch_prints() -> None:
    allocator = Allocator(capacity_bytes=100 * MIB)
    allocator.allocate(60 * MIB)
    with pytest.raises(DeviceOutOfMemory, match=r"42.00 MiB.*100.00 MiB") as caught:
        allocator.allocate(41 * MIB - 100)
    error = caught.value
    figures = error.figures
    assert figures.tried == 42 * MIB and error.requested_bytes == 41 * MIB - 100
    assert (figures.allocated, figures.reserved) == (60 * MIB, 60 * MIB)
    assert (figures.total, figures.free, figures.allowed) == (100 * MIB, 40 * MIB, None)
    assert allocator.num_ooms == 1 and allocator.num_alloc_retries == 1


def test_a_memory_fraction_can_be_set_and_lifted_while_it_runs() -> None:
    allocator = Allocator(capacity_bytes=100 * MIB)
    allocator.limit(0.5)
    with pytest.raises(DeviceOutOfMemory):
        allocator.allocate(60 * MIB)
    allocator.limit(1)
    assert allocator.allocate(60 * MIB)
    with pytest.raises(InvalidSpec, match="use 0 to 1"):
        allocator.limit(1.5)


def test_a_memory_fraction_limits_what_is_held() -> None:
    settings = Settings(per_process_memory_fraction=0.5)
    allocator = Allocator(settings=settings, capacity_bytes=90 * MIB, total_bytes=100 * MIB)
    allocator.allocate(50 * MIB)
    with pytest.raises(DeviceOutOfMemory) as caught:
        allocator.allocate(1)
    assert caught.value.figures.allowed == 50 * MIB


def test_more_than_an_exbibyte_is_refused_without_touching_the_cache() -> None:
    allocator = Allocator()
    allocator.free(allocator.allocate(MIB))
    with pytest.raises(DeviceOutOfMemory):
        allocator.allocate((1 << 60) + 1)
    assert allocator.reserved_bytes == 2 * MIB


class Addresses:
    """A driver that gives these addresses in turn."""

    def __init__(self, *addresses: int) -> None:
        self.addresses = iter(addresses)
        self.asked: list[int] = []

    def allocate(self, size_bytes: int) -> int:
        self.asked.append(size_bytes)
        return next(self.addresses)

    reserve = allocate

    def map(self, address: int, size_bytes: int) -> None:
        pass


def test_an_injected_driver_chooses_the_addresses_and_they_decide_ties() -> None:
    allocator = Allocator(driver=Addresses(0x7000000, 0x1000000))
    first, second = allocator.allocate(10 * MIB), allocator.allocate(10 * MIB)
    assert (first, second) == (0x7000000, 0x1000000)
    allocator.free(first)
    allocator.free(second)
    assert allocator.allocate(10 * MIB) == second


def test_a_driver_that_repeats_an_address_is_refused() -> None:
    allocator = Allocator(driver=Addresses(1 << 30, 1 << 30))
    allocator.allocate(10 * MIB)
    with pytest.raises(InvalidSpec, match="in use"):
        allocator.allocate(10 * MIB)


def test_restoring_into_a_used_allocator_is_refused() -> None:
    allocator = Allocator()
    allocator.allocate(1)
    with pytest.raises(InvalidSpec, match="already holds memory"):
        allocator.restore(allocator.segments())
