"""A server under closed load."""

from collections.abc import Sequence
from itertools import pairwise

import pytest

from vramcast.timing.batching import Limits, Pool
from vramcast.timing.loop import Front, Load, closed_loop

WEIGHTS_S, TOKEN_S, USER_S = 0.006, 2.3e-5, 2e-5
"""The weights' way, which products of few tokens hide behind; products of a token; the cache of a user."""

POOL = Pool(1 << 60, 1 << 20)


class Card:
    """Steps of so many tokens."""

    def decode(self, sequences: int, context: float) -> float:
        return max(WEIGHTS_S, TOKEN_S * sequences) + USER_S * sequences

    def mixed(self, sequences: int, context: float, chunks: Sequence[tuple[int, int]]) -> float:
        return max(WEIGHTS_S, TOKEN_S * (sequences + sum(tokens for tokens, _ in chunks))) + USER_S * sequences


SHAPES = [(32, 16), (32, 1), (128, 128), (512, 128), (1000, 1000), (8000, 100)]


@pytest.mark.parametrize("apart", [False, True])
@pytest.mark.parametrize(("prompt", "answer"), SHAPES)
def test_more_users_are_never_answered_slower_together(prompt: int, answer: int, apart: bool) -> None:
    def tokens_per_s(users: int) -> float:
        found = closed_loop(Load(users, prompt, answer), Limits(users, 8192, apart=apart), Card(), Front(5e-4), POOL)
        return users * answer / (found.first_token_s + (answer - 1) * found.token_s)

    found = [tokens_per_s(2**step) for step in range(9)]
    assert all(more >= fewer * 0.9 for fewer, more in pairwise(found))


@pytest.mark.parametrize(("prompt", "answer"), SHAPES)
def test_a_server_that_is_full_does_what_its_products_allow(prompt: int, answer: int) -> None:
    """Prompts that wait go through a forward together, as far as its tokens go; one at a time went through each."""
    users = 400
    found = closed_loop(Load(users, prompt, answer), Limits(users, 8192), Card(), Front(), POOL)
    period = found.first_token_s + (answer - 1) * found.token_s
    assert period == pytest.approx(users * (prompt * TOKEN_S + (answer - 1) * (TOKEN_S + USER_S)), rel=0.08)


def test_answers_of_one_length_keep_users_in_step_where_prompts_go_first() -> None:
    """All prompts of a round go through before anybody generates: half of them is waited for, time after time."""
    users, prompt = 64, 4096
    limits = Limits(users, 8192, apart=True)
    equal, others = (closed_loop(Load(users, prompt, 128, spread), limits, Card(), Front(), POOL)
                     for spread in (0.0, 0.1))
    assert equal.first_token_s == pytest.approx(users / 2 * prompt * TOKEN_S, rel=0.05)
    assert equal.first_token_s > 3 * others.first_token_s and equal.token_s < others.token_s


def test_ranks_wait_for_each_other_half_of_their_steps() -> None:
    """Steps are counted whether a prompt waits or not, so that it comes in the middle of them on average."""
    load, step_s = Load(8, 100, 1000), Card().decode(8, 500)
    found, plain = (closed_loop(load, Limits(8, 8192, held_steps=steps, held_prompts=9 if steps else 0), Card(),
                                Front(), POOL) for steps in (60, 0))
    assert found.first_token_s - plain.first_token_s == pytest.approx(30 * step_s, rel=0.25)


def test_users_beyond_the_cache_wait_for_those_within() -> None:
    """By Little's law: of 16 users 8 run, so that the others wait as long as an answer takes."""
    half, whole = (closed_loop(Load(16, 160, 1000), Limits(users, 8192), Card(), Front(), POOL) for users in (8, 16))
    assert half.first_token_s == pytest.approx(1000 * half.token_s, rel=0.1) and whole.first_token_s < 0.1
    scarce = closed_loop(Load(16, 160, 1000), Limits(16, 8192), Card(), Front(), Pool(4 * 1200 // 16, 16))
    assert scarce.first_token_s > half.first_token_s / 2


@pytest.mark.parametrize("held", [{"looked_every": 30}, {"held_steps": 15, "held_tokens": 8000}])
def test_prompts_that_are_passed_over_wait_for_steps_of_others(held: dict[str, int]) -> None:
    """Of 30 steps between two looks half are left on average; of those that prompts are held for all."""
    load, step_s = Load(8, 100, 1000), Card().decode(8, 500)
    found, plain = (closed_loop(load, Limits(8, 8192, apart="looked_every" in held, **own), Card(), Front(), POOL)
                    for own in (held, {}))
    assert found.first_token_s - plain.first_token_s == pytest.approx(15 * step_s, rel=0.25)
    assert found.token_s == pytest.approx(plain.token_s, rel=0.02)
