"""Speed of the simulated allocator: calls of allocate and free per second, on one core.

    python benchmarks/allocator.py [--calls 1000000]

Each workload is prepared as a list before the clock starts, so only the allocator is measured. The median of five runs
is printed, and the best beside it.
"""

from __future__ import annotations

import argparse
import random
from statistics import median
from time import perf_counter

from vramcast.allocator import Allocator, Settings

Workload = list[tuple[int, int]]  # (slot, bytes): 0 bytes frees the slot

_RUNS = 5
_CAPACITY_BYTES = 192 << 30
_SETTINGS = (
    "",
    "expandable_segments:True",
    "max_split_size_mb:128",
    "roundup_power2_divisions:8",
    "garbage_collection_threshold:0.8,per_process_memory_fraction:0.9",
)


def training_steps(num_calls: int) -> Workload:
    """A transformer's steps: activations live until the backward pass, temporaries die at once."""
    rng = random.Random(0)
    layer = [4 * 2048 * width for width in (1024, 3072, 1024, 4096, 4096, 1024)]
    calls: Workload = []
    slot = 0
    while len(calls) < num_calls:
        saved: list[int] = []
        for _ in range(24):
            for num_bytes in (*layer, 8192, 2048, 512 * rng.randrange(1, 64)):
                calls += [(slot, num_bytes), (slot + 1, num_bytes), (slot + 1, 0)]
                saved.append(slot)
                slot += 2
        for old in reversed(saved):
            calls += [(slot, 4 * 2048 * 1024), (old, 0), (slot, 0)]
            slot += 1
    return calls[:num_calls]


def random_churn(num_calls: int) -> Workload:
    """A thousand live tensors of sizes from bytes to 64 MiB, replaced in random order: the worst case for merging."""
    rng = random.Random(1)
    calls: Workload = []
    live: list[int] = []
    slot = 0
    while len(calls) < num_calls:
        if len(live) >= 1000:
            calls.append((live.pop(rng.randrange(len(live))), 0))
        calls.append((slot, int(2 ** rng.uniform(6, 26))))
        live.append(slot)
        slot += 1
    return calls


def calls_per_second(workload: Workload, settings: Settings, stream: int = 0) -> float:
    """Rate of one run [1/s]."""
    allocator = Allocator(settings=settings, capacity_bytes=_CAPACITY_BYTES)
    allocate, free = allocator.allocate, allocator.free
    handles = [0] * (1 + max(slot for slot, _ in workload))
    start = perf_counter()
    for slot, num_bytes in workload:
        if num_bytes:
            handles[slot] = allocate(num_bytes, stream)
        else:
            free(handles[slot])
    return len(workload) / (perf_counter() - start)


def main() -> None:
    """Print one line per workload and setting."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--calls", type=int, default=1_000_000)
    num_calls = parser.parse_args().calls
    for workload in (training_steps, random_churn):
        calls = workload(num_calls)
        for text, stream in (*((text, 0) for text in _SETTINGS), ("", 7)):
            rates = [calls_per_second(calls, Settings.parse(text), stream) for _ in range(_RUNS)]
            name = f"{workload.__name__} {text or 'default'}{' on another stream' if stream else ''}"
            print(f"{name:84} median {median(rates):>12,.0f} events/s   best {max(rates):>12,.0f}")


if __name__ == "__main__":
    main()
