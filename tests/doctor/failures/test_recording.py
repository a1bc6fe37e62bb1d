"""What replay proves about a failure whose snapshot is given."""

import pytest
from msgspec.structs import replace

from tests.recordings import _made as made
from tests.recordings._made import Run, train
from tools.example_recording import EXAMPLE, fragmented
from vramcast.doctor.failures.diagnose import Given, Told, diagnosis
from vramcast.doctor.failures.recording import Recorded, proof_of
from vramcast.domain.failure import Cause, Finding, Statement
from vramcast.domain.snapshot import Frame, Snapshot, Trace
from vramcast.emit.memory_snapshot import write_snapshot
from vramcast.units import MIB


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
