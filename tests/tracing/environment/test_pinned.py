"""Pinned main memory and its statistics."""

import torch

KINDS = ("allocations", "allocated_bytes", "active_requests", "active_bytes")


def figures(name):
    stats = torch.cuda.host_memory_stats()
    return tuple(stats[f"{name}.{part}"] for part in ("current", "peak", "allocated", "freed"))


def test_nothing_is_pinned_at_first(running):
    torch.cuda.init()
    assert [figures(name) for name in KINDS] == [(0, 0, 0, 0)] * 4
    assert torch.cuda.host_memory_stats()["num_host_alloc"] == 0


def test_blocks_are_powers_of_two_and_serve_again(running):
    held = torch.empty(3000, pin_memory=True)  # 12,000 bytes
    assert figures("allocated_bytes") == (16384, 16384, 16384, 0) == figures("active_bytes")
    del held
    assert figures("active_requests") == (0, 1, 1, 1) and figures("allocations") == (1, 1, 1, 0)
    again, other = torch.empty(4096).pin_memory(), torch.empty(4097).pin_memory()
    assert again.is_pinned() and again.pin_memory() is again
    assert figures("allocations") == (2, 2, 2, 0)
    assert figures("allocated_bytes") == (16384 + 32768, 16384 + 32768, 16384 + 32768, 0)
    assert torch.cuda.host_memory_stats()["num_host_alloc"] == 2
    del other


def test_peaks_and_totals_are_forgotten_and_the_cache_given_back(running):
    held, gone = torch.empty(1024).pin_memory(), torch.empty(1024).pin_memory()
    del gone
    torch.cuda.reset_peak_host_memory_stats()
    assert figures("active_bytes") == (4096, 4096, 8192, 4096)
    torch.cuda.reset_accumulated_host_memory_stats()
    assert figures("active_bytes") == (4096, 4096, 0, 0)
    torch._C._host_emptyCache()
    assert figures("allocated_bytes") == (4096, 8192, 0, 4096)
    assert torch.cuda.host_memory_stats()["num_host_free"] == 1
    assert held.is_pinned()


def test_a_copy_from_the_card_that_nobody_waits_for_is_pinned(running):
    on_card = torch.zeros(1 << 20, device="cuda")
    waited, not_waited = on_card.cpu(), on_card.to("cpu", non_blocking=True)
    assert not_waited.is_pinned() and not waited.is_pinned()
    assert figures("active_bytes")[0] == 4 << 20
    del not_waited
    assert figures("active_bytes")[0] == 0
