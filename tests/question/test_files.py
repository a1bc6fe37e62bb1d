"""Job files read back what was written."""

import tempfile
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

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
