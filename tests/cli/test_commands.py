"""What a user of the command line meets."""

from __future__ import annotations

import json
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


def test_a_plan_that_fits_exits_zero_and_its_ledger_adds_up() -> None:
    done = vramcast("train", "llama-3.2-1b", "--gpus", "8xh100-sxm-80gb", *MEGATRON, "--json")
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    assert answer["schema"] == 1
    assert answer["fits"] is True
    for rank in answer["ranks"]:
        assert sum(entry["bytes"] for entry in rank["ledger"]) == rank["peak"]["device_bytes"]
        assert rank["peak"]["allocated_bytes"] <= rank["peak"]["reserved_bytes"] <= rank["peak"]["device_bytes"]
    low, high = answer["peak"]["interval_bytes"]
    assert low <= answer["peak"]["device_bytes"] <= high


def test_a_plan_that_does_not_fit_exits_one_and_names_changes_that_would() -> None:
    done = vramcast("train", "llama-3.1-8b", "--gpus", "h100-sxm-80gb", "--engine", "megatron", "--json")
    assert done.returncode == 1, done.stderr
    answer = json.loads(done.stdout)
    assert answer["fits"] is False
    assert answer["needed_bytes"] > answer["capacity_bytes"]
    assert answer["changes"]
    assert all(change["device_bytes"] < answer["needed_bytes"] for change in answer["changes"])


def test_the_text_report_begins_with_the_verdict() -> None:
    done = vramcast("train", "llama-3.2-1b", "--gpus", "h100", *MEGATRON, "--lang", "en")
    assert done.stdout.startswith("fits: ")
    assert "\x1b" not in done.stdout


def test_the_report_exists_in_chinese() -> None:
    done = vramcast("train", "llama-3.2-1b", "--gpus", "h100", *MEGATRON, "--lang", "zh")
    assert done.stdout.startswith("放得下")


def test_explain_gives_formula_and_source_of_entries() -> None:
    done = vramcast("train", "llama-3.2-1b", "--gpus", "h100", *MEGATRON, "--explain", "--lang", "en")
    assert "formula: " in done.stdout
    assert "source: " in done.stdout


def test_a_saved_question_asks_the_same_again(tmp_path: Path) -> None:
    path = tmp_path / "job.toml"
    first = vramcast(
        "train", "llama-3.2-1b", "--gpus", "8xh100", *MEGATRON, "--tp", "2", "--recompute-modules", "core_attn",
        "--recompute", "selective", "--save", str(path), "--json",
    )
    again = vramcast("train", "--file", str(path), "--json")
    assert first.returncode == again.returncode == 0, first.stderr + again.stderr
    assert json.loads(first.stdout) == json.loads(again.stdout)


def test_options_win_over_the_job_file(tmp_path: Path) -> None:
    path = tmp_path / "job.yaml"
    path.write_text("model: llama-3.2-1b\ngpus: 8xh100\nengine: megatron\nseq-len: 1024\n", encoding="utf-8")
    done = vramcast("train", "--file", str(path), "--seq-len", "2048", "--json")
    assert json.loads(done.stdout)["question"]["workload"]["seq_len"] == 2048


@pytest.mark.parametrize(
    ("name", "text", "code", "words"),
    [
        ("job.toml", "model = 'x'\nsequence-len = 3\n", 4, "seq-len"),
        ("job.toml", "model = ", 5, "not TOML"),
        ("job.yaml", "a: &x [1]\nb: *x\n", 4, "unknown option 'a'"),
        ("job.yaml", "- 1\n- 2\n", 5, "table of options"),
        ("job.yaml", "!!python/object/apply:os.system ['true']\n", 5, "not YAML"),
        ("job.toml", "model = 'llama-3.2-1b'\ngpus = 'h100'\ntp = true\n", 2, "tp"),
    ],
)
def test_a_bad_job_file_gets_one_sentence(tmp_path: Path, name: str, text: str, code: int, words: str) -> None:
    path = tmp_path / name
    path.write_text(text, encoding="utf-8")
    done = vramcast("train", "--file", str(path))
    assert done.returncode == code, done.stderr
    assert words in done.stderr
    assert done.stderr.count("\n") == 1


def test_layers_add_up_to_the_parameters() -> None:
    done = vramcast("layers", "llama-3.2-1b", "--json")
    answer = json.loads(done.stdout)
    assert sum(row["parameters"] * row["repeats"] for row in answer["layers"]) == answer["parameters"] == 1_235_814_400


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_prints_a_script(shell: str) -> None:
    assert "_VRAMCAST_COMPLETE" in vramcast("completion", shell).stdout


HEAVY: Final = {
    "torch", "transformers", "numpy", "rich", "yaml", "urllib.request", "http.client", "ssl", "difflib", "sqlite3",
    "multiprocessing", "vramcast.formats.read", "vramcast.formats.reading",
    "vramcast.formats.shell", "vramcast.formats.expanding", "vramcast.question.whole_command",
    "vramcast.engines.megatron", "vramcast.sources.logs", "vramcast.report.chinese",
}
"""What no everyday question needs to know."""


@pytest.mark.parametrize(("question", "most"), [
    ("train llama-3.1-8b --gpus 8xh100-sxm-80gb", 175), ("serve qwen3-32b --gpus 2xh100-sxm-80gb", 139),
    ("oom -", 73), ("models", 42), ("--help", 12),
])
def test_a_question_imports_nothing_heavy_and_little(question: str, most: int) -> None:
    code = (
        "import sys; sys.argv = ['vramcast', *sys.argv[1:]]; import runpy, io, contextlib\n"
        "try:\n"
        "    with contextlib.redirect_stdout(io.StringIO()): runpy.run_module('vramcast', run_name='__main__')\n"
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
