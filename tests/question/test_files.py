"""Job files read back what was written."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vramcast.api import job_of
from vramcast.question.files import read_job, save_job
from vramcast.question.options import OPTIONS

VALUES = st.one_of(
    st.booleans(), st.integers(-(2**60), 2**60), st.text(max_size=30), st.lists(st.text(max_size=10), max_size=3)
)


@given(
    st.dictionaries(st.sampled_from(sorted(OPTIONS)), VALUES, min_size=1, max_size=6),
    st.sampled_from(["job.toml", "job.TOML", "job.yaml", "job.yml", "job"]),
)
def test_a_saved_question_reads_back_equal(options: dict[str, object], name: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / name
        save_job(path, options, file=None, table=OPTIONS)
        assert read_job(path) == options


@pytest.mark.parametrize(
    ("named", "beneath", "together"),
    [
        ({"shards": "nothing"}, {"zero": 3, "tp": 2}, {"shards": "nothing", "tp": 2}),
        ({"zero": "1"}, {"shards": "everything"}, {"zero": "1"}),
        ({"grad-accum": 2}, {"global-batch": 64}, {"grad-accum": 2}),
        ({"global-batch": 64, "zero": None}, {"grad-accum": 2, "zero": 3}, {"global-batch": 64, "zero": 3}),
    ],
)
def test_what_says_the_same_in_another_way_is_not_saved_twice(
    tmp_path: Path, named: dict[str, Any], beneath: dict[str, Any], together: dict[str, Any]
) -> None:
    first, second = tmp_path / "first.toml", tmp_path / "second.yaml"
    save_job(first, {"model": "llama-3.2-1b", "gpus": "8xh100"} | beneath, file=None, table=OPTIONS)
    save_job(second, named, file=first, table=OPTIONS)
    assert read_job(second) == {"model": "llama-3.2-1b", "gpus": "8xh100"} | together
    assert job_of({}, file=second) == job_of(named, file=first)
