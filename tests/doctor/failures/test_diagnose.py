"""Whole failures, read and told; and what a recording adds."""

from math import isnan

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from tests.doctor.failures._statements import FRAGMENTED, sizes, stated
from tests.recordings import _made as made
from tests.recordings._made import Run, train
from tools.example_recording import EXAMPLE, fragmented
from vramcast import diagnose
from vramcast.doctor.failures.case import Facts
from vramcast.doctor.failures.diagnose import Given, Told, diagnosis, joined
from vramcast.doctor.failures.recording import Recorded, proof_of
from vramcast.domain.failure import Cause, Finding, Statement
from vramcast.domain.snapshot import Frame, Snapshot, Trace
from vramcast.emit.memory_snapshot import write_snapshot
from vramcast.report.failure import diagnosis_document, headline, render
from vramcast.report.messages import LANGUAGES, Words
from vramcast.sources.failures import FAMILIES, NUMBERS
from vramcast.units import GIB, MIB

# Statements of a text as findings; nothing that a text can hold raises.

PHASES = ("backward", "optimizer", "load", "generate", "loader", "attention", "loss", "capture", "checkpoint")
SIZES = st.integers(-(1 << 70), 1 << 70) | st.integers(0, 1 << 38) | st.floats() | st.text(max_size=5)


@st.composite
def statements(draw: st.DrawFn) -> Statement:
    names = st.sampled_from(list(NUMBERS))
    return Statement(
        family=draw(st.sampled_from([*FAMILIES, "", "unheard-of"])), wording=draw(st.text(max_size=8)),
        text=draw(st.sampled_from(["", "KV cache", "DataLoader worker", "gallocr_reserve", "pin memory", "{x}"])),
        line=draw(st.integers(1, 10**9)), numbers=draw(st.dictionaries(names, SIZES, max_size=10)),
    )


@st.composite
def surroundings(draw: st.DrawFn) -> Facts:
    return Facts(
        phases=frozenset(draw(st.sets(st.sampled_from(PHASES)))),
        steps=tuple(draw(st.lists(st.integers(0, 10**9), max_size=3))),
        torch=draw(st.sampled_from([(), (1, 4), (2, 3), (2, 13)])), fraction=draw(st.none() | st.floats(0, 1)),
        words=frozenset(draw(st.sets(st.sampled_from(["leak", "gpu_memory_utilization", "fsdp", "deepspeed"])))),
    )


@settings(deadline=None, max_examples=100, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(statements(), max_size=3), surroundings())
def test_any_statement_has_a_diagnosis_and_a_report_in_every_language(told: list[Statement], facts: Facts) -> None:
    found = diagnosis("x", Told(statements=tuple(told), whole=facts), Given(every_check=True))
    assert bool(found.findings) == bool(told)
    for finding in found.findings:
        assert 0 <= finding.confidence <= 1
        numbers = (value for value in finding.statement.numbers.values() if isinstance(value, (int, float)))
        figures = [value for value in numbers if not isnan(value)]
        for fix in finding.fixes:
            assert fix.saves_bytes is None or 0 <= fix.saves_bytes <= max(figures)
    assert diagnosis_document(found)["schema"] == 1
    for language in LANGUAGES:
        assert render(found, Words(language))


def test_echoes_of_a_failure_are_one_finding() -> None:
    first = stated(line=10, **FRAGMENTED)
    echo = stated(text="torch.OutOfMemoryError: CUDA out of memory.", line=40)
    again = stated(line=80, **FRAGMENTED)
    ((index, kept),) = joined((first, echo, again))
    assert (index, kept.repeats) == (0, 2)


def test_a_failure_without_figures_far_from_others_stands_alone() -> None:
    assert len(joined((stated(line=10, **FRAGMENTED), stated(text="CUDA error: out of memory", line=5000)))) == 2


def test_ranks_that_fail_with_other_figures_are_findings_of_their_own() -> None:
    other = FRAGMENTED | {"device": 1, "free_bytes": 1 << 20}
    assert len(joined((stated(line=1, **FRAGMENTED), stated(line=2, **other)))) == 2


def test_tensorflows_request_and_the_dump_far_behind_it_are_one_failure() -> None:
    asked = replace(stated("tensorflow", **sizes(tried=2.38)), wording="bfc-ran-out")
    dump = stated("tensorflow", line=390, **sizes(limit=13.68, allocated=13.21))
    found = diagnosis("x", Told(statements=(asked, dump))).findings
    assert len(found) == 1 and {"tried_bytes", "limit_bytes"} <= set(found[0].statement.numbers)


TABLE = """| NVIDIA-SMI 410.48                 Driver Version: 410.48                    |
|   0  Tesla V100-SXM2...  On   | 00000000:00:08.0 Off |                    0 |
| N/A   54C    P0   246W / 300W |  15514MiB / 16130MiB |    100%      Default |
|   1  Tesla V100-SXM2...  On   | 00000000:00:09.0 Off |                    0 |
| N/A   38C    P0    39W / 300W |      0MiB / 16130MiB |      0%      Default |
"""


def test_a_table_beside_a_failure_without_figures_does_not_hide_it_and_speaks_for_others() -> None:
    (finding,) = diagnose(TABLE + "\nRuntimeError: CUDA error: out of memory\n").findings
    assert (finding.statement.family, finding.cause) == ("torch-cuda", Cause.OTHER_PROCESS)
    idle = TABLE.replace("15514MiB", "    0MiB")
    assert diagnose(idle + "\nRuntimeError: CUDA error: out of memory\n").findings[0].cause is Cause.TOO_BIG


def test_a_table_alone_is_no_failure() -> None:
    table = stated("nvidia-smi", total_bytes=40 * GIB, used_bytes=38 * GIB)
    (finding,) = diagnosis("x", Told(statements=(table,))).findings
    assert (finding.cause, finding.detail) == (Cause.UNKNOWN, "no_failure")
    assert headline(finding, Words("en")).startswith("no failure in this text")
    assert not any(remark.key == "why.second" for remark in finding.why)


# What replay proves about a failure whose snapshot is given.

def test_the_example_of_the_documents_is_this_recording() -> None:
    assert EXAMPLE.read_bytes() == write_snapshot(fragmented())


def test_a_snapshot_alone_is_diagnosed() -> None:
    snapshot = fragmented()
    found = diagnosis(snapshot.name, Told(), Given(snapshot=snapshot))
    assert [finding.cause for finding in found.findings] == [Cause.FRAGMENTED]


BARE = "torch.OutOfMemoryError: CUDA out of memory."


def bare(**numbers: int) -> Statement:
    """A message without the figures that a snapshot has."""
    return Statement(family="torch-cuda", wording="bare", text=BARE, line=1, numbers=dict(numbers))


def trained(*, fails_in: tuple[Frame, ...], trains: bool = True) -> Snapshot:
    """A process of 64 MiB that ran out of memory; of a training run, or of one that only runs a model."""
    run = Run(capacity_bytes=64 * MIB)
    if trains:
        train(run, 2)
    held = [run.make(9 * MIB, made.FORWARD) for _ in range(3)]
    assert run.request(50 * MIB, stack=fails_in) is None
    assert held
    return run.dump()


def finding_of(statement: Statement, snapshot: Snapshot) -> Finding:
    return diagnosis("-", Told(statements=(statement,)), Given(snapshot=snapshot)).findings[0]


def test_a_message_of_another_kind_of_memory_gets_no_figures_of_the_card() -> None:
    host = Statement(family="host", wording="bad-alloc", text="std::bad_alloc", line=1)
    assert finding_of(host, fragmented()).statement.numbers == {}


@pytest.mark.parametrize("frames", [made.FORWARD, made.BACKWARD, made.STEP])
def test_a_run_that_trains_is_not_advised_to_run_for_inference(frames: tuple[Frame, ...]) -> None:
    """Neither by a message with its snapshot nor by the snapshot alone, wherever in a step it failed."""
    snapshot = trained(fails_in=frames)
    told = diagnosis(snapshot.name, Told(), Given(snapshot=snapshot)).findings[0]
    for finding in (told, finding_of(bare(), snapshot)):
        keys = {fix.action.key for fix in finding.fixes}
        assert finding.cause is Cause.TOO_BIG and "fix.checkpointing" in keys
        assert not {"fix.inference_mode", "fix.quantised_load"} & keys


def test_of_several_devices_the_one_that_ran_out_is_looked_at() -> None:
    full, other = fragmented(), Run()
    for _ in range(100):
        other.drop(other.make(MIB))
    devices = (other.dump().devices[0], replace(full.devices[0], device=1))
    remarks = proof_of(Recorded(replace(full, devices=devices))).remarks
    assert [remark.values["device"] for remark in remarks if remark.key == "proof.failed"] == ["1"]


def test_a_saving_is_against_the_same_replay_and_not_against_the_cache_of_the_past() -> None:
    """What was live before is laid out anew under every setting, also under that of the recording."""
    run = Run()
    old = [run.make(9 * MIB) for _ in range(40)]
    for handle in old[1::2]:
        run.drop(handle)
    first = len(run.trace)
    run.drop(run.make(MIB))
    assert proof_of(Recorded(run.dump(first))).fixes == ()


def test_a_failed_replay_proves_nothing() -> None:
    snapshot = trained(fails_in=made.FORWARD)
    device = snapshot.devices[0]
    segment = device.segments[0]
    blocks = tuple(replace(block, size_bytes=2 * block.size_bytes, is_free=False) for block in segment.blocks)
    events = {name: getattr(device.trace, name)[-1:] for name in Trace.__struct_fields__}
    broken = replace(device, segments=(replace(segment, blocks=blocks),), trace=Trace(**events))
    proof = proof_of(Recorded(replace(snapshot, devices=(broken,))))
    assert proof.fixes == () and "proof.not_replayed" in {remark.key for remark in proof.remarks}
