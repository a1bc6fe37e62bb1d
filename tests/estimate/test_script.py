"""Script of integers say what programs do, and playing them leaves out only what can change nothing."""

from hypothesis import given
from hypothesis import strategies as st

from vramcast.domain.job import Phase
from vramcast.domain.program import Alloc, Category, Free, Loop, Node, Program, Tensor, events
from vramcast.estimate.script import Script, unrolled
from vramcast.units import MIB

SIZES = (0, 1, 700 << 10, MIB, 3 * MIB, 8 * MIB, 12 * MIB + 5, 33 * MIB)


def tensor(num_bytes: int, stream: str = "") -> Tensor:
    return Tensor(name="t", num_bytes=num_bytes, category=Category.ACTIVATIONS, stream=stream)


@st.composite
def programs(draw: st.DrawFn) -> Program:
    """What a step does to memory: layers of kept and passing tensors forward, freed backward, micro-batches around."""
    drawn = [tensor(draw(st.sampled_from(SIZES)), draw(st.sampled_from(["", "", "side"]))) for _ in range(6)]
    kept, passing = drawn[:3], drawn[3:]
    forward: list[Node] = []
    for one in draw(st.permutations([*kept, *passing, *passing])):  # the second time a passing tensor is freed
        is_alive = one in passing and any(node.tensor is one for node in forward if isinstance(node, Alloc))
        forward.append(Free(one) if is_alive else Alloc(one))
    backward = [*map(Alloc, passing[:1]), *map(Free, draw(st.permutations(kept))), *map(Free, passing[:1])]
    layers = draw(st.integers(1, 30))
    step = (Loop(layers, tuple(forward)), Loop(layers, tuple(backward)))
    left = tensor(draw(st.sampled_from(SIZES)))
    return (Alloc(left), Loop(draw(st.integers(1, 5)), step), *((Free(left),) if draw(st.booleans()) else ()))


@given(programs())
def test_a_script_lists_the_events_of_its_program(program: Program) -> None:
    run = Script({Phase.STEP: program}).run
    told = [(run.requests[max(code, ~code)][0], code >= 0) for code in unrolled(run, run.phases[0])]
    assert told == [(t.num_bytes, is_allocation) for t, is_allocation in events(program) if t.num_bytes]
