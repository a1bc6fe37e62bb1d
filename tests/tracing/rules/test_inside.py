"""Operators whose kernels on CUDA are chains of others take what these take."""

import pytest
import torch

COUNT = 4096


def test_rolling_windows_takes_a_result_for_every_dimension(taken):
    x = torch.randn(2, 8, 16, 16, device="cuda").permute(0, 2, 3, 1)
    size = 4 * 2 * 8 * 16 * 16
    assert taken(lambda: torch.roll(x, (-2, -2), (1, 2))) == [(size, "contiguous copy"), (size, ""), (size, "")]


def test_the_first_result_lives_beside_the_second(running):
    x = torch.randn(COUNT, 64, device="cuda")
    before = running.device.allocator.allocated_bytes
    y = torch.roll(x, (1, 1), (0, 1))
    assert running.device.allocator.peak_allocated_bytes == before + 2 * y.nbytes
    assert running.device.allocator.allocated_bytes == before + y.nbytes


@pytest.mark.parametrize("way", ["scatter_reduce", "index_reduce"])
def test_means_are_counted_beside_their_sums(taken, way):
    source, sums = torch.randn(COUNT, 8, device="cuda"), torch.zeros(64, 8, device="cuda")
    index = torch.zeros(COUNT, dtype=torch.long, device="cuda")
    index = index[:, None].expand(-1, 8) if way == "scatter_reduce" else index
    taken = taken(lambda: getattr(sums, way)(0, index, source, "mean"))
    assert sorted(taken) == sorted([
        (4 * 64 * 8, ""), (4 * COUNT * 8, "ones"), (4 * 64 * 8, "counts"), (64 * 8, "counts of zero"),
    ])


def test_few_values_are_looked_for_among_many_by_comparing_all(taken):
    ids, ends = torch.randint(0, 9, (COUNT,), device="cuda"), torch.tensor([1, 2, 3], device="cuda")
    assert taken(lambda: torch.isin(ids, ends)) == [(COUNT, ""), (3 * COUNT, "comparisons"), (COUNT, "any of them")]


def test_what_looking_for_many_values_takes_is_not_known(running):
    torch.isin(torch.randint(0, 9, (COUNT,), device="cuda"), torch.randint(0, 9, (COUNT,), device="cuda"))
    assert "aten.isin" in running.simulation.unseen


@pytest.mark.parametrize("kind", ["bartlett", "blackman", "hamming", "hann"])
def test_windows_are_known(running, kind):
    assert getattr(torch, f"{kind}_window")(400, device="cuda").shape == (400,)
    assert not running.simulation.unseen
