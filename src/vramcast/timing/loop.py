"""A server under closed load: so many users, each of whom asks again once an answer is complete.

Prompts wait for those before them and for the step that runs; users that generate wait for the prompts of others.
Mean values, found as a fixed point: users are spread over the time of an answer, as they are after the first round.

Symbols:  N users   D decode step   t one forward of m prompts   T time from one question of a user to the next
[MVA] Reiser and Lavenberg, JACM 1980: who arrives finds the queue of the other N - 1; with fixed service times half of
the one in service is left.
[vllm] v1/core/sched/scheduler.py: a step has the tokens of running sequences first, prompts fill what is left
[sglang] srt/managers/scheduler.py `get_next_batch_to_run`: prompts go before decoding, in a step of their own
"""

from __future__ import annotations

from typing import Final, NamedTuple

ROUNDS: Final = 100
"""Of the fixed point; it settles in ten to thirty."""


class Prompts(NamedTuple):
    """How long prompts take."""

    one_s: float  # one of them, all its chunks
    most: int  # that go through one forward together
    most_s: float  # so many
    chunks: int = 1  # forwards that one of them takes

    def seconds(self, count: float) -> float:
        """Of so many together.

        >>> Prompts(0.1, most=3, most_s=0.2).seconds(2)
        0.15000000000000002
        """
        if self.most == 1:
            return self.one_s
        return self.one_s + (self.most_s - self.one_s) * (min(count, self.most) - 1) / (self.most - 1)


class Latency(NamedTuple):
    """What users wait for."""

    first_token_s: float
    token_s: float  # between two tokens, prompts of others among them
    together_s: float  # mean time to the first token where all ask at the same moment


def closed_loop(
    *, users: int, answer: int, decode_s: float, cache_s: float, prompts: Prompts, mixed: bool
) -> Latency:
    """Mean latencies.

    Args:
        users: of one copy of the network [count]
        answer: tokens
        decode_s: a step of all users without prompts
        cache_s: what of it reads the cache: prompts in the same step save all else
        prompts: their forwards
        mixed: whether prompts and users that generate share a step

    >>> alone = closed_loop(users=1, answer=11, decode_s=0.01, cache_s=0.0, prompts=Prompts(0.1, 1, 0.1), mixed=True)
    >>> round(alone.first_token_s, 3), round(alone.token_s, 3)
    (0.1, 0.01)
    """
    others, steps = users - 1, max(1, answer - 1)
    first, token = prompts.one_s, decode_s
    for _ in range(ROUNDS):
        period = first + steps * token
        count = min(max(1.0, users * prompts.one_s / period), prompts.most)
        together = prompts.seconds(count)
        longer = together + prompts.chunks * cache_s * others / users if mixed else together
        added = max(0.0, longer - prompts.chunks * decode_s) if mixed else longer
        met = others * steps * token / period / count  # forwards with prompts while one user generates
        busy = min(1.0, others * longer / count / period)
        queue = max(0.0, others * first / period - busy / 2 - (count - 1))
        waiting = queue * longer / count + (1 - busy) * decode_s / 2 * others / users
        first = (first + longer + waiting) / 2
        token = (token + decode_s + met * added / steps) / 2
    computed = users * min(prompts.one_s, prompts.most_s / prompts.most)  # all prompts of a period
    first = max(first, computed - steps * token)
    rounds = -(-users // prompts.most)
    return Latency(first, token, prompts.seconds(users) if rounds == 1 else prompts.most_s * (rounds + 1) / 2)
