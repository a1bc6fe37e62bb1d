"""A server under closed load: so many users, each of whom asks again once an answer is complete.

The engine's own scheduler, simulated: all ask at the same moment first, then each by itself. Answers differ in length,
or all who began together would end together, and ask together again: prompts that go before everything else keep such
users in step for ever, as runs with answers of one length show.

Symbols:  N users
[front] requests reach the scheduler one behind the other: one process takes their text apart
"""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappop, heappush
from math import ceil, inf
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


class Load(NamedTuple):
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
    """By what measured latencies were multiples of predicted ones: 5th and 95th percentile."""

    first_token: tuple[float, float]
    token: tuple[float, float]


MISSES: Final = Misses((0.52, 2.53), (0.64, 1.55))
"""Of 1,561 runs of vLLM, SGLang and TensorRT-LLM on cards whose kernels were measured, a model on a card counting once
from eight runs [`python -m benchmarks.serving_times FILE --misses`]. Without all runs of a model such bounds hold 93
and 96 % of its runs, 83 and 85 % where every model on every card counts alike."""


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

    def _end(self, request: int) -> None:
        super()._end(request)
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
        fewer = load._replace(users=min(users, most))
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
