"""The command of another tool behind "--": it is the question, and questions are repeated with it."""

import json
import shlex
from pathlib import Path

import pytest

from tests.cli.asking import vramcast

VLLM = ("vllm", "serve", "Qwen/Qwen3-8B", "-tp", "2", "--max-model-len", "16384")


def behind(*words: str, command: str = "serve", gpus: str = "h100") -> dict[str, object]:
    options = shlex.split(f"{command} --gpus {gpus} --json")
    found = vramcast(*options, "--", *words)
    assert found.returncode in (0, 1), found.stderr
    return dict(json.loads(found.stdout))


def test_a_number_of_cards_stays(tmp_path: Path) -> None:
    question = behind(*VLLM, gpus="1x4xh100")["question"]
    assert isinstance(question, dict) and question["gpus"] == "4xh100-sxm-80gb"


@pytest.mark.parametrize(("words", "said"), [
    ((), "nothing stands behind --"), (("ls", "-l"), "the command: no tool that is read"),
    ((*VLLM, "--gpus", "4090"), "gpus: is an option of vramcast; put --gpus before --"),
    (("--gpus", "4090"), "put --gpus before --"),
    (("vllm", "serve", "m", "--max-model-len"), "max_model_len"), (("vllm serve 'm -tp 2",), "quot"),
])
def test_what_is_no_command_gets_a_sentence(words: tuple[str, ...], said: str) -> None:
    found = vramcast("serve", "--gpus", "h100", "--", *words)
    assert found.returncode > 1 and said in found.stderr


def test_a_script_that_a_command_starts_is_read_with_its_arguments(tmp_path: Path) -> None:
    script = tmp_path / "serve.sh"
    script.write_text("vllm serve Qwen/Qwen3-8B --max-model-len $1 -tp $TP\n")
    for words in ((f"{script}", "4096"), ("bash", f"{script}", "4096"), ("sbatch", f"{script}", "4096")):
        found = behind("TP=2", *words)["question"]
        assert isinstance(found, dict) and found["gpus"] == "2xh100-sxm-80gb" and "'context': 4096" in str(found), found
    lost = vramcast("serve", "--gpus", "h100", "--", "bash", "elsewhere/run.sh")
    assert lost.returncode > 1 and "elsewhere/run.sh, which is not here; give it with --from" in lost.stderr


def test_a_default_version_is_said_and_one_that_is_named_is_not() -> None:
    assert "vllm@0.19: its defaults" in vramcast("serve", "--gpus", "h100", "--", *VLLM).stdout
    assert "its defaults" not in vramcast("serve", "--gpus", "h100", "--engine", "vllm@0.8.5", "--", *VLLM).stdout


def test_variables_count_behind_env_too() -> None:
    old = behind("env", "VLLM_USE_V1=0", *VLLM)
    assert old == behind("VLLM_USE_V1=0", *VLLM) != behind("env", *VLLM)
