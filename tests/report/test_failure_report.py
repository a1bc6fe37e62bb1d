"""Diagnoses as reports show them."""

from tests.doctor.failures._statements import FRAGMENTED, stated
from vramcast.doctor.failures.diagnose import MOST_FINDINGS, Told, diagnosis
from vramcast.domain.failure import Diagnosis
from vramcast.report.failure import render
from vramcast.report.messages import Words
from vramcast.units import MIB


def ranks(count: int) -> Diagnosis:
    """As many ranks of one job fail, each with its own figures."""
    statements = tuple(
        stated(line=6 * rank, **(FRAGMENTED | {"device": rank, "free_bytes": 400 * MIB + rank}))
        for rank in range(count)
    )
    return diagnosis("train.log", Told(statements=statements))


def test_failures_beyond_the_most_that_are_explained_are_counted() -> None:
    found = ranks(MOST_FINDINGS + 3)
    assert found.left_out == 3
    assert "3 more failures of this text are not shown" in render(found, Words("en"))


def test_chinese_reports_use_chinese_punctuation() -> None:
    text = render(ranks(1), Words("zh"))
    assert "；最多省 3.87 GiB" in text and "; " not in text
