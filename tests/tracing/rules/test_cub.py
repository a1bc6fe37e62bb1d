"""CUB's own answers, asked of version 3.0 for several cards."""

import pytest

from vramcast.tracing.rules.cub import radix_sort_bytes, scan_bytes, segmented_sort_bytes, unique_by_key_bytes


@pytest.mark.parametrize(
    ("elements", "bits", "sm", "answer"),
    [(1000, 64, 80, 1), (1_000_000, 17, 80, 16_270_847), (1_000_000, 64, 80, 16_275_967), (4096, 17, 80, 71_167)],
)
def test_radix_sort_of_pairs(elements, bits, sm, answer):
    assert radix_sort_bytes(elements, key=8, value=8, bits=bits, sm=sm) == answer


@pytest.mark.parametrize(("answer", "own"), [
    (4351, lambda: scan_bytes(1_000_000, 4, 80, "float32")),
    (596_479, lambda: scan_bytes(100_000_000, 8, 90)),
    (18_943, lambda: scan_bytes(1_000_000, 8, 86)),
    (51_199, lambda: unique_by_key_bytes(1_000_000, 86)),
    (36_000_767, lambda: segmented_sort_bytes(3_000_001, key=4, value=8)),
])
def test_other_algorithms(answer, own):
    assert own() == answer
