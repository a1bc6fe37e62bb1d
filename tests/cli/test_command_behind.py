"""The command of another tool behind "--": it is the question, and questions are repeated with it."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest

from tests.cli.asking import vramcast

VLLM = ("vllm", "serve", "Qwen/Qwen3-8B", "-tp", "2", "--max-model-len", "16384")


def asked(*arguments: str) -> dict[str, object]:
    found = vramcast(*arguments, "--json")
    assert found.returncode in (0, 1), found.stderr
    return dict(json.loads(found.stdout))


def behind(*words: str, command: str = "serve", gpus: str = "h100") -> dict[str, object]:
    options = shlex.split(f"{command} --gpus {gpus} --json")
    found = vramcast(*options, "--", *words)
    assert found.returncode in (0, 1), found.stderr
    return dict(json.loads(found.stdout))


def test_it_is_read_as_a_script_of_one_line_is(tmp_path: Path) -> None:
    script = tmp_path / "serve.sh"
    script.write_text(" ".join(VLLM), encoding="utf-8")
    one, other = behind(*VLLM, gpus="2xh100"), asked("serve", "--gpus", "2xh100", "--from", str(script))
    assert one["question"] == other["question"] and one["peak"] == other["peak"]


@pytest.mark.parametrize(("words", "gpus"), [
    (VLLM, "2xh100-sxm-80gb"), (("vllm", "serve", "Qwen/Qwen3-8B", "-tp", "2", "-pp", "2"), "4xh100-sxm-80gb"),
    (("vllm", "serve", "Qwen/Qwen3-8B", "-tp", "4", "-pp", "2", "--nnodes", "2"), "2x4xh100-sxm-80gb"),
    (("vllm", "serve", "Qwen/Qwen3-8B"), "1xh100-sxm-80gb"),
])
def test_a_card_without_a_number_stands_for_as_many_as_the_command_starts(words: tuple[str, ...], gpus: str) -> None:
    question = behind(*words)["question"]
    assert isinstance(question, dict) and question["gpus"] == gpus


def test_a_number_of_cards_stays(tmp_path: Path) -> None:
    question = behind(*VLLM, gpus="1x4xh100")["question"]
    assert isinstance(question, dict) and question["gpus"] == "4xh100-sxm-80gb"


def test_variables_before_the_command_are_its_environment() -> None:
    assumed = behind("VLLM_USE_V1=0", *VLLM)["assumptions"]
    assert isinstance(assumed, list) and any("v1=false" in line for line in assumed)


def test_it_is_saved_with_the_question_and_read_again(tmp_path: Path) -> None:
    job = tmp_path / "job.toml"
    first = vramcast("serve", "--gpus", "h100", "--save", str(job), "--", *VLLM)
    assert first.returncode == 0 and vramcast("serve", "--file", str(job)).stdout == first.stdout


def test_a_search_starts_from_it() -> None:
    options = shlex.split("--on 2xh100 --concurrency 8 --tp 2 --weights stored")
    found = vramcast("plan", "serve", *options, "--", *VLLM)
    assert found.returncode == 0 and "Qwen/Qwen3-8B" in found.stdout, found.stderr


@pytest.mark.parametrize(("words", "said"), [
    ((), "nothing stands behind --"), (("ls", "-l"), "the command: none of"),
    (("vllm", "serve", "m", "--max-model-len"), "max_model_len"), (("vllm serve 'm -tp 2",), "quot"),
])
def test_what_is_no_command_gets_a_sentence(words: tuple[str, ...], said: str) -> None:
    found = vramcast("serve", "--gpus", "h100", "--", *words)
    assert found.returncode > 1 and said in found.stderr


def test_a_default_version_is_said_and_one_that_is_named_is_not() -> None:
    assert "vllm@0.19: its defaults" in vramcast("serve", "--gpus", "h100", "--", *VLLM).stdout
    assert "its defaults" not in vramcast("serve", "--gpus", "h100", "--engine", "vllm@0.8.5", "--", *VLLM).stdout
