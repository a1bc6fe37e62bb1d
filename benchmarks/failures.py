"""Speed of reading failures, in MB of text a second: real shapes, and texts made to be slow.

    python benchmarks/failures.py [--megabytes 8]

A promise of this reader is that no text takes more than a second per MB; the slowest line shows how far that is away.
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Callable
from time import process_time
from typing import Final

from vramcast.sources.failures import read_failures

TORCH: Final = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate {a}.00 MiB. GPU {d} has a total capacity of "
    "23.65 GiB of which {a}.25 MiB is free. Process 1 has 1.00 GiB memory in use. Of the allocated memory 12.09 GiB is "
    "allocated by PyTorch, and 4.84 GiB is reserved by PyTorch but unallocated.\n"
)


def _repeat(piece: str) -> Callable[[int], str]:
    return lambda size: (piece * (size // len(piece) + 1))[:size]


def _training(size: int) -> str:
    lines, total = [], 0
    while total < size:
        step = len(lines)
        line = (
            f"2026-01-02 03:04:{step % 60:02d} INFO step {step} loss {step % 7}.123 memory allocated 12.3 GiB lr 1e-4"
        )
        lines.append(line)
        total += len(line) + 1
    return "\n".join(lines) + "\n" + TORCH.format(a=12, d=0)


def _different(size: int) -> str:
    return "".join(TORCH.format(a=number, d=number % 8) for number in range(size // len(TORCH) + 1))


def _noise(size: int) -> str:
    rng = random.Random(0)
    words = (
        "CUDA",
        "out",
        "of",
        "memory",
        "(",
        ")",
        "[",
        "GiB",
        "1.5",
        "Tried",
        "to",
        "allocate",
        "{",
        "|",
        "\n",
        "failed",
        "9" * 40,
    )
    return " ".join(rng.choice(words) for _ in range(size // 6))


TEXTS: Final[dict[str, Callable[[int], str]]] = {
    "prose without failures": _repeat("The quick brown fox jumps over the lazy dog near the riverbank.\n"),
    "training log": _training,
    "the same failure again": _repeat(TORCH.format(a=64, d=0)),
    "different failures": _different,
    "'Tried to allocate '": _repeat("Tried to allocate "),
    "'Tried to allocate 1 GiB '": _repeat("Tried to allocate 1 GiB "),
    "'CUDA out of memory. '": _repeat("CUDA out of memory. "),
    "title and number": _repeat("CUDA out of memory. Tried to allocate 1 GiB "),
    "one long line": _repeat("x"),
    "digits": _repeat("9"),
    "digits behind words": _repeat("Tried to allocate " + "9" * 500),
    "brackets": _repeat("(" * 50 + "[" * 50),
    "spaces": _repeat(" "),
    "line ends": _repeat("\n"),
    "backslashes": _repeat('\\n\\"'),
    "entities": _repeat("&amp;&gt;&#39;"),
    "nvidia-smi": _repeat("NVIDIA-SMI 1 | 4MiB / 8MiB "),
    "rows of cards": _repeat("NVIDIA-SMI 0 A100 On | 0000:00:00.0 " + "1MiB / " * 40),
    "queries": _repeat("memory.used [MiB], memory.free [MiB] "),
    "tracebacks": _repeat('Traceback (most recent call last):\n  File "a.py", line 1, in f\nMemoryError\n'),
    "noise": _noise,
    "prefixes": _repeat("> # | [rank0]: 2026-01-02 03:04:05 "),
    "weak words": _repeat("MemoryError std::bad_alloc RESOURCE_EXHAUSTED "),
}


def megabytes_per_second(text: str) -> float:
    """Rate of one reading, by the time of the processor [10^6 characters/s]."""
    start = process_time()
    read_failures(text)
    return len(text) / 1e6 / (process_time() - start)


def main() -> None:
    """Print one line per text, and the slowest."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--megabytes", type=float, default=4)
    size = int(parser.parse_args().megabytes * 1e6)
    rates = {}
    for name, make in TEXTS.items():
        rates[name] = megabytes_per_second(make(size))
        print(f"{name:28} {rates[name]:9.1f} MB/s", flush=True)
    slowest = min(rates, key=lambda name: rates[name])
    print(f"slowest: {slowest}, {rates[slowest]:.1f} MB/s")


if __name__ == "__main__":
    main()
