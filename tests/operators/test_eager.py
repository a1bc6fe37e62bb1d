"""Forward code without autograd: tensors die with their last reference."""

from hypothesis import given
from hypothesis import strategies as st

from vramcast.domain.program import extent
from vramcast.operators.eager import Array, Tape


def tape() -> Tape:
    return Tape("test", "none")


@given(st.integers(1, 40))
def test_a_loop_has_the_peak_of_its_rounds_written_out(count: int) -> None:
    def body(x: Array) -> tuple[Array, ...]:
        wide = looped.cast(x, 4)
        return (looped.cast(looped.add(wide), 2),)

    looped = tape()
    state = [looped.new("x", (1024,), 2)]
    looped.repeat(count, body, state)
    plain = tape()
    x = plain.new("x", (1024,), 2)
    for _ in range(count):
        wide = plain.cast(x, 4)
        x = plain.cast(plain.add(wide), 2)
        del wide
    assert extent(looped.program).peak == extent(plain.program).peak
    assert extent(looped.program).net == extent(plain.program).net
