"""The result of a trace: parallel ranks, recomputation, costs, what is found."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from vramcast.allocator import Settings
from vramcast.catalogue.gpus import load_gpu
from vramcast.domain.program import Category
from vramcast.domain.snapshot import Frame
from vramcast.domain.trace_job import TraceJob
from vramcast.estimate.ranks import communicator_bytes
from vramcast.estimate.step_time import step_time
from vramcast.question.build import build_job
from vramcast.question.tracing import build_trace
from vramcast.sources.resolve import resolve_checkpoint
from vramcast.tracing.changes import candidates, recompute
from vramcast.tracing.finding import MOST_TRACES, find_largest
from vramcast.tracing.result import About, Run, categorise, traced
from vramcast.tracing.run import answered, run_of, trace_job
from vramcast.tracing.session import Session
from vramcast.tracing.tape import Origin, Phase, Tape, highest, play
from vramcast.tracing.targets import find_target
from vramcast.tracing.workloads import Workload
from vramcast.units import GIB, MIB

# From tapes to answers: levels, steps, ledgers that add up, and where memory runs out.

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


# Modules shared among the ranks of a job that is not there.

PARAMETERS = 8 * (1024 * 4096 * 2 + 4096 + 1024)


def sizes(parallel: str, ranks: int = 8, rank: int = 0) -> dict[str, int]:
    options = {"input": ("64x1024",), "parallel": parallel, "world-size": ranks, "rank": rank, "gpu": "a100-sxm4-80gb"}
    answer = trace_job(build_trace("tests.tracing._modules:Stack", options, arguments=["width=1024", "depth=8"])).answer
    found: dict[str, int] = {}
    for entry in answer.fullest.ledger:
        found[entry.category] = found.get(entry.category, 0) + entry.num_bytes
    assert sum(found.values()) == answer.peak.device_bytes
    assert answer.fullest.count == ranks
    return found


@pytest.mark.parametrize(("parallel", "share"), [("ddp", 1), ("fsdp", 8), ("fsdp2", 8)])
def test_each_rank_holds_its_share_of_the_states(parallel: str, share: int) -> None:
    assert sizes(parallel)[Category.OPTIMIZER] == pytest.approx(8 * PARAMETERS / share, rel=0.02)


def test_every_rank_of_fsdp_needs_the_same() -> None:
    assert sizes("fsdp2", rank=0) == sizes("fsdp2", rank=5)


def test_a_communicator_takes_memory_beside_the_allocator_once() -> None:
    options = {"input": ("64x1024",), "parallel": "ddp", "world-size": 8, "gpu": "a100-sxm4-80gb"}
    job = build_trace("tests.tracing._modules:Stack", options, arguments=["width=1024", "depth=2"])
    entries = [entry for entry in trace_job(job).answer.fullest.ledger if "NCCL" in entry.path]
    assert [entry.num_bytes for entry in entries] == [communicator_bytes(job.gpu)]


# Recomputation from a tape alone comes near what torch's own checkpointing does.

def tape_of(**options: object):
    given = {"input": ("16384x256",), "gpu": "t4", "optimizer": "sgd"} | options
    job = build_trace("tests.tracing._modules:Stack", given, arguments=["depth=12"])
    session = Session(job.gpu, settings=Settings())
    with session.active():
        Workload(job, find_target(job), session).run()
    return run_of(session, capacity_bytes=None).tape


def test_the_peak_is_within_a_layer_of_that_of_checkpointing() -> None:
    plain, real = tape_of(), tape_of(checkpoint=("blocks",))
    found = recompute(plain, categorise(plain))
    assert found is not None and found.modules == "layers.*"
    before, wanted, computed = (highest(play(tape)).allocated_bytes for tape in (plain, real, found.tape))
    assert wanted < 0.5 * before
    assert computed == pytest.approx(wanted, rel=0.1)


def test_steps_stay_where_they_are() -> None:
    plain = tape_of()
    found = recompute(plain, categorise(plain))
    assert found is not None
    assert len(found.tape.marks) == len(plain.marks) == 3
    assert found.tape.marks[-1].position <= len(found.tape.events)


def test_without_modules_that_repeat_there_is_nothing_to_recompute() -> None:
    job = build_trace("torch.nn:Linear", {"input": ("8x8",)}, arguments=["in_features=8", "out_features=8"])
    session = Session(job.gpu)
    with session.active():
        Workload(job, find_target(job), session).run()
    tape = run_of(session, capacity_bytes=None).tape
    assert recompute(tape, categorise(tape)) is None


# What operators compute and move, and a traced step's time beside that of `vramcast train`.

CUDA = {"device": "cuda"}


def last(session):
    device = session.device
    return device.tape.costs[device.tape.operations[-1]]


@pytest.mark.parametrize(("run", "kind", "flops", "moved"), [
    (lambda x: x @ x, "product", 2 * 64**3, 3 * 64 * 64 * 4),
    (lambda x: x + x[0], "pointwise", 0, (2 * 64 * 64 + 64) * 4),
    (lambda x: x.add_(1), "pointwise", 0, 2 * 64 * 64 * 4),
    (lambda x: x.zero_(), "pointwise", 0, 64 * 64 * 4),
    (lambda x: x + x[:1].expand(64, 64), "pointwise", 0, (2 * 64 * 64 + 64 * 64) * 4),
    (lambda x: x[torch.zeros(3, dtype=torch.int64, **CUDA)], "pointwise", 0, 3 * 8 + 2 * 3 * 64 * 4),
    (lambda x: x.cpu(), "wait", 0, 0),
])
def test_an_operator_reads_its_arguments_and_writes_its_results(running, run, kind, flops, moved):
    x = torch.empty(64, 64, **CUDA)
    run(x)
    found = last(running)
    assert (found.kind, found.flops, found.num_bytes) == (kind, flops, moved)


@pytest.mark.parametrize("precision", ["tf32", "ieee"])
def test_the_precision_of_products_is_read_as_torch_is_told_it_now(running, precision):
    x, image = torch.empty(64, 64, **CUDA), torch.empty(1, 64, 8, 8, **CUDA)
    kernel = torch.empty(64, 64, 3, 3, **CUDA)
    kinds = ("matmul", "conv")
    before = [torch._C._get_fp32_precision_getter("cuda", kind) for kind in kinds]
    try:
        for kind in kinds:  # what another test said of one kind stands before what is said of all
            torch._C._set_fp32_precision_setter("cuda", kind, "none")
        torch.backends.fp32_precision = precision
        for run in (lambda: x @ x, lambda: torch.conv2d(image, kernel)):
            run()
            assert last(running).dtype == {"tf32": "tf32", "ieee": "fp32"}[precision]
    finally:
        torch.backends.fp32_precision = "none"
        for kind, said in zip(kinds, before, strict=True):
            torch._C._set_fp32_precision_setter("cuda", kind, said)


def test_masked_attention_computes_half(running):
    q = torch.empty(1, 8, 256, 64, dtype=torch.bfloat16, **CUDA)
    flops = []
    for causal in (False, True):
        torch.nn.functional.scaled_dot_product_attention(q, q, q, is_causal=causal)
        flops.append(last(running).flops)
    assert flops[0] == 2 * flops[1] == 4 * 8 * 256 * 256 * 64


@pytest.mark.parametrize("in_a_row", [False, True])
def test_attention_called_directly_pairs_tokens_not_heads(running, in_a_row):
    q = torch.empty(*((600,) if in_a_row else (2, 300)), 8, 64, dtype=torch.bfloat16, requires_grad=True, **CUDA)
    offsets = torch.tensor([0, 300, 600], dtype=torch.int32).cuda() if in_a_row else None
    out = torch.ops.aten._flash_attention_forward(q, q, q, offsets, offsets, 300, 300, 0.0, True, False)[0]
    forward = last(running)
    assert forward.flops == 4 * 2 * 8 * 300 * 300 * 64 / 2
    out.sum().backward()
    costs = running.device.tape.costs
    backward = [each for each in map(costs.__getitem__, running.device.tape.operations) if each.kind == "attention"][-1]
    assert backward.flops == 2.5 * forward.flops


def test_products_and_updates_of_a_traced_step_take_as_long_as_those_of_a_built_one():
    card = load_gpu("a100-sxm4-80gb")
    traced = trace_job(TraceJob(
        target="transformers:llama-3.2-1b", gpu=card, batch=1, seq_len=2048, dtype="bf16", optimizer="adamw-fused",
    )).answer.traced_time
    built = step_time(build_job({
        "model": "llama-3.2-1b", "gpus": "1xa100-sxm4-80gb", "engine": "huggingface", "precision": "bf16",
        "seq-len": "2048", "micro-batch": "1", "optimizer": "adamw", "engine-option": ("max_grad_norm=0",),
    }, resolve=resolve_checkpoint))
    assert traced is not None
    assert traced.seconds["products"] == pytest.approx(built.seconds["products"], rel=0.03)
    assert traced.seconds["attention"] == pytest.approx(built.seconds["attention"], rel=0.03)
    assert traced.step_s == pytest.approx(built.step_s, rel=0.15)
    assert sum(traced.seconds.values()) == pytest.approx(sum(traced.modules.values())) == pytest.approx(traced.step_s)


# The largest that fits, and what would make a run fit.

STACK = "tests.tracing._modules:Stack"


def job_of(**options: object):
    return build_trace(STACK, {"gpu": "t4", "capacity": "700MiB"} | options)


@pytest.mark.parametrize("headroom", [None, 0.0])
def test_the_largest_batch_leaves_what_is_to_stay_free_and_its_successor_does_not(headroom: float | None) -> None:
    found = find_largest(job_of(input=("Bx256",), find="batch"), "batch", headroom).answer
    assert found.found is not None and found.fits
    best = found.found.value
    assert isinstance(best, int)
    step = 128 if best >= 1 << 14 else 64  # seven binary digits
    assert len(found.found.tried) == found.found.num_tried <= MOST_TRACES
    assert trace_job(job_of(input=("Bx256",), batch=best, steps=2)).answer.leaves(headroom)
    assert not trace_job(job_of(input=("Bx256",), batch=best + step, steps=2)).answer.leaves(headroom)
    assert any(f"steps of {step}" in text for text in found.assumptions)
    assert found.question["batch"] == best


def test_a_batch_is_found_from_few_traces() -> None:
    found = find_largest(job_of(input=("Bx64x256",), find="batch"), "batch", headroom=0.0).answer
    assert found.found is not None and isinstance(found.found.value, int)
    assert found.found.nearest_failing is not None
    assert found.found.nearest_failing.what == f"--batch {found.found.value + 2}"  # beyond 255 in steps of 2
    assert found.found.num_tried <= 10


def test_the_longest_sequence_is_a_multiple_of_64() -> None:
    found = find_largest(job_of(input=("2xSx256",), find="seq-len"), "seq-len").answer.found
    assert found is not None and isinstance(found.value, int)
    assert found.value % 64 == 0
    assert found.nearest_failing is not None
    assert found.nearest_failing.what == f"--seq-len {found.value + 64}"


def test_where_nothing_fits_the_smallest_is_said() -> None:
    found = find_largest(job_of(input=("Bx256",), find="batch", capacity="170MiB"), "batch").answer
    assert found.found is not None and found.found.what is None
    assert not found.fits
    assert found.found.nearest_failing is not None and found.found.nearest_failing.what == "--batch 1"


def test_every_change_offered_needs_what_a_trace_of_it_says() -> None:
    job = job_of(input=("40000x256",))
    answer = answered(job).answer
    assert not answer.fits
    changes = {change.change: change for change in answer.changes}
    assert "--amp fp16" in changes and "--checkpoint blocks" in changes
    for words, fields in (("--amp fp16", {"amp": "fp16"}), ("--checkpoint blocks", {"checkpoint": ("blocks",)})):
        again = trace_job(job_of(input=("40000x256",), steps=2, **fields)).answer
        assert (changes[words].device_bytes, changes[words].fits) == (again.fullest.needed_bytes, again.fits)
    assert all(change.device_bytes < answer.fullest.needed_bytes for change in answer.changes)
    fitting = [change.fits for change in answer.changes]
    assert fitting == sorted(fitting, reverse=True)


@pytest.mark.parametrize(("gpu", "dtype"), [("t4", "fp16"), ("v100-sxm2-32gb", "fp16"), ("a100-sxm-80gb", "bf16")])
def test_autocast_is_offered_in_the_type_that_the_card_computes_in(gpu: str, dtype: str) -> None:
    job = job_of(input=("8x256",), gpu=gpu, steps=1)
    offered = [one.words for one in candidates(job, trace_job(job).answer) if "amp" in one.fields]
    assert offered == [f"--amp {dtype}"]
