"""Files of any size and encoding, and streams."""

import io
from pathlib import Path

import pytest

from tests.sources.failures.test_noise import MESSAGE
from vramcast.errors import SourceError
from vramcast.sources.failures import read_failure_file


@pytest.mark.parametrize("encoding", ["utf-8", "utf-16"])
def test_the_middle_of_a_large_stream_is_left_out_and_said_so(encoding: str) -> None:
    filler = "a line of a long log without any trouble\n" * 60_000
    other = MESSAGE.replace("GPU 1", "GPU 5")
    text = f"first\n{MESSAGE}\n{filler}RuntimeError: NCCL error\n{filler}{filler}{other}\nlast\n{MESSAGE}\n"
    found = read_failure_file(io.BytesIO(text.encode(encoding)), megabytes=1)
    assert found.cut
    assert [(item.numbers["device"], item.repeats) for item in found.statements] == [(1, 2), (5, 1)]
    assert found.lines == text.count("\n")
    assert found.statements[1].line == text[: text.index("GPU 5")].count("\n") + 1


def test_facts_of_the_end_belong_to_its_statements() -> None:
    filler = "a line of a long log without any trouble\n" * 60_000
    other = MESSAGE.replace("GPU 1", "GPU 5")
    found = read_failure_file(io.BytesIO(f"{MESSAGE}\n{filler}{filler}[rank7]: {other}\n".encode()), megabytes=1)
    assert [(fact.value, fact.statement) for fact in found.context if fact.name == "rank"] == [(7, 1)]


@pytest.mark.parametrize("data", [b"", b"  \n", b"\0\1\2\3" * 100])
def test_what_is_no_text_is_an_error_that_names_it(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "odd"
    path.write_bytes(data)
    with pytest.raises(SourceError, match="odd"):
        read_failure_file(path)


def test_a_missing_file_is_an_error_that_names_it(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="nothing-here"):
        read_failure_file(tmp_path / "nothing-here")
