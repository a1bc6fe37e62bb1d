"""Packed cards run out as seldom as is promised, by measured runs whose harness was left out."""

import pytest

from truth import packing
from vramcast.estimate.interval import measured_cases


def test_several_jobs_run_out_no_more_often_than_is_promised(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packing, "PROMISED", (0.01,))
    monkeypatch.setattr(packing, "TOGETHER", (5,))
    monkeypatch.setattr(packing, "DRAWS", 20)
    unseen, seen = packing.rows([case for case in measured_cases() if case.purpose == "training"])
    assert unseen.ran_out <= 0.01
    assert seen.ran_out <= 0.01
    assert unseen.ran_out_apart > 0.05  # why misses are not taken to know nothing of each other
