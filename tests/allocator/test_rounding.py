import pytest

from vramcast.allocator import round_size

MIB = 1 << 20
TABLE = (2, 4, *(0,) * 13, 8)


@pytest.mark.parametrize(("request_bytes", "divisions", "block_bytes"), [
    (1, (), 512), (511, (), 512), (512, (), 512), (513, (), 1024), (1025, (), 1536),
    # docs/source/notes/cuda.rst: 1200 with 4 divisions lies between 1024 and 1280; a power of two stays
    (1200 * MIB, (4,) * 16, 1280 * MIB), (256 * MIB, (8,) * 16, 256 * MIB),
    # one division, and requests below 512 per step, round to 512
    (5 * MIB + 1, (1,) * 16, 5 * MIB + 512), (4 * 512 - 1, (4,) * 16, 4 * 512), (9 * 512 + 1, (4,) * 16, 10 * 512),
    # each power of two from 1 MiB to 32 GiB has its own entry, and sizes beyond have the last
    (MIB + 1, TABLE, MIB + MIB // 2), (2 * MIB + 1, TABLE, 2 * MIB + MIB // 2), (4 * MIB + 1, TABLE, 4 * MIB + 512),
    ((100 << 30) + 1, TABLE, 104 << 30),
])
def test_requests_are_rounded_as_upstream_does(
    request_bytes: int, divisions: tuple[int, ...], block_bytes: int
) -> None:
    assert round_size(request_bytes, divisions) == block_bytes
