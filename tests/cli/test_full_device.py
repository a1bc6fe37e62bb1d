"""A full disk ends in one sentence, and leaves nothing half written."""

import resource
import subprocess
import sys
from pathlib import Path

import pytest

RUN = [sys.executable, "-B", "-m", "vramcast"]  # bytecode that is cut off at a limit would stay
TRAIN = ["train", "llama-3.2-1b", "--gpus", "h100"]
FULL = Path("/dev/full")

pytestmark = pytest.mark.skipif(not FULL.exists(), reason="no device that is always full")


@pytest.mark.parametrize(
    "arguments",
    [TRAIN, [*TRAIN, "--json"], ["serve", "qwen3-8b", "--gpus", "h100"], ["gpus"], ["--help"], ["layers", "gpt2"],
     ["train", "--help"], ["completion", "bash"]],
    ids=" ".join,
)
def test_output_that_cannot_be_written_is_said(arguments: list[str]) -> None:
    with FULL.open("w") as full:
        done = subprocess.run([*RUN, *arguments], stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert done.returncode == 5
    assert "No space left on device" in done.stderr
    assert done.stderr.count("\n") == 1


def test_where_nobody_can_be_told_the_code_says_it() -> None:
    with FULL.open("w") as full:
        assert subprocess.run([*RUN, *TRAIN], stdout=full, stderr=full, check=False).returncode == 5
        assert subprocess.run([*RUN, "train", "gpt2", "--gpus", "no"], stderr=full, check=False).returncode == 4
        assert subprocess.run([*RUN, "train", "--no"], stderr=full, check=False).returncode == 2


def small_files() -> None:
    """No file may grow beyond a kilobyte from here on, as where a disk is full."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (1024, 1024))


WRITERS = {
    "--write": ["plan", "train", "llama-3.2-1b", "--on", "h100", "--top", "1", "--engine", "pytorch",
                "--micro-batch", "1", "--recompute", "none", "--global-batch", "8", "--write", "OUT"],
    "--report": [*TRAIN, "--report", "OUT.html"],
    "sweep": ["sweep", "many.toml", "--out", "OUT.csv"],
}


@pytest.mark.parametrize("name", WRITERS)
def test_nothing_is_left_half_written(name: str, tmp_path: Path) -> None:
    (tmp_path / "many.toml").write_text(
        '[defaults]\ncommand = "train"\ngpus = "h100"\nmodel = "gpt2"\n[axes]\nmicro-batch = [1, 2, 3, 4, 5, 6, 7, 8]\n'
    )
    done = subprocess.run(
        [*RUN, *WRITERS[name]], cwd=tmp_path, preexec_fn=small_files, capture_output=True, text=True, check=False
    )
    assert done.returncode == 5, done.stderr
    assert not [one for one in tmp_path.rglob("*") if one.suffix != ".journal" and one.name != "many.toml"]
