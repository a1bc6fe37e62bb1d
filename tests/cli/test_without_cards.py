"""A question without --gpus: which cards hold it, the smallest first, with what they cost."""

import json
from pathlib import Path

import pytest

from tests.cli.asking import vramcast


def test_the_table_has_a_line_per_card() -> None:
    found = vramcast("serve", "qwen3-8b", "--context", "4k", "--weights", "fp8")
    assert "the fewest of each card that hold qwen3-8b" in found.stdout and "  1xl4 " in found.stdout
    assert " USD " in found.stdout and max(map(len, found.stdout.splitlines())) <= 140


def test_nothing_large_enough_says_what_is_nearest() -> None:
    found = vramcast("serve", "deepseek-v3", "--dtype", "fp32", "--tp", "1", "--dp", "1", "--context", "1k")
    assert found.returncode == 1 and "nothing that was looked at holds deepseek-v3" in found.stdout


def test_what_a_command_leaves_to_the_cards_is_asked_of_each() -> None:
    """Ollama's num_ctx follows the memory of the cards."""
    rows = json.loads(vramcast("serve", "--json", "--", "ollama", "run", "llama3.1:8b").stdout)["cards"]
    needed = {row["gpus"]: row["needed_bytes"] for row in rows}
    assert needed["1xrtx-4060"] < needed["1xl40s"]  # 4,096 tokens and 32,768


def test_cards_of_a_job_file_are_no_question(tmp_path: Path) -> None:
    file = tmp_path / "job.toml"
    file.write_text('model = "qwen3-0.6b"\ngpus = "rtx-4090"\n')
    assert "on 1xrtx-4090" in vramcast("train", "--file", str(file)).stdout


@pytest.mark.parametrize("option", ["--save", "--snapshot", "--report", "--write"])
def test_files_of_a_plan_need_its_cards(option: str, tmp_path: Path) -> None:
    found = vramcast("train", "qwen3-0.6b", option, str(tmp_path / "it.html"))
    assert found.returncode == 2 and "which GPUs?" in found.stderr


def test_a_wrong_question_is_refused_as_with_cards() -> None:
    found = vramcast("train", "nosuch")
    assert found.returncode == 4 and "unknown model 'nosuch'" in found.stderr
