"""Lines of files as they are found: encodings, colours, sizes, files that are no logs."""

from pathlib import Path

import pytest

from tests.sources.logs.samples import FOLDER, gib, sample
from vramcast.errors import SourceError
from vramcast.sources.logs import read_log
from vramcast.sources.logs import wording as lines
from vramcast.sources.logs.wording import LogLine, log_lines


def lines_of(path: Path) -> list[LogLine]:
    return [line for found in log_lines(path) for line in found]


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-16-le", "utf-16-be"])
@pytest.mark.parametrize("newline", ["\n", "\r\n"])
def test_encodings_and_line_ends_of_any_shell_are_read(tmp_path: Path, encoding: str, newline: str) -> None:
    path = tmp_path / "x.log"
    path.write_bytes(sample("vllm-v1").replace("\n", newline).encode(encoding))
    assert read_log(path).ranks == read_log(FOLDER / "vllm-v1.log").ranks


def test_bytes_that_are_no_utf8_do_not_hide_the_rest(tmp_path: Path) -> None:
    path = tmp_path / "x.log"
    path.write_bytes(b"caf\xe9 \xff\xfe\n" + sample("vllm-v0").encode())
    assert read_log(path).ranks[0].num_bytes["kv cache"] == gib(24.17)


def test_colours_are_taken_out(tmp_path: Path) -> None:
    path = tmp_path / "x.log"
    path.write_text("\x1b[1;36mred\x1b[0;0m #033[1;36mblue#033[0;0m ^[[0mgreen\n", encoding="utf-8")
    assert lines_of(path)[0].text == "red blue green\n"


def test_an_endless_line_is_cut_and_the_next_one_read(tmp_path: Path) -> None:
    path = tmp_path / "x.log"
    path.write_text("a" * (3 * lines.LONGEST_LINE + 5) + "\nb\n", encoding="utf-8")
    found = lines_of(path)
    assert [len(line.text) for line in found] == [lines.LONGEST_LINE, 2]
    assert found[1] == LogLine(2, "b\n")


def test_an_endless_log_is_cut_and_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lines, "LARGEST_LOG", 10_000)
    path = tmp_path / "x.log"
    path.write_text(sample("vllm-v0") + "x\n" * 100_000, encoding="utf-8")
    assert read_log(path).cut
    assert not read_log(FOLDER / "vllm-v0.log").cut


def test_a_missing_file_and_a_folder_get_one_sentence(tmp_path: Path) -> None:
    for path in (tmp_path / "none.log", tmp_path):
        with pytest.raises(SourceError, match=path.name):
            read_log(path)
