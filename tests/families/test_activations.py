"""Activation functions are read as transformers names them."""

import json
from pathlib import Path

import pytest

import vramcast
from vramcast.errors import InvalidSpec
from vramcast.families import model_from_config
from vramcast.operators.activation import ACTIVATIONS

LLAMA = {
    "model_type": "llama", "hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 2,
    "num_attention_heads": 4, "vocab_size": 1000, "max_position_embeddings": 512,
}


@pytest.mark.parametrize("engine", ["huggingface", "pytorch", "deepspeed", "megatron"])
@pytest.mark.parametrize("name", ACTIVATIONS)
def test_every_name_is_answered(name: str, engine: str, tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps({**LLAMA, "hidden_act": name}))
    answer = vramcast.train(str(path), gpus="1xa100-sxm4-80gb", engine=engine, seq_len=256)
    assert answer.peak.allocated_bytes > 0


@pytest.mark.parametrize(("config", "key"), [
    (LLAMA, "hidden_act"),
    ({"model_type": "gemma2"}, "hidden_activation"),
    ({"model_type": "gpt2"}, "activation_function"),
    ({"model_type": "opt"}, "activation_function"),
    ({"model_type": "bert"}, "hidden_act"),
    ({"model_type": "distilbert", "dim": 768, "hidden_dim": 3072, "n_layers": 6, "n_heads": 12}, "activation"),
    ({"model_type": "vit"}, "hidden_act"),
    ({"model_type": "whisper"}, "activation_function"),
    ({"model_type": "falcon"}, "activation"),
    ({"model_type": "nemotron_h", "hybrid_override_pattern": "M-*-", "num_hidden_layers": 4}, "mlp_hidden_act"),
    ({"model_type": "t5"}, "feed_forward_proj"),
])
@pytest.mark.parametrize(("name", "hint"), [("SiLU", "use silu"), ("swiglu", "use one of gelu,")])
def test_what_transformers_refuses_is_refused_with_its_key(
    config: dict[str, object], key: str, name: str, hint: str
) -> None:
    with pytest.raises(InvalidSpec, match=f"{key}='{name}' .*{hint}"):
        model_from_config({**config, key: name}, name="given")
