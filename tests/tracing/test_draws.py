"""Numbers that seeded generators give on a card: those that people have printed."""

import pytest
import torch

from vramcast.catalogue.gpus import load_gpu
from vramcast.tracing import draws
from vramcast.tracing.session import Session

SEED_0 = [0.3990, 0.5167, 0.0249, 0.9401, 0.9459]  # torch.rand(5): pytorch issue 47347
SEED_10 = [-0.1029, 1.6810, -0.2708]  # torch.randn(3): pytorch issue 79496
SEED_42 = {  # torch.randn(1, 64, 2048) by place, on a card of 28 multiprocessors: pytorch issue 158398
    (0, 0): 0.1940, (0, 1): 2.1614, (0, -1): -0.8932, (1, 0): -0.4574, (2, 2): -0.9147, (61, 0): -0.4861,
    (62, 1): 0.8339, (63, 0): -1.2356, (63, -1): -0.0282,
}


@pytest.fixture
def card():
    session = Session(load_gpu("h100-sxm-80gb"))
    with session.active():
        yield session


def test_uniform_numbers_are_those_of_the_card(card):
    torch.manual_seed(0)
    assert torch.rand(5, device="cuda").tolist() == pytest.approx(SEED_0, abs=5e-5)


def test_normal_numbers_are_those_of_the_card_whoever_holds_the_generator(card):
    torch.manual_seed(10)
    mine = torch.Generator(device="cuda").manual_seed(10)
    assert torch.randn(3, device="cuda").tolist() == pytest.approx(SEED_10, abs=5e-5)
    assert torch.randn(3, device="cuda", generator=mine).tolist() == pytest.approx(SEED_10, abs=5e-5)


def test_a_second_tensor_goes_on_where_the_first_one_stopped(card):
    torch.manual_seed(42)  # torch.nn.Linear(1, 1) on the card: mrdbourke/pytorch-deep-learning issue 759
    first, second = (torch.rand(1, device="cuda").item() * 2 - 1 for _ in range(2))
    assert (first, second) == pytest.approx((0.2259, 0.9754), abs=5e-5)


def test_large_tensors_depend_on_the_multiprocessors():
    state = draws.State(42, 0, multiprocessors=28, threads=1536)
    numbers = draws.normal(64 * 2048, state).view(64, 2048)
    assert {place: pytest.approx(numbers[place].item(), abs=5e-5) for place in SEED_42} == SEED_42
    other = draws.normal(64 * 2048, state._replace(multiprocessors=132)).view(64, 2048)
    assert other[0, 0] == numbers[0, 0] and other[63, 0] != numbers[63, 0]


def test_the_generator_moves_on_with_what_operators_draw(card):
    generator = torch.cuda.default_generators[0]
    torch.manual_seed(1)
    torch.empty(132 * 2048 * 4 + 1, device="cuda").normal_()  # one more than all threads draw at once
    assert generator.get_offset() == 8
    torch.nn.functional.dropout(torch.ones(10, device="cuda"))
    assert generator.get_offset() == 12
    torch.rand(132 * 2048 * 2 + 1, dtype=torch.float64, device="cuda")
    assert generator.get_offset() == 20
    torch.ones(1000, device="cuda").bernoulli_(torch.ones(1000, device="cuda"))
    assert generator.get_offset() == 32


def test_states_are_kept_and_set(card):
    torch.manual_seed(-3)
    torch.rand(2, device="cuda")
    state = torch.cuda.get_rng_state()
    drawn = torch.rand(2, device="cuda").tolist()
    torch.cuda.set_rng_state(state)
    assert torch.rand(2, device="cuda").tolist() == drawn and state.numel() == 16


def test_integers_lie_in_their_range_and_bf16_keeps_its_bounds():
    state = draws.State(7, 4, multiprocessors=108, threads=2048)
    numbers = draws.integers(10_000, -3, 5, state)
    assert set(numbers.tolist()) == set(range(-3, 5))
    assert draws.uniform(100_000, state, torch.bfloat16).max() < 1


def test_a_router_of_random_weights_chooses_the_experts_that_it_chooses_on_the_card(card):
    torch.manual_seed(42)
    chosen = torch.randn(16, 8, device="cuda").topk(2).indices
    with_numbers = draws.normal(128, draws.State(42, 0, multiprocessors=132, threads=2048)).view(16, 8)
    tokens = [torch.where(chosen == expert)[0].numel() for expert in range(8)]
    assert tokens == torch.bincount(with_numbers.topk(2).indices.flatten(), minlength=8).tolist()
