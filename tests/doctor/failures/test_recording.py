"""What replay proves about a failure whose snapshot is given."""

from __future__ import annotations

from tests.doctor.failures._statements import FRAGMENTED, stated
from tools.example_recording import EXAMPLE, FIRST, FREE, SECOND, TRIED, fragmented
from vramcast.doctor.failures.diagnose import Given, Told, diagnosis
from vramcast.doctor.failures.recording import Recorded, proof_of
from vramcast.domain.failure import Cause
from vramcast.emit.memory_snapshot import write_snapshot
from vramcast.report.failure import render
from vramcast.report.messages import Words
from vramcast.units import MIB


def test_an_event_has_the_figures_that_a_message_would_have() -> None:
    (statement,) = Recorded(fragmented()).statements
    numbers = statement.numbers
    assert numbers["tried_bytes"] == TRIED and numbers["free_bytes"] == FREE
    assert numbers["allocated_bytes"] == sum(SECOND) == 10_588 * MIB
    assert numbers["reserved_bytes"] == sum(FIRST) == 14_550 * MIB
    assert numbers["unallocated_bytes"] == 3_962 * MIB


def test_the_example_of_the_documents_is_this_recording() -> None:
    assert EXAMPLE.read_bytes() == write_snapshot(fragmented())


def test_a_snapshot_alone_is_diagnosed() -> None:
    snapshot = fragmented()
    found = diagnosis(snapshot.name, Told(), Given(snapshot=snapshot))
    assert [finding.cause for finding in found.findings] == [Cause.FRAGMENTED]


def test_expandable_segments_are_proved_to_avoid_it() -> None:
    first = proof_of(Recorded(fragmented())).fixes[0]
    assert "expandable_segments:True" in first.setting
    assert (first.shown_by, first.enough) == ("replay", True)


def test_a_setting_that_does_not_help_is_not_offered_as_one_that_does() -> None:
    # nothing in this process is split twice: blocks of 1040 MiB are larger than any limit, and 756 MiB would not be
    # put into them at all, so that a limit on splitting helps; rounding up does not
    fixes = {fix.setting.partition("=")[2]: fix for fix in proof_of(Recorded(fragmented())).fixes}
    assert not any(fix.enough for conf, fix in fixes.items() if conf.startswith("roundup_power2_divisions"))


def test_the_line_that_holds_most_is_named() -> None:
    remarks = proof_of(Recorded(fragmented())).remarks
    lines = [remark.values["line"] for remark in remarks if remark.key == "proof.holder"]
    assert lines == ["model.py:31 forward"]


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
