import pytest

from vramcast.allocator import Allocator, DeviceOutOfMemory
from vramcast.errors import InvalidSpec

MIB = 1 << 20


class Log:
    """Collects segment events as (action, MiB)."""

    def __init__(self) -> None:
        self.events: list[tuple[str, float]] = []

    def __call__(self, action: str, address: int, size_bytes: int) -> None:
        self.events.append((action, size_bytes / MIB))


def test_a_negative_request_is_refused() -> None:
    with pytest.raises(InvalidSpec, match="negative"):
        Allocator().allocate(-1)


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


def test_restoring_into_a_used_allocator_is_refused() -> None:
    allocator = Allocator()
    allocator.allocate(1)
    with pytest.raises(InvalidSpec, match="already holds memory"):
        allocator.restore(allocator.segments())
