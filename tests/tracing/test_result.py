"""From tapes to answers: levels, steps, ledgers that add up, and where memory runs out."""

from hypothesis import given
from hypothesis import strategies as st

from vramcast.catalogue.gpus import load_gpu
from vramcast.domain.program import Category
from vramcast.domain.snapshot import Frame
from vramcast.tracing.result import About, Run, traced
from vramcast.tracing.tape import Origin, Phase, Tape
from vramcast.units import GIB, MIB

CARD = load_gpu("t4")
STACKS = ((), (Frame("Net.forward", "/home/me/net.py", 7), Frame("<module>", "/home/me/train.py", 20)))
FORWARD = Origin(Phase.FORWARD, "layers.0.mlp", 1, 1)
SETUP = Origin(Phase.SETUP, "", 1, 1)


def answer_of(tape: Tape, **fields):
    run = Run(**({"tape": tape, "stacks": STACKS, "unseen": {}, "gpu": CARD, "capacity_bytes": CARD.visible_bytes}
                 | fields))
    return traced(run, About(name="run", question={"target": "x", "gpu": "t4"}, num_parameters=1))


def stepped(*sizes: int) -> Tape:
    """Weights of 8 MiB, then a step for each size."""
    tape = Tape()
    tape.add(8 * MIB, 0, "aten._to_copy", SETUP).category = Category.WEIGHTS
    for size in sizes:
        tape.end(tape.add(size, 0, "aten.mm.default", FORWARD))
        tape.mark("step")
    return tape


def test_a_run_without_modules_is_no_loading() -> None:
    tape = Tape()
    tape.end(tape.add(64 * MIB, 0, "aten.mm.default", SETUP))
    tape.mark("step")
    rank = answer_of(tape).answer.fullest
    assert rank.peak.allocated_bytes == 64 * MIB and "load" not in rank.phases


def by_optimizers(*marks: int) -> tuple[int, ...]:
    """Where steps end if optimizers of these numbers mark one event after the other."""
    tape = Tape()
    for number in marks:
        tape.add(512, 0, "aten.mm.default", FORWARD)
        tape.mark("step", number)
    return tape.step_ends()


def test_optimizers_that_take_turns_share_a_step() -> None:
    assert by_optimizers(1, 1, 1) == (1, 2, 3)
    assert by_optimizers(1, 2, 1, 2) == (2, 4)
    assert by_optimizers(3, 2, 1, 3, 2, 1) == (3, 6)
    assert by_optimizers(1, 1, 2, 1, 1, 2) == (3, 6)


def test_what_ran_since_the_slowest_optimizer_is_part_of_the_last_step() -> None:
    assert by_optimizers(1, 2, 2, 2) == (4,)
    assert by_optimizers(1, 2, 1, 2, 1) == (2, 5)


def test_who_says_where_a_step_ends_is_believed() -> None:
    assert by_optimizers(1, 2, 0, 1, 2, 0) == (3, 6)
    assert by_optimizers() == ()


@given(st.lists(st.tuples(st.integers(1, 40 * MIB), st.booleans()), min_size=1, max_size=30))
def test_ledgers_add_up_to_the_device_bytes(requests) -> None:
    tape = Tape()
    for size, dies in requests:
        block = tape.add(size, 0, "aten.mm", FORWARD)
        if dies:
            tape.end(block)
    answer = answer_of(tape).answer
    peak = answer.peak
    assert sum(entry.num_bytes for entry in answer.fullest.ledger) == peak.device_bytes
    assert peak.allocated_bytes <= peak.reserved_bytes <= peak.device_bytes
    low, high = answer.interval_bytes
    assert low <= peak.device_bytes <= high
    for view in ("by_module", "by_line", "by_operator"):
        held = sum(one.num_bytes for one in getattr(answer.holdings, view))
        assert held <= peak.allocated_bytes


def test_where_memory_runs_out_is_said_in_the_words_of_torch() -> None:
    found = answer_of(stepped(64 * MIB, 20 * GIB, 32 * MIB))
    failure = found.answer.failure
    assert not found.answer.fits and failure is not None
    assert (failure.step, failure.phase, failure.module) == (2, "forward", "layers.0.mlp")
    assert failure.line == "net.py:7 Net.forward"
    assert failure.message.startswith("CUDA out of memory. Tried to allocate 20.00 GiB. GPU 0 has a total capacity of")
    assert "Including non-PyTorch memory, this process has" in failure.message
    assert failure.stack == ("net.py:7 forward", "train.py:20 <module>")


def test_context_and_what_is_outside_count_against_the_card() -> None:
    assert CARD.context_bytes is not None
    room = CARD.visible_bytes - CARD.context_bytes
    whole = room // (2 * MIB) * 2 * MIB
    assert answer_of(stepped_only(whole)).answer.fits
    assert not answer_of(stepped_only(whole + 2 * MIB)).answer.fits


def stepped_only(size: int) -> Tape:
    tape = Tape()
    tape.add(size, 0, "aten.empty", FORWARD)
    return tape


def test_unknown_operators_are_listed_with_their_share_of_the_peak() -> None:
    unseen = {"aten.mm": (2, 96 * MIB), "aten.gone": (1, MIB)}
    found = answer_of(stepped(64 * MIB, 32 * MIB), unseen=unseen).answer.unknown_operators
    assert [(one.name, one.peak_bytes) for one in found] == [("aten.mm", 32 * MIB), ("aten.gone", 0)]


def test_a_run_without_steps_is_one() -> None:
    tape = Tape()
    tape.end(tape.add(MIB, 0, "aten.empty", SETUP))
    answer = answer_of(tape).answer
    assert answer.steps == 0
    assert answer.peak.allocated_bytes == MIB


def test_the_course_keeps_the_peaks() -> None:
    answer = answer_of(stepped(*[MIB] * 500, 300 * MIB, *[MIB] * 500)).answer
    assert max(point.allocated_bytes for point in answer.course) == 308 * MIB
    assert max(point.reserved_bytes for point in answer.course) >= 308 * MIB


def test_recordings_name_functions_as_torch_does() -> None:
    found = answer_of(stepped(MIB))
    assert [frame.name for frame in found.snapshot.stacks[-1]] == ["forward", "<module>"]


def test_what_a_failure_asks_for_is_what_torch_says_it_tried() -> None:
    failure = answer_of(stepped(64 * MIB, 20 * GIB + 1)).answer.failure
    assert failure is not None
    assert failure.num_bytes == 20 * GIB + 2 * MIB
    assert "Tried to allocate 20.00 GiB." in failure.message
