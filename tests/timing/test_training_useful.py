"""Useful work of a step, and a loop's time."""

from collections.abc import Sequence
from itertools import pairwise

import pytest

from vramcast.blocks.parameters.layer import layer_parameters
from vramcast.blocks.parameters.model import named_parameters
from vramcast.blocks.parts import Sizes
from vramcast.catalogue.index import MODELS
from vramcast.catalogue.models import load_model
from vramcast.domain.model import MLP, Attention, Head, Layer, Model, MoE
from vramcast.timing.batching import Limits, Pool
from vramcast.timing.loop import Front, Load, closed_loop
from vramcast.timing.training.operators import forward_flops, layer_operators, output_elements
from vramcast.timing.training.parts import Operator, Shape, Style
from vramcast.timing.training.tape import taped

# Operations against weights: every model of the catalogue needs two a weight and token forward.

LENGTH = 256


def decoders() -> list[Model]:
    models = [load_model(name) for name in sorted(set(MODELS.names()))]
    return [model for model in models if len(model.stacks) == 1 and model.main.causal and model.head is Head.LM]


DECODERS = decoders()


def active_weights(model: Model) -> float:
    """Matrices of the model that a token multiplies: of E experts its k, of tables none but a tied head."""
    named = [owned for owned in named_parameters(model) if owned.parameter.kind == "matrix"]
    whole = sum(owned.parameter.elements * owned.repeats for owned in named if not owned.parameter.expert)
    chosen = sum(
        run.count * run.layer.channel.top_k * parameter.elements / run.layer.channel.num_experts
        for run in model.main.runs if isinstance(run.layer.channel, MoE)
        for parameter in layer_parameters(run.layer, hidden=model.hidden)
        if parameter.expert and parameter.kind == "matrix"
    )
    return whole + chosen + (output_elements(model) if model.tied else 0)


def in_two_steps(model: Model) -> bool:
    """DeepSeek V4, which is not timed where operators run one by one."""
    return any(isinstance(run.layer.mixer, Attention) and run.layer.mixer.out_lora_rank for run in model.main.runs)


def operator_flops(model: Model, style: Style) -> tuple[float, float]:
    """Operations of the products of all layers, one token forward and backward."""
    found = [
        (run.count * operator.flops / LENGTH, run.count * operator.backward_flops / LENGTH)
        for run in model.main.runs
        for operator in layer_operators(run.layer, hidden=model.hidden, shape=Shape(1, LENGTH), style=style)
        if operator.kind in ("product", "grouped")
    ]
    return sum(forward for forward, _ in found), sum(backward for _, backward in found)


def test_a_decoder_needs_two_operations_a_token_for_every_weight_it_meets() -> None:
    for model in DECODERS:
        found = forward_flops(model, LENGTH)
        assert found.products + found.output == pytest.approx(2 * active_weights(model), rel=5e-3), model.name


def test_operators_that_are_timed_do_six_operations_for_every_weight() -> None:
    for model in DECODERS:
        for style in [Style(), Style(sizes=Sizes(batch=1, seq_len=LENGTH, hidden=0))]:
            if style.sizes is not None and in_two_steps(model):
                continue
            forward, backward = operator_flops(model, style)
            weights = active_weights(model) - output_elements(model)
            assert forward + backward == pytest.approx(6 * weights, rel=5e-3), model.name


# Casts of float8 linears: bytes counted by hand for a layer of Llama 3 8B, and what stays in 16 bits.

HIDDEN, KEYS, WIDTH = 4096, 1024, 14336
LLAMA_8B = Layer(mixer=Attention(num_heads=32, num_kv_heads=8, head_dim=128), channel=MLP(width=WIDTH, gated=True))
COMPILED = Sizes(batch=1, seq_len=1, hidden=HIDDEN, norm="compiled", activation="compiled", rope="compiled")
WEIGHTS = 2 * HIDDEN * (HIDDEN + KEYS) + 3 * HIDDEN * WIDTH
LEAVING = HIDDEN + 2 * KEYS + HIDDEN + 2 * WIDTH + HIDDEN  # q, k, v, out, gate, up, down


def operators(kind: str, layer: Layer = LLAMA_8B) -> tuple[Operator, ...]:
    return taped(layer, COMPILED, kind)


def casts(kind: str, layer: Layer = LLAMA_8B) -> list[Operator]:
    return [operator for operator in operators(kind, layer) if operator.name == "conversion"]


def test_compiled_casts_read_an_input_once_and_attention_s_output_twice() -> None:
    found = casts("compiled")
    entering = HIDDEN + HIDDEN + HIDDEN + WIDTH  # of q, k and v; of out; of gate and up; of down
    assert sum(cast.bytes for cast in found) == 4 * entering + 2 * HIDDEN
    # what only attention reads, the values, has a gradient of attention's kernel
    assert sum(cast.backward_bytes for cast in found) == 4 * LEAVING + 2 * KEYS
    assert sum(cast.weight_bytes for cast in found) == 5 * WEIGHTS
    assert sum(cast.backward_weight_bytes for cast in found) == 3 * WEIGHTS


# A server under closed load.

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
