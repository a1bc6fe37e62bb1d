"""What a user of `vramcast serve` meets."""

import json
import subprocess
import sys

import pytest

from tests.cli.asking import serve


def test_a_model_larger_than_the_cards_does_not_fit() -> None:
    done = serve("llama-3.1-70b", "--gpus", "l40s", "--json")
    assert done.returncode == 1, done.stderr
    assert json.loads(done.stdout)["fits"] is False


@pytest.mark.parametrize("name", ["--model", "--model-path", "--model_name_or_path", "--model-id"])
def test_the_model_in_another_tools_option_is_the_model(name: str) -> None:
    """Before that of a command, and never passed over."""
    done = serve(name, "qwen3-8b", "--gpus", "l40s", "--json", "--", "vllm", "serve", "Qwen/Qwen3-32B")
    assert json.loads(done.stdout)["question"]["model"] == "qwen3-8b", done.stderr
    done = serve("qwen3-14b", name, "qwen3-8b", "--gpus", "l40s")
    assert done.returncode == 2 and "qwen3-14b" in done.stderr and "qwen3-8b" in done.stderr


@pytest.mark.parametrize(("arguments", "code", "words"), [
    (["llama-3.1-8b", "--find", "most-users"], 2, "which GPUs?"),
    (["llama-3.1-8b", "--write", "configs"], 2, "which GPUs?"),
    (["--gpus", "l40s"], 2, "which model?"),
    (["llama-3.1-8b", "--gpus", "l40s", "--engine", "vlm"], 4, "did you mean vllm"),
    (["llama-3.1-8b", "--gpus", "l40s", "--engine", "vllm@0.1"], 2, "known are versions 0.2 to"),
    (["llama-3.1-8b", "--gpus", "l40s", "--engine", "vllm@newest"], 2, "must be written like"),
    (["llama-3.1-8b", "--gpus", "l40s", "--tp", "4"], 2, "needs 4 GPUs"),
    (["llama-3.1-8b", "--gpus", "l40s", "--memory-fraction", "1.5"], 2, "above 0 and up to 1"),
    (["llama-3.1-8b", "--gpus", "l40s", "--context", "long"], 2, "whole number"),
    (["llama-3.1-8b", "--gpus", "l40s", "--weights", "fp7"], 4, "weight format"),
    (["qwen3-8b", "--gpus", "m4-max-64gb", "--weights", "awq-int4"], 2, "no format of GGUF files"),
    (["llama-3.1-8b", "--gpus", "l40s", "--kv-dtype", "fp9"], 4, "cache dtype"),
    (["llama-3.1-8b", "--gpus", "l40s", "--draft-tokens", "4"], 2, "--draft-tokens needs --draft"),
    (["llama-3.1-8b", "--gpus", "3xl40s", "--tp", "3"], 2, "tp=3"),
    (["llama-3.1-8b", "--gpus", "l40s", "--gpu-layers", "3"], 3, "gpu-layers=3 says nothing to vllm"),
    (["llama-3.1-8b", "--gpus", "l4", "--engine", "llama.cpp", "--memory-fraction", "0.9"], 3, "says nothing to"),
])
def test_a_question_that_cannot_be_answered_gets_one_sentence(arguments: list[str], code: int, words: str) -> None:
    done = serve(*arguments)
    assert (done.returncode, done.stdout) == (code, "")
    assert words in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1


def test_a_serving_process_imports_neither_torch_nor_numpy_nor_rich() -> None:
    code = (
        "import sys; from vramcast.cli.main import group; "
        "group.main(['serve','llama-3.1-8b','--gpus','h100'], standalone_mode=False); "
        "print([name for name in ('torch','numpy','rich','yaml') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=180, check=False)
    assert done.stdout.strip().endswith("[]"), done.stdout[-200:] + done.stderr
