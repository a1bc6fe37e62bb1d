"""Configs of every family, dialects, and the errors of configs that cannot be."""

from importlib import import_module
from typing import Any

import pytest

from vramcast.domain.model import Attention
from vramcast.errors import InvalidSpec, UnknownName
from vramcast.families import FAMILIES, model_from_config

LLAMA: dict[str, Any] = {
    "model_type": "llama", "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32,
    "num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 128256,
    "max_position_embeddings": 131072, "torch_dtype": "bfloat16",
}


def build(**changes: Any) -> Any:
    return model_from_config({**LLAMA, **changes}, name="test-model")


def test_a_list_cut_for_printing_continues_with_its_period() -> None:
    shown = ["sliding_attention", "full_attention"] * 4 + ["... 24 total"]
    config = {"model_type": "gpt_oss", "num_hidden_layers": 24, "layer_types": shown, "num_local_experts": 32}
    windows = [layer.mixer.window for layer in model_from_config(config, name="m").main.layers]  # type: ignore[union-attr]
    assert windows == [128, None] * 12


def test_unknown_family_is_named_with_its_neighbours() -> None:
    with pytest.raises(UnknownName, match="unknown model type 'lama'; did you mean llama"):
        model_from_config({"model_type": "lama"}, name="m")


@pytest.mark.parametrize(("changes", "message"), [
    ({"hidden_size": "4096"}, "hidden_size='4096' of test-model must be an integer"),
    ({"hidden_size": True}, "hidden_size=True of test-model must be an integer"),
    ({"hidden_size": -1}, "hidden_size=-1 of test-model must be between 0 and"),
    ({"hidden_size": 0}, "hidden_size=0 of test-model must be at least 1"),
    ({"vocab_size": 2**31 + 1}, "vocab_size=2147483649 of test-model must be between"),
    ({"num_hidden_layers": 100_000}, "num_hidden_layers=100000 of test-model is more than 4096 layers"),
    ({"num_key_value_heads": 5}, "num_key_value_heads=5 of test-model does not divide num_attention_heads=32"),
    ({"num_attention_heads": 31, "num_key_value_heads": 31}, "does not divide hidden_size=4096"),
    ({"tie_word_embeddings": "yes"}, "tie_word_embeddings='yes' of test-model must be true or false"),
    ({"torch_dtype": "int7"}, "torch_dtype='int7' of test-model is none of float32"),
    ({"layer_types": ["full_attention"]}, "layer_types of test-model lists 1 layers, not num_hidden_layers=32"),
    ({"model_type": 3}, "model_type=3 of test-model must be a text"),
])
def test_impossible_values_are_refused_in_one_sentence(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidSpec) as error:
        build(**changes)
    assert message in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(("packing", "storage"), [
    (None, None),
    ({"quant_method": "fp8"}, "fp8"),
    ({"quant_method": "mxfp4"}, "mxfp4"),
    ({"quant_method": "modelopt", "quant_algo": "NVFP4"}, "nvfp4"),
    ({"quant_method": "gptq", "bits": 4}, "int4"),
    ({"quant_method": "bitsandbytes", "load_in_4bit": True}, "nf4"),
    ({"quant_method": "bitsandbytes", "load_in_8bit": True}, "int8"),
    ({"quant_method": "compressed-tensors", "config_groups": {"g": {"weights": {"num_bits": 4}}}}, "int4"),
    ({"quant_method": "brand-new"}, "brand-new"),
])
def test_quantised_storage_is_named(packing: dict[str, Any] | None, storage: str | None) -> None:
    assert build(quantization_config=packing).quantisation == storage


@pytest.mark.parametrize(("packing", "in_blocks"), [
    ({"quant_method": "fp8"}, True), ({"quant_method": "fp8", "activation_scheme": "static"}, False),
    ({"quant_method": "modelopt", "quant_algo": "FP8"}, False),
    ({"quant_method": "modelopt", "quant_algo": "FP8_PB_WO"}, True), ({"quant_method": "fbgemm_fp8"}, False),
    *(({"quant_method": "compressed-tensors", "config_groups": {
        "g": {"weights": {"num_bits": 8, "type": "float", "strategy": strategy}}}}, strategy == "block")
      for strategy in ("block", "channel")),
])
def test_fp8_is_in_blocks_or_not(packing: dict[str, Any], in_blocks: bool) -> None:
    found = build(quantization_config=packing)
    assert (found.quantisation, found.fp8_blocks) == ("fp8", in_blocks)


def test_searched_architectures_may_drop_a_part_of_a_layer() -> None:
    """Llama-Nemotron: no_op parts are gone, ffn_mult 5.25 of H = 8192 is LLaMA's 28,672."""
    blocks = [
        {"attention": {"n_heads_in_group": 8}, "ffn": {"ffn_mult": 5.25}},
        {"attention": {"no_op": True}, "ffn": {"ffn_mult": 1.0}},
    ]
    config = {
        "model_type": "nemotron-nas",
        "hidden_size": 8192,
        "num_attention_heads": 64,
        "vocab_size": 128256,
        "block_configs": blocks,
    }
    first, second = model_from_config(config, name="m").main.layers
    assert isinstance(first.mixer, Attention)
    assert (first.mixer.num_kv_heads, first.channel.width) == (8, 28672)  # type: ignore[union-attr]
    assert second.mixer is None


@pytest.mark.parametrize("module", sorted({builder.args[0] for builder in FAMILIES.values()}))  # type: ignore[attr-defined]
def test_the_table_of_families_names_each_module_builders(module: str) -> None:
    built = set(import_module(f"vramcast.families.{module}").BUILDERS)
    assert {family for family, builder in FAMILIES.items() if builder.args[0] == module} == built  # type: ignore[attr-defined]
