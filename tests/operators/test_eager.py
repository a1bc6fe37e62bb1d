"""Forward code without autograd: tensors die with their last reference."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from vramcast.domain.program import extent, live_at_end
from vramcast.operators.eager import Array, Tape


def tape() -> Tape:
    return Tape("test", "none")


def test_a_tensor_is_freed_when_its_variable_is_bound_anew() -> None:
    run = tape()
    x = run.new("x", (1024,), 2)
    for _ in range(5):
        x = run.add(x)
    assert extent(run.program).peak == 2 * 2048
    del x
    assert not live_at_end(run.program)


def test_a_view_keeps_the_storage() -> None:
    run = tape()
    x = run.new("x", (1024,), 2)
    half = x.chunk(2)[0]
    del x
    assert sum(live_at_end(run.program).values()) == 1
    del half
    assert not live_at_end(run.program)


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


def test_quantised_products_unpack_their_weight_for_the_product_only() -> None:
    run = Tape("test", "none", dequantises=True)
    y = run.linear(run.new("x", (1, 64), 2), 4096, "up")
    assert y.shape == (1, 4096)
    assert extent(run.program).peak == 512 + 64 * 4096 * 2 + 4096 * 2
    assert sum(tensor.block_bytes for tensor in live_at_end(run.program)) == 4096 * 2


