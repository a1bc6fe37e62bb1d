"""A server under closed load: so many users, each of whom asks again once an answer is complete.

The engine's own scheduler, simulated: all ask at the same moment first, then each by itself. Answers differ in length,
or all who began together would end together, and ask together again: prompts that go before everything else keep such
users in step for ever, as runs with answers of one length show.

Symbols:  N users
[front] requests reach the scheduler one behind the other: one process takes their text apart

When requests come: the same times for the same seed, on every machine.

[splitmix] Steele, Lea and Flood, OOPSLA 2014, the generator's figure 16
[gamma] Marsaglia and Tsang, ACM TOMS 26 (2000): a shape below 1 is the one above it times u^(1 / shape)
[vllm] vllm 0.19.0 vllm/benchmarks/serve.py `get_request`
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from heapq import heappop, heappush
from math import ceil, cos, inf, log, pi, sqrt
from typing import Final, NamedTuple

from msgspec import Struct
from msgspec.structs import replace

from vramcast.timing.batching import Arrival, Batching, Costs, Limits, Pool
from vramcast.units import ceil_div

LOOSE: Final = 0.1
"""Spread of lengths at least where prompts are cut and share steps with those who generate: nothing draws users
together there, and who falls behind by a little stays behind. Runs of one length on vLLM show no steps in common; those
on TensorRT-LLM, whose prompts are whole, do."""

FEWEST: Final = 64
"""Requests behind the first of every user that means are taken of, at least."""

LONGEST: Final = 1 << 19
"""Tokens of answers behind the first of every user, beyond which fewer are simulated: each has many steps."""

MOST_CHUNKS: Final = 1024
"""Pieces of a prompt that are simulated: of a longer one they are larger."""

MOST_USERS: Final = 1 << 13
MOST_STEPS: Final = 1 << 17
"""Users, and pieces of all their prompts, that are simulated. Where there are more, the server is busy all the same: it
answers as many requests a second, each as fast, and what is longer is the wait before."""

MOST_TOKENS: Final = 1 << 20
"""Tokens of all users' sequences that are simulated where the cache does not hold them: the longer they are, the fewer
of those who wait."""

STRIDES: Final = (0.6180339887498949, 0.7548776662466927)
"""Of lengths of answers and prompts through their spread: golden ratios of one and two dimensions fill it evenly."""


class Front(Struct, frozen=True):
    """What a request waits for before the scheduler sees it [front], and its first token behind."""

    request_s: float = 0.0  # of each, one behind the other
    fixed_s: float = 0.0


class Load(Struct, frozen=True):
    """What users ask."""

    users: int
    prompt: int  # tokens on average
    answer: int
    spread: float = LOOSE  # share of the mean by which lengths differ from it at most

    def lengths(self, number: int) -> tuple[int, int]:
        """Tokens of prompt and answer of a request.

        >>> [Load(2, 1000, 100).lengths(number) for number in range(3)]
        [(1051, 102), (1002, 95), (953, 107)]
        """
        prompt, answer = (
            max(1, round(mean * (1 + self.spread * (2 * ((number + 1) * stride % 1) - 1))))
            for mean, stride in zip((self.prompt, self.answer), (STRIDES[1], STRIDES[0]), strict=True)
        )
        return prompt, answer if self.answer > 1 else 1


class Latency(Struct, frozen=True):
    """What users wait for."""

    first_token_s: float
    token_s: float  # between two tokens, prompts of others among them
    together_s: float  # mean time to the first token where all ask at the same moment


class Misses(NamedTuple):
    """By what measured latencies were multiples of predicted ones: what holds nine of ten runs of an unknown model."""

    first_token: tuple[float, float]
    token: tuple[float, float]


MISSES: Final = Misses((0.42, 3.40), (0.54, 2.19))
"""Of 1,561 runs of vLLM, SGLang and TensorRT-LLM on cards whose kernels were measured, a model on a card counting once
from eight runs [`python -m benchmarks.serving_times FILE --misses`]. Without all runs of a model such bounds hold 95
and 98 % of its runs, 91 and 90 % where models on cards count so."""


class _Users(Batching):
    """Users who ask again."""

    def __init__(
        self, pool: Pool, limits: Limits, costs: Costs, load: Load, front: Front, requests: int,
        away_s: Callable[[int], float] | None,
    ) -> None:
        super().__init__(pool, limits, costs)
        self.number, self.front, self.left_to_end, self.away_s = 0, front, requests, away_s
        self.asked_s: list[float] = []
        self.free_s = 0.0  # when the front is done with all so far
        self.coming: list[tuple[float, int]] = []  # heap, to the scheduler: who asked when
        for _ in range(load.users):
            self._ask(0.0)
        while self.left_to_end > 0:
            until = max(self.coming[0][0], self.free_s) + front.request_s if self.coming else inf
            if until <= self.now or not (self.running or self.waiting):
                self.now, self.free_s = max(self.now, until), until
                asked_s, number = heappop(self.coming)
                self.asked_s.append(asked_s)
                self.push(Arrival(until, *load.lengths(number)))
            else:
                self.proceed(until)

    def _ask(self, at_s: float) -> None:
        heappush(self.coming, (at_s, self.number))
        self.number += 1

    def _end(self, request: int, computed: int) -> None:
        super()._end(request, computed)
        self.left_to_end -= 1
        self._ask(self.now + (self.away_s(request) if self.away_s else 0.0))


def closed_loop(
    load: Load, limits: Limits, costs: Costs, front: Front, pool: Pool, *, away_s: Callable[[int], float] | None = None
) -> Latency:
    """Mean latencies of requests behind the first of every user; of those the time to the first token.

    Args:
        away_s: how long the user of a request is served elsewhere before it asks again

    >>> class Tenth:
    ...     def decode(self, sequences, context): return 0.01
    ...     def mixed(self, sequences, context, chunks): return 0.1
    >>> alone = closed_loop(Load(1, 100, 11), Limits(8, 8192), Tenth(), Front(), Pool(1000, 16))
    >>> round(alone.first_token_s, 3), round(alone.token_s, 3)
    (0.1, 0.01)
    """
    users, longest = load.users, ceil(load.prompt * (1 + load.spread))
    tokens = max(limits.tokens, ceil_div(longest, MOST_CHUNKS))
    each = load.prompt + load.answer
    held = min(limits.sequences, pool.blocks // max(1, pool.held(each)))
    most = max(FEWEST, min(MOST_USERS, MOST_STEPS // ceil_div(longest, tokens)))
    most = min(most, max(1, held, MOST_TOKENS // each))
    if tokens > limits.tokens or users > most:
        fewer = replace(load, users=min(users, most))
        found = closed_loop(fewer, replace(limits, tokens=tokens), costs, front, pool, away_s=away_s)
        more = users / fewer.users
        between = (more - 1) * (found.first_token_s + load.answer * found.token_s)
        return Latency(found.first_token_s + between, found.token_s, found.together_s * more)
    requests = users + max(users, min(FEWEST, LONGEST // load.answer))
    ran = _Users(pool, limits, costs, load, front, requests, away_s)
    done = [number for number in range(users, len(ran.end_s)) if ran.end_s[number] < inf]
    waits = [first - asked + front.fixed_s for first, asked in zip(ran.first_s, ran.asked_s, strict=False)]
    gaps = [(ran.end_s[number] - ran.first_s[number]) / max(1, ran.answer[number] - 1) for number in done]
    return Latency(
        first_token_s=sum(waits[number] for number in done) / len(done), token_s=sum(gaps) / len(gaps),
        together_s=sum(waits[:users]) / users,
    )


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


def routed(schedulers: Sequence[Batching], arrivals: Iterable[Arrival], *, least_loaded: bool) -> None:
    """Requests of several schedulers behind a router, which takes them in turn or where the load is least [dp]."""
    for number, arrival in enumerate(arrivals):
        if least_loaded:
            for one in schedulers:
                one.advance(arrival.at_s)
            chosen = min(schedulers, key=lambda one: one.load)
        else:
            chosen = schedulers[number % len(schedulers)]
            chosen.advance(arrival.at_s)
        chosen.push(arrival)
    for one in schedulers:
        one.advance(inf)
