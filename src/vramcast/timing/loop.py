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

PASSES: Final = 1.5
"""Forwards from a question to its first token where one always runs: half of that is left on average, then its own,
into which everybody goes who came meanwhile. Of so many who wait for a first token one share goes through together."""


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
    *, users: int, answer: int, decode_s: float, users_s: float, beside_s: float, prompts: Prompts, mixed: bool,
    front_s: float = 0.0,
) -> Latency:
    """Mean latencies.

    Args:
        users: of one copy of the network [count]
        answer: tokens
        decode_s: a step of all users without prompts
        users_s: what of it grows with the users that generate; who waits for a first token adds nothing
        beside_s: what they add to a forward of prompts: their cache and products; the way of the weights is saved
        prompts: their forwards
        mixed: whether prompts and users that generate share a step
        front_s: what a first token waits for beside the card

    >>> alone = closed_loop(users=1, answer=11, decode_s=0.01, users_s=0.0, beside_s=0.0, prompts=Prompts(0.1, 1, 0.1),
    ...                     mixed=True)
    >>> round(alone.first_token_s, 3), round(alone.token_s, 3)
    (0.1, 0.01)
    """
    others, steps, chunks = users - 1, answer - 1, prompts.chunks
    first, token = prompts.one_s, decode_s
    for _ in range(ROUNDS):
        period = front_s + first + steps * token
        generate = steps * token / period  # share of the users, and of the time of one
        count = min(max(1.0, users * first / period / PASSES), prompts.most)
        together, step_s = prompts.seconds(count), decode_s - users_s * (1 - generate) * others / users
        longer = together + chunks * beside_s * generate * others / users if mixed else together
        added = max(0.0, longer - chunks * step_s) if mixed else longer
        met = others * generate / count  # forwards with prompts while one user generates
        met = min(met, steps / chunks) if mixed else met
        busy = min(1.0, others * longer / count / period)
        queue = max(0.0, others * first / period - busy / 2 - (count - 1))
        waiting = queue * longer / count + (1 - busy) * step_s / 2 * others / users
        least = users * longer / count - steps * token - front_s  # all prompts of a period
        first = (first + max(longer + waiting, least)) / 2
        token = (token + step_s + met * added / max(1, steps)) / 2
    rounds = -(-users // prompts.most)
    together_s = prompts.seconds(users) if rounds == 1 else prompts.most_s * (rounds + 1) / 2
    return Latency(front_s + first, token, front_s + together_s)
