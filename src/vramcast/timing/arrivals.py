"""When requests come: the same times for the same seed, on every machine.

[splitmix] Steele, Lea and Flood, OOPSLA 2014, the generator's figure 16
[gamma] Marsaglia and Tsang, ACM TOMS 26 (2000): a shape below 1 is the one above it times u^(1 / shape)
[vllm] vllm 0.19.0 vllm/benchmarks/serve.py `get_request`
"""

from __future__ import annotations

from collections.abc import Iterator
from math import cos, log, pi, sqrt
from typing import Final

from vramcast.timing.batching import Arrival

WORD: Final = (1 << 64) - 1


def uniforms(seed: int) -> Iterator[float]:
    """Random numbers above 0 and up to 1 [splitmix].

    >>> numbers = uniforms(2)
    >>> 0.49 < sum(next(numbers) for _ in range(10_000)) / 10_000 < 0.51
    True
    """
    state = seed & WORD
    while True:
        state = (state + 0x9E3779B97F4A7C15) & WORD
        z = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & WORD
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & WORD
        yield (((z ^ (z >> 31)) >> 11) + 1) / (1 << 53)


def gamma(shape: float, numbers: Iterator[float]) -> float:
    """A number of that shape and scale 1 [gamma]; of shape 1 it is exponential.

    >>> numbers = uniforms(2)
    >>> 0.48 < sum(gamma(0.5, numbers) for _ in range(20_000)) / 20_000 < 0.52
    True
    """
    if shape == 1:
        return -log(next(numbers))
    if shape < 1:
        return gamma(shape + 1, numbers) * float(next(numbers) ** (1 / shape))
    d = shape - 1 / 3
    while True:
        x = sqrt(-2 * log(next(numbers))) * cos(2 * pi * next(numbers))
        v = (1 + x / sqrt(9 * d)) ** 3
        if v > 0 and log(next(numbers)) < x * x / 2 + d - d * v + d * log(v):
            return d * v


def arrivals_at(
    rate: float, *, count: int, prompt: int, answer: int, burstiness: float = 1.0, seed: int = 0
) -> list[Arrival]:
    """So many requests of one length at random times: a gamma distribution between two of them, 1 / rate on average.

    A shape of 1 is a Poisson process, a lower one comes in bursts; times are scaled to end at count / rate [vllm].

    >>> sent = arrivals_at(2.0, count=4, prompt=10, answer=5)
    >>> len(sent), round(sent[-1].at_s, 6)
    (4, 2.0)
    """
    numbers = uniforms(seed)
    times, now = [], 0.0
    for _ in range(count):
        now += gamma(burstiness, numbers)
        times.append(now)
    scale = count / rate / now
    return [Arrival(time * scale, prompt, answer) for time in times]
