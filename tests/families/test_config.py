"""Configs of model families: what is read, counted and activated."""

import json
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import vramcast
from vramcast.blocks.parameters.model import Stored, checkpoint_elements, count_parameters
from vramcast.catalogue.index import MODELS
from vramcast.catalogue.models import entry_model, read_entry
from vramcast.domain.model import Attention
from vramcast.errors import InvalidSpec, UnknownName, VramcastError
from vramcast.families import FAMILIES, model_from_config
from vramcast.families.fields import SPELLINGS, all_defaults
from vramcast.operators.activation import ACTIVATIONS

# Configs of every family, dialects, and the errors of configs that cannot be.

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


# Parameter counts against what hubs publish: each is met exactly or stands in a list with its reason.

ROWS: list[dict[str, Any]] = [
    json.loads(line) for line in (Path(__file__).parent / "model_configs.jsonl").read_text().splitlines()
]
PUBLISHED = [row for row in ROWS if row.get("params_exact")]

NOT_EXACT = {
    "XiaomiMiMo/MiMo-V2-Flash": "the checkpoint adds three prediction modules, block scales of "
    "all linears but the output projection, and 576 elements that no key of the config names",
    "nvidia/Llama-3_3-Nemotron-Super-49B-v1": "the row lacks block_configs, the shape of each of its 80 layers",
}
"""Published counts that the known configs cannot explain."""

INCOMPLETE = {
    "vision": "the row holds the text config only; the image encoder is in the catalogue's config",
    "litgpt": "the row lacks the family: tied embeddings, norm, gating, biases, padded vocabulary",
    "reduced": "the row lacks keys of its family that differ from the defaults",
}

ROW_LACKS = (
    dict.fromkeys(
        [
            "Qwen/Qwen3-VL-235B-A22B-Instruct", "Qwen/Qwen3-VL-2B-Instruct", "Qwen/Qwen3-VL-32B-Instruct",
            "Qwen/Qwen3-VL-32B-Thinking", "Qwen/Qwen3-VL-4B-Instruct", "Qwen/Qwen3-VL-8B-Instruct",
            "Qwen/Qwen3.5-122B-A10B", "Qwen/Qwen3.5-27B", "Qwen/Qwen3.5-35B-A3B", "Qwen/Qwen3.5-397B-A17B",
            "google/gemma-4-26B-A4B", "meta-llama/Llama-4-Maverick-17B-128E-Instruct", "Qwen/Qwen2-VL-7B-Instruct",
            "Qwen/Qwen2.5-VL-7B-Instruct", "Qwen/Qwen2.5-VL-72B-Instruct", "meta-llama/Llama-3.2-11B-Vision-Instruct",
        ],
        "vision",
    )
    | {row["model"]: "litgpt" for row in PUBLISHED if "litgpt" in row["source"]}
    | dict.fromkeys(
        [
            "bigscience/bloom-560m",
            "bigscience/bloom-1b7",
            "bigscience/bloom-3b",
            "bigscience/bloom",  # hidden_size
            "zai-org/GLM-4.5",
            "zai-org/GLM-4.5-Air",
            "zai-org/GLM-4.6",  # dense width, biases, query/key norms
            "THUDM/glm-4-9b-chat",  # widths and vocabulary
            "Qwen/Qwen3-Next-80B-A3B-Instruct",  # the prediction module
            "Qwen/Qwen3-Embedding-0.6B",  # tied embeddings
            "intfloat/multilingual-e5-large",  # a bare model, so a pooler instead of a head
            "nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-BF16",  # moe_shared_expert_intermediate_size
        ],
        "reduced",
    )
    | dict.fromkeys(NOT_EXACT, "reduced")
)
"""Rows whose own config is not the whole truth, and why."""


def stored_groups(name: str) -> tuple[tuple[Stored, ...], tuple[Stored, ...]]:
    checkpoint = read_entry(MODELS.resolve(name)).checkpoint
    return (checkpoint.stores, checkpoint.lacks) if checkpoint else ((), ())


def test_ninety_two_counts_are_published() -> None:
    assert len(PUBLISHED) == 92


@pytest.mark.parametrize("row", PUBLISHED, ids=lambda row: row["model"])
def test_catalogue_explains_the_published_count_to_the_last_element(row: dict[str, Any]) -> None:
    if row["model"] in NOT_EXACT:
        pytest.skip(NOT_EXACT[row["model"]])
    name = MODELS.resolve(row["model"])
    stores, lacks = stored_groups(name)
    assert checkpoint_elements(entry_model(name, read_entry(name)), stores, lacks) == row["params_exact"]


@pytest.mark.parametrize(
    "row", [row for row in PUBLISHED if row["model"] not in ROW_LACKS], ids=lambda row: row["model"]
)
def test_a_complete_config_alone_gives_the_published_count(row: dict[str, Any]) -> None:
    stores, lacks = stored_groups(row["model"])
    model = model_from_config(row["config"], name=row["model"])
    assert checkpoint_elements(model, stores, lacks) == row["params_exact"]


@pytest.mark.parametrize("row", [row for row in ROWS if row.get("params_formula")], ids=lambda row: row["model"])
def test_closed_forms_are_met(row: dict[str, Any]) -> None:
    assert count_parameters(model_from_config(row["config"], name=row["model"])).total == row["params_formula"]


def test_lists_of_exceptions_hold_no_row_that_works() -> None:
    for row in PUBLISHED:
        reason = ROW_LACKS.get(row["model"])
        if reason in (None, "litgpt", "vision"):
            continue
        try:
            model = model_from_config(row["config"], name=row["model"])
            stores, lacks = stored_groups(row["model"])
        except VramcastError:
            continue
        assert checkpoint_elements(model, stores, lacks) != row["params_exact"], f"{row['model']}: {INCOMPLETE[reason]}"


# Whatever a config holds, reading it ends in a model or in an error of ours.

OTHER_KEYS = [
    "layer_types", "layer_types_counts", "moe_layer_freq", "mlp_only_layers", "attn_config", "vision_config",
    "text_config", "block_configs", "architectures", "torch_dtype", "linear_attn_config", "quantization_config",
    "hybrid_override_pattern", "id2label", "compress_ratios", "attn_type_list", "pos_att_type", "norm_rel_ebd",
    "num_nextn_predict_layers", "partial_rotary_factor", "mlp_ratio", "expansion_ratio", "sliding_window_pattern",
    "full_attn_layers", "deepstack_visual_indexes", "supported_aspect_ratios", "kv_channels", "position_buckets",
]
KEYS = sorted({key for values in all_defaults().values() for key in values} | set(SPELLINGS) | set(OTHER_KEYS))
SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-2, 300),
    st.integers(-(2**40), 2**40),
    st.just(10**4000),
    st.floats(),
    st.text(max_size=8),
    st.sampled_from(["full_attention", "gated-gelu", "auto", "float16", "M-*E", "qwen2", "llama"]),
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from(KEYS) | st.text(max_size=4), inner, max_size=5)
    ),
    max_leaves=12,
)


@settings(max_examples=250, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(family=st.sampled_from(sorted(FAMILIES)), changes=st.dictionaries(st.sampled_from(KEYS), VALUES, max_size=6))
def test_hostile_values_never_escape_as_foreign_errors(family: str, changes: dict[str, Any]) -> None:
    base: dict[str, Any] = {"hidden_size": 64, "num_hidden_layers": 4, "num_attention_heads": 4, "vocab_size": 100}
    try:
        model = model_from_config({**base, **changes, "model_type": family}, name="fuzzed")
    except VramcastError as error:
        assert "\n" not in str(error)
        assert len(str(error)) < 400
        return
    count = count_parameters(model)
    assert 0 < count.active <= count.total
    assert count.trainable > 0


# Activation functions are read as transformers names them.

ACTIVATIONS_LLAMA = {
    "model_type": "llama", "hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 2,
    "num_attention_heads": 4, "vocab_size": 1000, "max_position_embeddings": 512,
}


@pytest.mark.parametrize("engine", ["huggingface", "pytorch", "deepspeed", "megatron"])
@pytest.mark.parametrize("name", ACTIVATIONS)
def test_every_name_is_answered(name: str, engine: str, tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps({**ACTIVATIONS_LLAMA, "hidden_act": name}))
    answer = vramcast.train(str(path), gpus="1xa100-sxm4-80gb", engine=engine, seq_len=256)
    assert answer.peak.allocated_bytes > 0


@pytest.mark.parametrize(("config", "key"), [
    (ACTIVATIONS_LLAMA, "hidden_act"),
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
