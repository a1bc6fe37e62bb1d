"""Script of integers say what programs do, and playing them leaves out only what can change nothing."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vramcast.allocator import Settings
from vramcast.api import job_of
from vramcast.domain.job import Phase
from vramcast.domain.program import Alloc, Category, Free, Loop, Node, Program, Tensor, events, live_at_end
from vramcast.estimate.script import LONG, Script, unrolled
from vramcast.estimate.timeline import simulate, simulated_in_full
from vramcast.estimate.training import rank_programs
from vramcast.units import MIB

SIZES = (0, 1, 700 << 10, MIB, 3 * MIB, 8 * MIB, 12 * MIB + 5, 33 * MIB)
CONFS = ("", "expandable_segments:True", "max_split_size_mb:128")

QUESTIONS = (
    ("llama-3.2-1b", "t4", {"seq_len": 512}),
    ("gpt2", "t4", {"seq_len": 512, "grad_accum": 4}),
    ("qwen2.5-0.5b", "2xrtx-3090", {"engine": "huggingface", "peft": "lora", "seq_len": 768}),
    ("llama-3.2-1b", "2xa100-sxm4-80gb", {"engine": "torchtitan", "shards": "everything", "seq_len": 2048}),
    ("llama-3.2-1b", "4xh100-sxm-80gb", {"engine": "megatron", "pp": "2", "grad_accum": "8", "seq_len": 1024}),
    ("llama-3.2-1b", "2xt4", {"engine": "deepspeed", "zero": "3", "seq_len": 512}),
)


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


@settings(max_examples=150)
@given(st.lists(programs(), min_size=1, max_size=2), st.sampled_from(CONFS))
def test_a_script_has_the_marks_of_its_program_event_by_event(drawn: list[Program], conf: str) -> None:
    phases = dict(zip((Phase.FIRST_STEP, Phase.STEP), drawn, strict=False))
    assert simulate(phases, alloc_conf=conf) == simulated_in_full(phases, Settings.parse(conf), None)


def test_a_round_that_can_only_repeat_the_one_before_changes_no_mark() -> None:
    passing = [tensor(size * MIB) for size in range(LONG // 2)]
    body = tuple(node for one in passing for node in (Alloc(one), Free(one)))
    phases = {Phase.FIRST_STEP: (Loop(2, body),), Phase.STEP: (Loop(2, body), Alloc(tensor(50 * MIB)))}
    assert simulate(phases) == simulated_in_full(phases, Settings(), None)


def live_at_peak(program: Program) -> dict[Tensor, int]:
    """Event by event, every round of every loop."""
    live: dict[Tensor, int] = {}
    highest: dict[Tensor, int] = {}
    now = peak = 0
    for one, is_allocated in events(program, steady_repeats=1 << 30):
        live[one] = live.get(one, 0) + (1 if is_allocated else -1)
        now += one.block_bytes if is_allocated else -one.block_bytes
        if now > peak:
            peak, highest = now, dict(live)
    return highest


@given(programs(), programs())
def test_a_script_knows_what_lives_at_a_peak_in_the_order_of_its_program(first: Program, step: Program) -> None:
    before = [*first, *(node for node in step if isinstance(node, Loop))]  # a step finds tensors that it knows
    live = live_at_end(tuple(before))
    for one, count in live_at_peak(step).items():
        live[one] = live.get(one, 0) + count
    script = Script({Phase.FIRST_STEP: tuple(before), Phase.STEP: step})
    assert list(script.live_at_peak(Phase.STEP).items()) == [(one, count) for one, count in live.items() if count]


@given(programs())
def test_a_script_lists_the_events_of_its_program(program: Program) -> None:
    run = Script({Phase.STEP: program}).run
    told = [(run.requests[max(code, ~code)][0], code >= 0) for code in unrolled(run, run.phases[0])]
    assert told == [(t.num_bytes, is_allocation) for t, is_allocation in events(program) if t.num_bytes]


@pytest.mark.parametrize(("model", "gpus", "options"), QUESTIONS, ids=lambda value: str(value)[:20])
def test_jobs_have_the_marks_of_the_full_allocator(model: str, gpus: str, options: dict[str, object]) -> None:
    given_options = {name.replace("_", "-"): value for name, value in options.items()}
    job = job_of({"model": model, "gpus": gpus} | given_options)
    for role in rank_programs(job):
        conf = role.alloc_conf
        assert simulate(role.phases, alloc_conf=conf) == simulated_in_full(role.phases, Settings.parse(conf), None)


def test_runs_that_differ_in_the_names_of_phases_alone_have_their_own_phases() -> None:
    program = (Alloc(tensor(3 * MIB)),)
    assert list(simulate({Phase.LOAD: program})) == [Phase.LOAD]
    assert list(simulate({Phase.STEP: program})) == [Phase.STEP]
