"""Recordings played, programs run on card and host."""

import operator
import random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional as F

from vramcast.allocator import Settings
from vramcast.catalogue.gpus import load_gpu
from vramcast.domain.snapshot import Action as Recorded
from vramcast.recordings.replay import replay
from vramcast.recordings.start import RecordedDevice
from vramcast.tracing.session import Session
from vramcast.tracing.tape import Action, Origin, Phase, Tape, play, recording

# A tape played, and the recording of the same tape.

ORIGIN = Origin(Phase.FORWARD, "", 0, 0)
CONFS = ("", "expandable_segments:True", "max_split_size_mb:64", "roundup_power2_divisions:4")
MIB = 1 << 20


def any_tape(seed: int, length: int, *, has_pools: bool = True) -> Tape:
    """Requests, frees and everything that is said beside them, in any order that is allowed."""
    draw, tape = random.Random(seed), Tape()
    live, waiting, used = [], [], set()
    for _ in range(length):
        what = draw.random()
        if what < 0.5 or not live:
            live.append(tape.add(draw.choice((1, 700, MIB, 3 * MIB, 30 * MIB)), draw.randrange(2), "aten.mm", ORIGIN))
        elif what < 0.8:
            block = live.pop(draw.randrange(len(live)))
            tape.end(block)
            if block.index in used:
                waiting.append(block)
        elif what < 0.9:
            block = draw.choice(live)
            tape.tell(Action.USE, block=block.index, number=7)
            used.add(block.index)
        elif what < 0.95 and waiting:
            tape.tell(Action.COMPLETE, block=waiting.pop(0).index)
        elif what < 0.97:
            tape.tell(Action.EMPTY_CACHE)
        elif has_pools:
            pool = len(tape.asides) + 1
            tape.tell(Action.BEGIN_POOL, number=pool)
            live.append(tape.add(5 * MIB, 0, "aten.mm", ORIGIN))
            tape.tell(Action.END_POOL, number=pool)
            tape.tell(Action.RELEASE_POOL, number=pool)
    return tape


def of_recording(tape: Tape, conf: str, capacity_bytes: int | None):
    return recording(
        tape, stacks=((),), labels=[""] * len(tape.blocks), name="any", settings=Settings.parse(conf),
        capacity_bytes=capacity_bytes, alloc_conf=conf,
    )


@settings(max_examples=150, deadline=None)
@given(
    st.integers(0, 1 << 30), st.integers(1, 120), st.sampled_from(CONFS), st.sampled_from((None, 120 * MIB, 600 * MIB))
)
def test_a_recording_holds_what_playing_says(seed, length, conf, capacity_bytes):
    tape = any_tape(seed, length)
    played = play(tape, settings=Settings.parse(conf), capacity_bytes=capacity_bytes)
    recorded = of_recording(tape, conf, capacity_bytes).devices[0]
    actions = list(recorded.trace.actions)
    assert (Recorded.OOM in actions) == (played.failure is not None)
    answered = actions.count(Recorded.ALLOC) + actions.count(Recorded.FREE_REQUESTED)
    assert answered == len(played.allocated)
    taken = _reserved(recorded.trace)
    assert taken == list(played.reserved)


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 1 << 30), st.integers(1, 80), st.sampled_from(CONFS))
def test_a_recording_replayed_is_the_tape_played(seed, length, conf):
    tape = any_tape(seed, length, has_pools=False)  # a recording does not say when a pool loses its last user
    played, recorded = play(tape, settings=Settings.parse(conf)), of_recording(tape, conf, None)
    replayed = replay(RecordedDevice(recorded, recorded.devices[0]))
    asked = [
        at for at, action in enumerate(recorded.devices[0].trace.actions)
        if action in (Recorded.ALLOC, Recorded.FREE_REQUESTED)
    ]
    assert [replayed.allocated[at] for at in asked] == list(played.allocated)
    assert replayed.addresses_matched == replayed.allocations


def _reserved(trace):
    """After every request and free, what segment events add up to."""
    found, now = [], 0
    for at in range(len(trace)):
        action, size = trace.actions[at], trace.sizes[at]
        if action in (Recorded.ALLOC, Recorded.FREE_REQUESTED):
            found.append(now)
        elif action in (Recorded.SEGMENT_ALLOC, Recorded.SEGMENT_MAP):
            now += size
        elif action in (Recorded.SEGMENT_FREE, Recorded.SEGMENT_UNMAP):
            now -= size
    return found


# Random small programs: on simulated tensors they give the shapes, types and strides that real ones give.

SIZE = 6
UNARY = {
    name: getattr(torch, name)
    for name in ("exp", "sin", "tanh", "relu", "sigmoid", "abs", "square", "neg", "log1p", "round", "isnan", "clone")
} | {"gelu": F.gelu, "silu": F.silu, "half": torch.Tensor.half, "int": torch.Tensor.int, "double": torch.Tensor.double}
BINARY = {name: getattr(operator, name) for name in ("add", "sub", "mul", "truediv", "lt", "eq", "matmul")} | {
    "maximum": torch.maximum, "where": lambda a, b: torch.where(a > b, a, b), "cat": lambda a, b: torch.cat((a, b), 0),
    "stack": lambda a, b: torch.stack((a, b)), "lerp": lambda a, b: torch.lerp(a, b, 0.5),
    "linear": F.linear, "mse": F.mse_loss, "outer": lambda a, b: a.unsqueeze(-1) * b.unsqueeze(-2),
}
REDUCTIONS = {
    "sum": lambda x: x.sum(-1), "mean": lambda x: x.mean(0, keepdim=True), "amax": lambda x: x.amax(-1),
    "all": lambda x: x.all(), "argmax": lambda x: x.argmax(-1), "std": lambda x: x.std(), "max": lambda x: x.max(-1)[0],
    "logsumexp": lambda x: x.logsumexp(-1), "softmax": lambda x: x.softmax(-1), "cumsum": lambda x: x.cumsum(0),
    "norm": lambda x: x.norm(), "prod": lambda x: x.prod(0), "var_mean": lambda x: torch.var_mean(x, 0)[1],
    "sort": lambda x: x.sort(-1)[0], "topk": lambda x: x.topk(2, -1)[0],
}
VIEWS = {
    "transpose": lambda x: x.transpose(0, -1), "slice": lambda x: x[1:], "step": lambda x: x[..., ::2],
    "flatten": lambda x: x.flatten(), "unsqueeze": lambda x: x.unsqueeze(0),
    "expand": lambda x: x[:1].expand(3, *x[0].shape),
    "reshape": lambda x: x.transpose(0, -1).reshape(-1), "select": lambda x: x[0], "flip": lambda x: x.flip(0),
    "contiguous": lambda x: x.transpose(0, -1).contiguous(), "roll": lambda x: x.roll(1, 0),
    "index": lambda x: x[torch.zeros(2, dtype=torch.long, device=x.device)], "tril": torch.tril,
    "diagonal": torch.diagonal,
    "pad": lambda x: F.pad(x, (1, 2)), "repeat": lambda x: x.repeat(2, *[1] * (x.dim() - 1)),
    "gather": lambda x: x.gather(0, torch.zeros_like(x, dtype=torch.long)), "detach": torch.Tensor.detach,
}
IN_PLACE = {
    "add_": lambda x: x.clone().add_(1), "mul_": lambda x: x.clone().mul_(2), "zero_": lambda x: x.clone().zero_(),
    "fill": lambda x: _written(x, 1), "masked": lambda x: x.clone().masked_fill_(x > 0, 0),
    "copy_": lambda x: x.clone().copy_(x),
    "relu_": lambda x: x.clone().relu_(), "index_add": lambda x: x.clone().index_add_(0, _first(x), x[:1]),
}
ONE = {**UNARY, **REDUCTIONS, **VIEWS, **IN_PLACE}


def _written(x, value):
    x = x.clone()
    x[0] = value
    return x


def _first(x):
    return torch.zeros(1, dtype=torch.long, device=x.device)


steps = st.one_of(
    st.tuples(st.sampled_from(sorted(ONE)), st.integers(0, 3), st.just(0)),
    st.tuples(st.sampled_from(sorted(BINARY)), st.integers(0, 3), st.integers(0, 3)),
)
programs = st.lists(steps, min_size=1, max_size=8)


def step(values, name, first, second):
    return ONE[name](values[first]) if name in ONE else BINARY[name](values[first], values[second])


def start(device):
    x = torch.rand(SIZE, SIZE, device=device, requires_grad=True)
    return [x, x.detach() + 1, x.sum(-1), x.detach()[:, :3].double()]


def accepted(program):
    """The steps that real tensors take."""
    values, taken = start("cpu"), []
    for name, first, second in program:
        try:
            out = step(values, name, first, second)
        except (RuntimeError, IndexError, TypeError, ValueError):
            continue
        values = [*values[1:], out]
        taken.append((name, first, second))
    return taken


def ran(program, device):
    """Layouts of all results and of the gradient of what can be summed."""
    values, seen = start(device), []
    x = values[0]
    for name, first, second in program:
        out = step(values, name, first, second)
        seen.append((name, tuple(out.shape), out.dtype, out.stride(), out.storage_offset(), out.requires_grad))
        values = [*values[1:], out]
    total = sum(value.double().sum() for value in values if value.requires_grad)
    if isinstance(total, torch.Tensor):
        total.backward()
        seen.append(None if x.grad is None else (tuple(x.grad.shape), x.grad.dtype, x.grad.stride()))
    return seen


@pytest.mark.filterwarnings("ignore:Using a target size")
@settings(max_examples=60, deadline=None)
@given(programs)
def test_programs_give_on_a_simulated_card_what_they_give_on_the_host_and_free_all_they_took(program):
    program, session = accepted(program), Session(load_gpu("a100-sxm4-80gb"))
    with session.active():
        simulated = ran(program, "cuda")
        left = torch.cuda.memory_allocated()
    spaces = sum(block.num_bytes for block in session.device.workspaces.values())
    assert left <= spaces + 512 * len(session.device.workspaces)
    assert simulated == ran(program, "cpu")
