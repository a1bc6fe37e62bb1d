"""The numbers that a seeded generator of a CUDA card gives, computed on the host.

They depend on seed, offset and, for tensors larger than one wave of threads, on the card's multiprocessors.

[philox] Salmon et al., Parallel Random Numbers: As Easy as 1, 2, 3, SC 2011: Philox4x32-10
[curand] CUDA toolkit curand_kernel.h `curand_init`, curand_uniform.h `_curand_uniform`, curand_normal.h
`_curand_box_muller`
[dist] pytorch aten/src/ATen/native/cuda/DistributionTemplates.h `calc_execution_policy`,
`distribution_elementwise_grid_stride_kernel`, `uniform_kernel`, `random_from_to_kernel`
"""

from __future__ import annotations

from typing import Final, NamedTuple

import torch

from vramcast.units import ceil_div

BLOCK: Final = 256  # threads
DRAWN: Final = 4  # words a thread draws at once, and what the offset grows by for each draw
ROUNDS: Final = 10
MULTIPLIERS: Final = (0xD2511F53, 0xCD9E8D57)
KEY_STEPS: Final = (0x9E3779B9, 0xBB67AE85)
WORD: Final = 0xFFFFFFFF
TO_UNIT: Final = 2.0**-32
TO_CIRCLE: Final = TO_UNIT * 6.283185482025146  # 2 pi in fp32
HOST: Final = torch.device("cpu")


class State(NamedTuple):
    """Of a generator, and the card that its kernels run on."""

    seed: int
    offset: int  # numbers that each thread has drawn so far
    multiprocessors: int
    threads: int  # of a multiprocessor

    def wave(self, count: int) -> int:
        """Threads of the kernel that makes so many numbers [dist]."""
        return BLOCK * min(ceil_div(count, BLOCK), self.multiprocessors * (self.threads // BLOCK))

    def increment(self, count: int, at_once: int = DRAWN) -> int:
        """By how much making so many numbers moves the offset.

        Args:
            count: numbers
            at_once: that a thread makes of one draw: 2 of 64 bits, else 4
        """
        return ceil_div(count, self.wave(count) * at_once) * DRAWN if count else 0


def words(count: int, state: State) -> torch.Tensor:
    """Random words of 32 bits, one for each element of a contiguous tensor, as int64."""
    return _words(count, state).flatten()[:count]


def uniform(count: int, state: State, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Of up to 32 bits in [0, 1): to the bit those of the card."""
    unit = (words(count, state).to(torch.float32) * TO_UNIT + TO_UNIT / 2).to(dtype)
    return torch.where(unit == 1, torch.zeros_like(unit), unit)


def normal(count: int, state: State) -> torch.Tensor:
    """fp32, within 2e-6 of the card's, whose sine and cosine are approximations [curand]."""
    drawn = _words(count, state).to(torch.float64)
    radius = (drawn[0::2] * TO_UNIT + TO_UNIT / 2).to(torch.float32).log().mul(-2).sqrt()
    angle = (drawn[1::2] * TO_CIRCLE + TO_CIRCLE / 2).to(torch.float32)
    return torch.stack((angle.sin() * radius, angle.cos() * radius), dim=1).flatten()[:count]


def integers(count: int, low: int, high: int, state: State) -> torch.Tensor:
    """int64 in [low, high), which are less than 2**28 apart: to the bit those of the card."""
    return words(count, state) % (high - low) + low


def _words(count: int, state: State) -> torch.Tensor:
    """One row for every element that a thread makes, one column for every thread [dist]."""
    threads = state.wave(count)
    draws = ceil_div(count, threads * DRAWN)
    thread = torch.arange(threads, device=HOST).expand(draws, threads)
    counter = torch.arange(draws, device=HOST).unsqueeze(1) + state.offset // DRAWN
    low, high = ((counter >> shift & WORD).expand_as(thread) for shift in (0, 32))
    parts = _encrypted([low, high, thread, torch.zeros_like(thread)], state.seed)
    return torch.stack(parts, dim=1).flatten(0, 1)


def _encrypted(counter: list[torch.Tensor], seed: int) -> list[torch.Tensor]:
    """[philox] Products wrap around at 64 bits, as their lower halves need."""
    key = [seed & WORD, seed >> 32 & WORD]
    for _ in range(ROUNDS):
        first, second = counter[0] * MULTIPLIERS[0], counter[2] * MULTIPLIERS[1]
        counter = [
            (second >> 32 & WORD) ^ counter[1] ^ key[0], second & WORD,
            (first >> 32 & WORD) ^ counter[3] ^ key[1], first & WORD,
        ]
        key = [word + step & WORD for word, step in zip(key, KEY_STEPS, strict=True)]
    return counter


__all__ = ["State", "integers", "normal", "uniform", "words"]
