"""When requests come."""

from __future__ import annotations

from random import Random

from vramcast.timing.batching import Arrival


def arrivals_at(
    rate: float, *, count: int, prompt: int, answer: int, burstiness: float = 1.0, seed: int = 0
) -> list[Arrival]:
    """So many requests of one length at random times: a gamma distribution between two of them, 1 / rate on average.

    As `vllm bench serve --request-rate --burstiness` sends them [vllm 0.19.0 vllm/benchmarks/serve.py `get_request`]:
    a shape of 1 is a Poisson process, a lower one comes in bursts; the times are scaled to end at count / rate.

    >>> sent = arrivals_at(2.0, count=4, prompt=10, answer=5)
    >>> len(sent), round(sent[-1].at_s, 6)
    (4, 2.0)
    """
    random = Random(seed)
    times, now = [], 0.0
    for _ in range(count):
        now += random.gammavariate(burstiness, 1.0)
        times.append(now)
    scale = count / rate / now
    return [Arrival(time * scale, prompt, answer) for time in times]
