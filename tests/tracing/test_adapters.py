"""Adapters by name: as many weights learn as in PEFT itself."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from vramcast.tracing.extensions.stand_ins import prepare_torchvision

prepare_torchvision()
transformers = pytest.importorskip("transformers")
peft = pytest.importorskip("peft")

from tests.tracing._configs import shortened  # noqa: E402
from vramcast.api import job_of  # noqa: E402
from vramcast.catalogue.models import read_entry  # noqa: E402
from vramcast.engines.eager.question import recipe_of  # noqa: E402
from vramcast.engines.eager.recipe import elements, weights  # noqa: E402

RANK = 16


def learning_in_peft(config: dict[str, Any], words: str | list[str] | None) -> int:
    made = transformers.CONFIG_MAPPING[config.pop("model_type")].from_dict(config)
    with torch.device("meta"):
        network = getattr(transformers, config["architectures"][0])(made)
    named = {} if words is None else {"target_modules": words}
    adapted = peft.get_peft_model(network, peft.LoraConfig(r=RANK, **named))
    return sum(weight.numel() for weight in adapted.parameters() if weight.requires_grad)


@pytest.mark.parametrize(("model", "words"), [
    ("llama-3.2-1b", "all-linear"),
    ("llama-3.2-1b", r"model\.layers\.(0|1|5)\..*(q|v)_proj"),
    ("llama-3.2-1b", ["lm_head", "q_proj"]),
    ("gpt2", None),
    ("gpt2", ["c_attn", "c_proj"]),
    ("phi-3-mini", "all-linear"),
    ("phi-2", None),
    ("bert-base-uncased", ["query", "dense"]),
    ("t5-small", None),
    ("t5-small", ["q", "v", "wi"]),
    ("whisper-base", ["q_proj", "fc1"]),
    ("vit-base-patch16-224", ["q_proj", "v_proj"]),
    ("clip-vit-base-patch32", "all-linear"),
    ("siglip-base-patch16-224", "all-linear"),
    ("qwen2.5-vl-3b", "all-linear"),
    ("qwen2.5-vl-3b", ["q_proj", "v_proj"]),
    ("llava-1.5-7b", ["q_proj"]),
    ("gemma-3-4b", "all-linear"),
    ("lfm2-1.2b", "all-linear"),
    ("pythia-1.4b", "all-linear"),
    ("falcon-7b", ["query_key_value"]),
    ("bloom-560m", None),
    ("qwen3-30b-a3b", "all-linear"),
    ("qwen3-30b-a3b", ["q_proj", "gate_proj", "up_proj", "down_proj"]),
    ("qwen3-30b-a3b", r".*\.(q_proj|gate_proj|up_proj|down_proj)"),
    ("mixtral-8x7b", ["q_proj", "w1", "w2", "w3"]),
    ("gpt-oss-20b", "all-linear"),
    ("qwen1.5-moe-a2.7b", "all-linear"),
    ("deepseek-v2-lite", ["gate_proj", "up_proj", "down_proj"]),
    ("qwen3-next-80b-a3b", "all-linear"),
])
def test_as_many_weights_learn_as_peft_says(model: str, words: str | list[str] | None, tmp_path: Path) -> None:
    asked = {} if words is None else {"lora-targets": words}
    path = tmp_path / "config.json"
    config = shortened(read_entry(model).config, layers=6)
    path.write_text(json.dumps(config))
    job = job_of({"model": str(path), "gpus": "h200-sxm-141gb", "engine": "huggingface",
                  "peft": "lora", "lora-rank": RANK, "seq-len": 64, **asked})
    assert elements(weights(recipe_of(job)), learning_only=True) == learning_in_peft(config, words)
