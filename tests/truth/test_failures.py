"""Diagnoses beside what threads say: the page of disagreements is current."""

import pytest

from truth.failures import DISAGREEMENTS, ROOT, document, judgements, readings
from vramcast.domain.failure import Cause

ROWS = ROOT.parent / "shared" / "truth" / "oom_messages.jsonl"
needs_rows = pytest.mark.skipif(not ROWS.is_file(), reason="needs the collected messages")


def test_every_reading_names_a_cause_or_says_why_none() -> None:
    for reading in readings().values():
        assert reading.why and (not reading.cause or Cause(reading.cause))


@needs_rows
def test_the_page_of_disagreements_is_current() -> None:
    assert DISAGREEMENTS.read_text(encoding="utf-8") == document(list(judgements(ROWS)))


@needs_rows
def test_every_message_is_recognised() -> None:
    assert [item.message for item in judgements(ROWS) if not item.cause] == []
