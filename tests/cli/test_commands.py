"""What a user of the command line meets."""

import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

from tests.cli.asking import vramcast
from vramcast.cli.main import COMMANDS

MEGATRON = ["--engine", "megatron", "--seq-len", "2k"]


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_explains_itself(name: str) -> None:
    done = vramcast(name, "--help")
    assert done.returncode == 0
    assert "Usage:" in done.stdout


def test_the_report_exists_in_chinese() -> None:
    done = vramcast("train", "llama-3.2-1b", "--gpus", "h100", *MEGATRON, "--lang", "zh")
    assert done.stdout.startswith("放得下")


def test_explain_gives_formula_and_source_of_entries() -> None:
    done = vramcast("train", "llama-3.2-1b", "--gpus", "h100", *MEGATRON, "--explain", "--lang", "en")
    assert "formula: " in done.stdout
    assert "source: " in done.stdout


@pytest.mark.parametrize(("name", "text", "code", "words"), [
    ("job.toml", "model = 'x'\nsequence-len = 3\n", 4, "seq-len"),
    ("job.toml", "model = ", 5, "not TOML"),
    ("job.yaml", "a: &x [1]\nb: *x\n", 4, "unknown option 'a'"),
    ("job.yaml", "- 1\n- 2\n", 5, "table of options"),
    ("job.yaml", "!!python/object/apply:os.system ['true']\n", 5, "not YAML"),
    ("job.toml", "model = 'llama-3.2-1b'\ngpus = 'h100'\ntp = true\n", 2, "tp"),
])
def test_a_bad_job_file_gets_one_sentence(tmp_path: Path, name: str, text: str, code: int, words: str) -> None:
    path = tmp_path / name
    path.write_text(text, encoding="utf-8")
    done = vramcast("train", "--file", str(path))
    assert done.returncode == code, done.stderr
    assert words in done.stderr
    assert done.stderr.count("\n") == 1


HEAVY: Final = {
    "torch", "transformers", "numpy", "rich", "yaml", "urllib.request", "http.client", "ssl", "difflib", "sqlite3",
    "multiprocessing", "vramcast.formats.read", "vramcast.formats.reading",
    "vramcast.formats.shell", "vramcast.formats.expanding", "vramcast.question.whole_command",
    "vramcast.engines.megatron", "vramcast.sources.logs", "vramcast.report.chinese",
}
"""What no everyday question needs to know."""


@pytest.mark.parametrize(("question", "most"), [
    ("train llama-3.1-8b --gpus 8xh100-sxm-80gb", 130), ("serve qwen3-32b --gpus 2xh100-sxm-80gb", 129),
    ("oom -", 69), ("models", 41), ("--help", 9),
])
def test_a_question_imports_nothing_heavy_and_little(question: str, most: int) -> None:
    code = (
        "import sys; sys.argv = ['vramcast', *sys.argv[1:]]; import vramcast.cli, io, contextlib\n"
        "try:\n"
        "    with contextlib.redirect_stdout(io.StringIO()): from vramcast.cli.main import main; main()\n"
        "except SystemExit: pass\n"
        "print(*sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, *question.split()], capture_output=True, text=True, timeout=180, check=False,
        input="torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.",
    )
    loaded = set(done.stdout.split())
    assert "vramcast.cli.main" in loaded and not HEAVY & loaded, sorted(HEAVY & loaded) or done.stderr
    own = [name for name in loaded if name.startswith("vramcast.")]
    assert len(own) <= most, f"{len(own)} modules: each takes time before the answer"
