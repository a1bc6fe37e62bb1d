"""The text of the exception, word for word: the templates of each version, filled in by hand."""

import json
import os
from pathlib import Path

import pytest

from vramcast.allocator import Allocator, DeviceOutOfMemory
from vramcast.allocator.failure import Figures, out_of_memory_message
from vramcast.errors import InvalidSpec

from .test_caching import MIB

TRUTH = Path(os.environ.get("VRAMCAST_TRUTH", Path(__file__).resolve().parents[3] / "shared" / "truth"))
GIB = 1 << 30
SMALL = Figures(tried=2 * MIB, total=8 * GIB, free=MIB, allocated=3 * GIB // 2, reserved=7 * GIB, device=1)


def test_the_text_of_1_10_to_2_0() -> None:
    assert out_of_memory_message(SMALL, (1, 13)) == (
        "CUDA out of memory. Tried to allocate 2.00 MiB (GPU 1; 8.00 GiB total capacity; 1.50 GiB already allocated; "
        "1024.00 KiB free; 7.00 GiB reserved in total by PyTorch) If reserved memory is >> allocated memory try "
        "setting max_split_size_mb to avoid fragmentation.  See documentation for Memory Management and "
        "PYTORCH_CUDA_ALLOC_CONF"
    )


def test_the_text_of_2_1_has_upstreams_slip() -> None:
    assert out_of_memory_message(SMALL, (2, 1)) == (
        "CUDA out of memory. Tried to allocate 2.00 MiB. GPU 1 has a total capacty of 8.00 GiB of which 1024.00 KiB is "
        "free. Of the allocated memory 1.50 GiB is allocated by PyTorch, and 5.50 GiB is reserved by PyTorch but "
        "unallocated. If reserved but unallocated memory is large try setting max_split_size_mb to avoid "
        "fragmentation.  See documentation for Memory Management and PYTORCH_CUDA_ALLOC_CONF"
    )


def test_the_limit_of_a_memory_fraction_is_named_where_upstream_names_it() -> None:
    figures = Figures(tried=2 * MIB, total=8 * GIB, free=GIB, allocated=GIB, reserved=2 * GIB, allowed=2 * GIB)
    named = [minor for minor in range(14) if "2.00 GiB allowed; " in out_of_memory_message(figures, (2, minor))]
    assert named == [0, *range(5, 14)]
    assert "2.00 GiB allowed; 2.00 GiB reserved" in out_of_memory_message(figures, (1, 10))


def test_more_than_an_exbibyte_has_its_own_text() -> None:
    with pytest.raises(DeviceOutOfMemory) as caught:
        Allocator().allocate(1 << 61)
    assert caught.value.torch_message((2, 6)) == "CUDA out of memory. Tried to allocate more than 1EB memory."


def test_a_text_that_names_an_unknown_card_is_refused() -> None:
    from vramcast.allocator.heap import RisingAddresses
    from vramcast.errors import OutOfMemory

    class Full(RisingAddresses):
        def allocate(self, size_bytes: int) -> int:
            raise OutOfMemory("full")

    with pytest.raises(DeviceOutOfMemory) as caught:
        Allocator(driver=Full()).allocate(1)
    with pytest.raises(InvalidSpec, match="size of the card"):
        caught.value.torch_message((2, 6))


@pytest.mark.skipif(not TRUTH.is_dir(), reason=f"no {TRUTH}")
def test_collected_templates_are_what_is_written() -> None:
    rows = [json.loads(line) for line in (TRUTH / "oom_messages.jsonl").read_text().splitlines()]
    template = next(r["message"] for r in rows if r["format"] == "TEMPLATE" and r.get("versions") == "2.4 - 2.9")
    figures = Figures(tried=1, total=2, free=3, allocated=4, reserved=50, allowed=6, pools=7)
    filled = template.replace("[proc]*", "").replace("[", "").replace("]", "")
    for name, size in {
        "{alloc_size}": 1, "{dev}": 0, "{total}": 2, "{free}": 3, "{allowed}": 6, "{allocated+private}": 11,
        "{private}": 7, "{reserved-allocated-private}": 39,
    }.items():
        filled = filled.replace(name, str(size) if name == "{dev}" else f"{size} bytes")
    assert out_of_memory_message(figures, (2, 9)) == filled
