"""`models --fits`: my card, which models?"""

import json

import pytest

from tests.cli.asking import vramcast


def test_models_are_listed_in_the_most_precise_form_that_fits() -> None:
    document = json.loads(vramcast("models", "qwen3", "--fits", "rtx-4090", "--json").stdout)
    forms = {row["model"]: row["form"] for row in document["models"]}
    assert forms["qwen3-4b"] == "as stored" and forms["qwen3-14b"] == "fp8" and forms["qwen3-32b"] == "int4"
    assert "qwen3-235b-a22b" not in forms
    sizes = [row["parameters"] for row in document["models"]]
    assert sizes == sorted(sizes, reverse=True)
    for row in document["models"][:3]:
        weights = {"as stored": [], "fp8": ["--weights", "fp8"], "int4": ["--weights", "awq-int4"]}[row["form"]]
        same = ("serve", row["model"], "--gpus", "rtx-4090", "--context", "8k", "--json", *weights)
        assert json.loads(vramcast(*same).stdout)["fits"]


def test_training_goes_down_to_adapters_over_four_bits() -> None:
    document = json.loads(vramcast("models", "qwen3", "--fits", "24gb", "--for", "train", "--json").stdout)
    forms = {row["model"]: row["form"] for row in document["models"]}
    assert forms["qwen3-0.6b"] == "all weights" and forms["qwen3-8b"] in ("LoRA", "QLoRA")
    assert "unknown NVIDIA card" in document["assumptions"][0]


def test_a_card_without_vllm_is_asked_for_llama_cpp() -> None:
    shown = vramcast("models", "qwen3-8b", "--fits", "m3-max-64gb")
    assert shown.returncode == 0 and "under llama.cpp" in shown.stdout


@pytest.mark.parametrize(("arguments", "code", "words"), [
    (["qwen3-235b-a22b", "--fits", "8gb"], 1, "0 of 1 models fit"),
    (["nosuch", "--fits", "8gb"], 4, "unknown model"),
    (["--fits", "4060 ti"], 2, "name one of them"), (["--fits", "4090", "--for", "fun"], 4, "unknown purpose"),
    (["--context", "8k"], 2, "give --fits"),
    (["llama-3.1-8b", "--fits", "tpu-v5e"], 3, "a TPU runs programs of XLA"),
])
def test_what_does_not_fit_or_is_not_asked_well_is_one_sentence(arguments: list[str], code: int, words: str) -> None:
    found = vramcast("models", *arguments)
    assert found.returncode == code and words in found.stdout + found.stderr
