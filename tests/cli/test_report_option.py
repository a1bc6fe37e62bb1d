"""`--report`: one file beside what a command prints."""

import re
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from vramcast.cli.main import group
from vramcast.errors import InvalidSpec

EXAMPLES = Path(__file__).parents[2] / "docs" / "examples"
TRAIN = ("train", "llama-3.2-1b", "--gpus", "h100", "--seq-len", "1k")
SERVE = ("serve", "llama-3.1-8b", "--gpus", "h100", "--context", "8k")
COMMANDS = {
    "train": TRAIN,
    "serve": SERVE,
    "rl": ("rl", "qwen2.5-7b", "--gpus", "8xh100-sxm-80gb", "--samples", "5", "--reference"),
    "plan train": ("plan", "train", "llama-3.2-1b", "--on", "4xl40s", "--global-batch", "8", "--engine", "torchtitan"),
    "plan serve": ("plan", "serve", "llama-3.1-8b", "--on", "l40s", "--concurrency", "4", "--context", "1k"),
    "oom": ("oom", str(EXAMPLES / "oom.log"), "--checks"),
    "replay": ("replay", str(EXAMPLES / "fragmented.pickle"), "--alloc-conf", "max_split_size_mb:64", "--leaks"),
}


def run(*arguments: object) -> Result:
    return CliRunner().invoke(group, list(map(str, arguments)), standalone_mode=False)


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_writes_the_question_that_it_was_asked(tmp_path: Path, name: str) -> None:
    if name == "plan train":
        pytest.importorskip("numpy")
    path = tmp_path / "out.md"
    done = run(*COMMANDS[name], "--report", path, "--lang", "en")
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
    assert f"written: {path}" in done.stdout
    text = path.read_text(encoding="utf-8")
    asked = re.search(r"^## Question\n\n```text\n(.*?)\n```$", text, re.M | re.S)
    assert asked is not None
    assert asked[1].replace(" \\\n ", "").split() == ["vramcast", *COMMANDS[name]]


def test_a_comparison_has_no_report(tmp_path: Path) -> None:
    done = run("serve", "--reconcile", EXAMPLES / "vllm.log", "--report", tmp_path / "out.md")
    assert isinstance(done.exception, InvalidSpec) and "--reconcile" in str(done.exception)
