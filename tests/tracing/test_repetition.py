"""When a script has shown enough."""

from __future__ import annotations

from itertools import count

import pytest

from vramcast.tracing.script_watch import MOST_STEPS, QUIET_STEPS, Repetition, Step

MIB = 1 << 20
PLAIN = "stopped after 3 optimizer steps"


def run(step_of, *, least=3):
    """The steps until a run is steady, and what is said of them."""
    repetition = Repetition()
    for number in count(1):
        repetition.add("optimizer", step_of(number))
        if number >= least and repetition.is_steady:
            return number, repetition.end_after(number)
    raise AssertionError


def test_equal_steps_are_enough_once_the_optimizer_has_its_states():
    requested = [200, 100, 100]
    assert run(lambda number: Step(requested[number - 1] * MIB, 30 * MIB, (60 + (number > 1)) * MIB)) == (3, PLAIN)


def test_a_loss_printed_now_and_then_makes_no_difference():
    assert run(lambda number: Step(100 * MIB + 512 * (number % 2), 30 * MIB, 60 * MIB)) == (3, PLAIN)


def test_steps_that_differ_go_on_until_a_while_brought_no_new_peak():
    sizes = [10, 20, 15, 40, 30, *[12, 18] * 10]
    steps, said = run(lambda number: Step(sizes[number - 1] * MIB, 5 * MIB, max(sizes[:number]) * MIB))
    assert steps == 4 + QUIET_STEPS and f"the last {QUIET_STEPS} brought no new peak" in said


def test_what_every_step_leaves_behind_is_told():
    steps, said = run(lambda number: Step(100 * MIB, (30 + 4 * number) * MIB, (60 + 4 * number) * MIB))
    assert steps <= QUIET_STEPS + 1 and "each of which leaves 4.00 MiB more allocated" in said


def test_a_run_that_rises_for_ever_ends_and_says_so():
    steps, said = run(lambda number: Step(100 * MIB * number, 30 * MIB, 60 * MIB * number))
    assert steps == MOST_STEPS and "may take more" in said


@pytest.mark.parametrize("steps", [3, 30])
def test_several_optimizers_each_repeat_for_themselves(steps):
    repetition = Repetition()
    for _ in range(steps):
        repetition.add("generator", Step(50 * MIB, 30 * MIB, 90 * MIB))
        repetition.add("discriminator", Step(80 * MIB, 30 * MIB, 90 * MIB))
    assert repetition.is_steady and repetition.end_after(3) == PLAIN
