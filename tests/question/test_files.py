"""Job files read back what was written."""

from __future__ import annotations

import tempfile
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from vramcast.question.files import read_job, write_job
from vramcast.question.options import OPTIONS

VALUES = st.one_of(
    st.booleans(), st.integers(-(2**60), 2**60), st.text(max_size=30), st.lists(st.text(max_size=10), max_size=3)
)


@given(st.dictionaries(st.sampled_from(sorted(OPTIONS)), VALUES, max_size=6))
def test_a_written_job_reads_back_equal(options: dict[str, object]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "job.toml"
        write_job(path, options)
        assert read_job(path) == options
