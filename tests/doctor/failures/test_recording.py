"""What replay proves about a failure whose snapshot is given."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from tests.doctor.failures._statements import FRAGMENTED, stated
from tests.recordings import _made as made
from tests.recordings._made import Run, train
from tools.example_recording import EXAMPLE, SECOND, fragmented
from vramcast.doctor.failures.diagnose import Given, Told, diagnosis
from vramcast.doctor.failures.recording import Recorded, proof_of
from vramcast.domain.failure import Cause, Finding, Statement
from vramcast.domain.snapshot import Frame, Snapshot, Trace
from vramcast.emit.memory_snapshot import write_snapshot
from vramcast.report.failure import render
from vramcast.report.messages import Words
from vramcast.units import GIB, MIB


def test_the_example_of_the_documents_is_this_recording() -> None:
    assert EXAMPLE.read_bytes() == write_snapshot(fragmented())


def test_a_snapshot_alone_is_diagnosed() -> None:
    snapshot = fragmented()
    found = diagnosis(snapshot.name, Told(), Given(snapshot=snapshot))
    assert [finding.cause for finding in found.findings] == [Cause.FRAGMENTED]


def test_a_setting_that_does_not_help_is_not_offered_as_one_that_does() -> None:
    # nothing in this process is split twice: blocks of 1040 MiB are larger than any limit, and 756 MiB would not be
    # put into them at all, so that a limit on splitting helps; rounding up does not
    fixes = {fix.setting.partition("=")[2]: fix for fix in proof_of(Recorded(fragmented())).fixes}
    assert not any(fix.enough for conf, fix in fixes.items() if conf.startswith("roundup_power2_divisions"))


def test_a_message_and_its_snapshot_give_cause_and_proof_together() -> None:
    found = diagnosis("-", Told(statements=(stated(**FRAGMENTED),)), Given(snapshot=fragmented()))
    finding = found.findings[0]
    assert finding.cause is Cause.FRAGMENTED and finding.fixes[0].shown_by == "replay"
    assert "shown by replay" in render(found, Words("en"))
    settings = [fix.setting for fix in finding.fixes if fix.setting]
    assert len(set(settings)) == len(settings)


def test_a_setting_that_avoids_it_in_the_replay_makes_fragmentation_nearly_certain() -> None:
    snapshot = fragmented()
    weak = stated(**(FRAGMENTED | {"reserved_bytes": FRAGMENTED["allocated_bytes"] + 600 * MIB}))
    alone = diagnosis("-", Told(statements=(weak,))).findings[0]
    proved = diagnosis("-", Told(statements=(weak,)), Given(snapshot=snapshot)).findings[0]
    assert alone.cause is not Cause.FRAGMENTED or alone.confidence < proved.confidence
    assert proved.cause is Cause.FRAGMENTED
    assert "why.replay_avoids" in {remark.key for remark in proved.why}


def test_with_a_replay_no_setting_is_offered_that_was_not_replayed_nor_another_recording() -> None:
    finding = diagnosis("-", Told(statements=(stated(**FRAGMENTED),)), Given(snapshot=fragmented())).findings[0]
    assert all(fix.shown_by == "replay" for fix in finding.fixes if "ALLOC_CONF" in fix.setting)
    assert "fix.record" not in {fix.action.key for fix in finding.fixes}


def test_a_setting_under_which_it_fails_as_well_saves_nothing() -> None:
    # such a run ends early and holds less for that reason alone
    assert all(fix.enough for fix in proof_of(Recorded(fragmented())).fixes)


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


def test_what_the_message_says_itself_stays() -> None:
    numbers = finding_of(bare(total_bytes=15 * GIB, free_bytes=7 * MIB), fragmented()).statement.numbers
    assert (numbers["total_bytes"], numbers["free_bytes"]) == (15 * GIB, 7 * MIB)
    assert numbers["allocated_bytes"] == sum(SECOND)


def test_a_snapshot_of_another_failure_adds_no_figures_and_says_so() -> None:
    finding = finding_of(bare(tried_bytes=300 * MIB), fragmented())
    assert "allocated_bytes" not in finding.statement.numbers
    assert "proof.other_failure" in {remark.key for remark in finding.why}


def test_a_message_of_another_kind_of_memory_gets_no_figures_of_the_card() -> None:
    host = Statement(family="host", wording="bad-alloc", text="std::bad_alloc", line=1)
    assert finding_of(host, fragmented()).statement.numbers == {}


def test_a_text_that_tells_nothing_leaves_the_word_to_its_snapshot() -> None:
    found = diagnosis("-", Told(lines=3), Given(snapshot=fragmented()))
    assert [finding.statement.family for finding in found.findings] == ["torch-snapshot"]


@pytest.mark.parametrize("frames", [made.FORWARD, made.BACKWARD, made.STEP])
def test_a_run_that_trains_is_not_advised_to_run_for_inference(frames: tuple[Frame, ...]) -> None:
    """Neither by a message with its snapshot nor by the snapshot alone, wherever in a step it failed."""
    snapshot = trained(fails_in=frames)
    told = diagnosis(snapshot.name, Told(), Given(snapshot=snapshot)).findings[0]
    for finding in (told, finding_of(bare(), snapshot)):
        keys = {fix.action.key for fix in finding.fixes}
        assert finding.cause is Cause.TOO_BIG and "fix.checkpointing" in keys
        assert not {"fix.inference_mode", "fix.quantised_load"} & keys


def test_where_nothing_says_that_it_trains_both_are_advised() -> None:
    snapshot = trained(fails_in=made.FORWARD, trains=False)
    finding = diagnosis(snapshot.name, Told(), Given(snapshot=snapshot)).findings[0]
    assert {"fix.inference_mode", "fix.checkpointing"} <= {fix.action.key for fix in finding.fixes}


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
