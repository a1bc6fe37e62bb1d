"""States and step temporaries against published numbers and properties."""


import pytest
from msgspec.structs import replace

from vramcast.domain.program import extent, live_at_end
from vramcast.errors import InvalidSpec, UnknownName
from vramcast.states.optimizers import OPTIMIZERS, optimizer
from vramcast.states.steps import Weight, state_program, step_program

MATRIX = Weight("decoder.layers", "mlp.up", (14336, 4096), repeats=32)
NORM = Weight("decoder.layers", "norm", (4096,), repeats=64)


N = 4096 * 4096


@pytest.mark.parametrize(("name", "shape", "width", "size"), [
    ("adamw", (4096, 4096), 4, 8 * N), ("adamw-8bit", (4096, 4096), 4, 2 * N + 2 * 4 * N // 256),
    ("adamw-8bit", (4095,), 4, 2 * 4 * 4095), ("paged-adamw-8bit", (4096, 4096), 4, 0),
    ("adafactor", (1000, 500), 4, 4 * 1500), ("galore:128", (1024, 4096), 2, 2 * (2 * 128 * 4096 + 128 * 1024)),
    ("galore:100000", (64, 32), 4, 4 * (2 * 32 * 64 + 32 * 32)), ("lomo", (4096, 4096), 4, 0),
    ("adam-mini", (64, 32), 4, 4 * (64 * 32 + 64)), ("adam-mini", (64,), 4, 4 * 65),
    ("flash-adamw", (64, 32), 2, 3 * 64 * 32 + 2 * 2 * 64), ("flash-adamw", (64, 32), 4, 2 * 64 * 32 + 2 * 2 * 64),
    ("adamw-te-remainders", (64, 32), 4, 12 * 64 * 32),
    ("muon", (4096,), 4, 8 * 4096), ("muon", (64, 64), 4, 4 * 64 * 64),
])
def test_states_take_what_their_papers_and_packages_say(
    name: str, shape: tuple[int, ...], width: int, size: int
) -> None:
    assert optimizer(name).state_bytes(shape, width=width) == size


EMBEDDING = Weight("embedding", "embedding.tokens", (32_000, 4096), kind="embedding")


def test_a_trainers_8_bit_states_of_embeddings_have_32_bits() -> None:
    rule = replace(optimizer("adamw-8bit"), wide_embeddings=True)
    assert rule.state_bytes((4096, 4096)) == optimizer("adamw-8bit").state_bytes((4096, 4096))
    held = sum(state.num_bytes for state in rule.state_tensors(EMBEDDING.shape, width=2, kind="embedding"))
    assert held == 8 * EMBEDDING.elements


def test_narrow_weights_are_stepped_in_fp32_where_the_code_says_so() -> None:
    assert sum(optimizer("adafactor").temporaries((64, 64), width=4)) == 2 * 4 * 64 * 64
    assert sum(optimizer("adafactor").temporaries((64, 64), width=2)) == 4 * 4 * 64 * 64


def test_foreach_adamw_makes_a_copy_of_everything_and_fused_nothing() -> None:
    weights = [MATRIX, NORM]
    total = sum(weight.num_bytes * weight.repeats for weight in weights)
    assert extent(step_program(weights, optimizer("adamw"))).peak == total
    # the root and its quotient, and the denominator of the equal weight before
    assert extent(step_program(weights, optimizer("adamw"), kernel="loop")).peak == 3 * MATRIX.num_bytes
    assert step_program(weights, optimizer("adamw"), kernel="fused") == ()


@pytest.mark.parametrize("name", sorted(OPTIMIZERS))
def test_steps_free_what_they_make_and_states_stay(name: str) -> None:
    rule = optimizer(name)
    for kernel in ("foreach", "fused", "loop"):
        assert not live_at_end(step_program([MATRIX, NORM], rule, kernel=kernel))
    states = live_at_end(state_program([MATRIX, NORM], rule))
    expected = sum(rule.state_bytes(weight.shape) * weight.repeats for weight in (MATRIX, NORM))
    assert sum(tensor.num_bytes * count for tensor, count in states.items()) == expected


def test_unknown_optimizers_name_the_nearest() -> None:
    with pytest.raises(UnknownName, match="adamw"):
        optimizer("adamww")


@pytest.mark.parametrize("name", ["galore:0", "galore:-1", "galore:x", "galore:9999999999"])
def test_bad_ranks_are_refused(name: str) -> None:
    with pytest.raises(InvalidSpec, match="galore:128"):
        optimizer(name)
