"""A server under closed load."""

from itertools import pairwise

import pytest

from vramcast.timing.loop import Prompts, closed_loop


@pytest.mark.parametrize("mixed", [True, False])
@pytest.mark.parametrize("cache_share", [0.2, 1.0])
@pytest.mark.parametrize(("answer", "prompts"), [
    (128, Prompts(0.02, 16, 0.16)), (128, Prompts(0.2, 1, 0.2, chunks=4)), (2000, Prompts(0.005, 80, 0.2)),
    (16, Prompts(0.006, 256, 0.19)), (1, Prompts(0.006, 256, 0.19)),
])
def test_more_users_are_never_answered_slower_together(
    answer: int, prompts: Prompts, cache_share: float, mixed: bool
) -> None:
    def tokens_per_s(users: int) -> float:
        grown, front_s = 2e-5 * (users - 1), 5e-4 * users
        found = closed_loop(
            users=users, answer=answer, decode_s=0.005 + grown, users_s=grown, beside_s=cache_share * grown,
            prompts=prompts, mixed=mixed, front_s=front_s)
        return users * answer / (found.first_token_s + (answer - 1) * found.token_s)

    found = [tokens_per_s(int(1.2**step)) for step in range(1, 42)]  # up to 1,700 users
    assert all(more >= fewer * (1 - 2e-3) for fewer, more in pairwise(found))


WEIGHTS_S, TOKEN_S, USER_S = 0.006, 2.3e-5, 2e-5
"""The weights' way, which products of few tokens hide behind; products of a token; the cache of a user."""


@pytest.mark.parametrize(("prompt", "answer"), [(32, 16), (32, 1), (128, 128), (512, 128), (1000, 1000), (8000, 100)])
def test_a_server_that_is_full_does_what_its_products_allow(prompt: int, answer: int) -> None:
    """Prompts that wait go through a forward together, as far as its tokens go; one at a time went through each."""
    users, most = 800, max(1, 8192 // prompt)
    prompts = Prompts(max(WEIGHTS_S, TOKEN_S * prompt), most, max(WEIGHTS_S, TOKEN_S * prompt * most))
    found = closed_loop(
        users=users, answer=answer, decode_s=users * (TOKEN_S + USER_S), users_s=users * (TOKEN_S + USER_S) - WEIGHTS_S,
        beside_s=users * (TOKEN_S + USER_S), prompts=prompts, mixed=True)
    period = found.first_token_s + (answer - 1) * found.token_s
    assert period == pytest.approx(users * (prompt * TOKEN_S + (answer - 1) * (TOKEN_S + USER_S)), rel=0.08)
