"""GGUF metadata, as llama.cpp's converter writes it, describes the same network as the model's own config."""

from typing import Any

import pytest

from vramcast.blocks.parameters.model import count_parameters
from vramcast.catalogue.models import load_model
from vramcast.domain.model import Model, StoredTensor, StoredWeights
from vramcast.families import model_from_config
from vramcast.sources.gguf import MODEL_TYPES, GgufHeader, config_of

OUT = "output.weight"
Q_BIAS = "blk.0.attn_q.bias"


def sizes(
    arch: str, layers: int, hidden: int, ffn: int, heads: int, kv: int | None = None, **more: Any
) -> dict[str, Any]:
    """Metadata that every architecture has, and more by last word of the key with _ for ."""
    values: dict[str, Any] = {
        "block_count": layers, "embedding_length": hidden, "feed_forward_length": ffn, "attention.head_count": heads,
        "context_length": 4096,
    }
    if kv is not None:
        values["attention.head_count_kv"] = kv
    values |= {key.replace("__", "."): value for key, value in more.items()}
    return {"general.architecture": arch} | {f"{arch}.{key}": value for key, value in values.items()}


def latent(**more: Any) -> dict[str, Any]:
    return {
        "attention__kv_lora_rank": 512, "rope__dimension_count": 64, "attention__key_length": 576,
        "attention__value_length": 512, "attention__key_length_mla": 192, "attention__value_length_mla": 128, **more,
    }


def read(metadata: dict[str, Any], vocab: int, hidden: int, tensors: tuple[str, ...]) -> Model:
    listed = [StoredTensor(name="token_embd.weight", dtype="f16", shape=(vocab, hidden), num_bytes=0)]
    listed += [StoredTensor(name=name, dtype="f16", shape=(1,), num_bytes=2) for name in tensors]
    header = GgufHeader(version=3, metadata=metadata, weights=StoredWeights(tensors=tuple(listed)))
    return model_from_config(config_of(header, name="x.gguf"), name="x")


EXPERTS = {"expert_count": 128, "expert_used_count": 8, "expert_feed_forward_length": 768}

CASES: list[tuple[str, dict[str, Any], int, tuple[str, ...]]] = [
    ("llama-3.1-8b", sizes("llama", 32, 4096, 14336, 32, 8), 128256, (OUT,)),
    ("llama-3.2-1b", sizes("llama", 16, 2048, 8192, 32, 8), 128256, ()),
    ("mixtral-8x7b", sizes("llama", 32, 4096, 14336, 32, 8, expert_count=8, expert_used_count=2), 32000, (OUT,)),
    ("qwen2.5-7b", sizes("qwen2", 28, 3584, 18944, 28, 4), 152064, (OUT, Q_BIAS)),
    ("qwen3-8b", sizes("qwen3", 36, 4096, 12288, 32, 8, attention__key_length=128), 151936, (OUT,)),
    ("qwen3-30b-a3b", sizes("qwen3moe", 48, 2048, 6144, 32, 4, attention__key_length=128, **EXPERTS), 151936, (OUT,)),
    (
        "qwen2-57b-a14b",
        sizes(
            "qwen2moe", 28, 3584, 18944, 28, 4, expert_count=64, expert_used_count=8,
            expert_feed_forward_length=2560, expert_shared_feed_forward_length=20480,
        ),
        151936, (OUT, Q_BIAS),
    ),
    ("gemma-2-9b", sizes("gemma2", 42, 3584, 14336, 16, 8, attention__key_length=256), 256000, ()),
    ("gemma-3-1b", sizes("gemma3", 26, 1152, 6912, 4, 1, attention__key_length=256), 262144, ()),
    ("phi-3-mini", sizes("phi3", 32, 3072, 8192, 32, 32), 32064, (OUT,)),
    ("phi-2", sizes("phi2", 32, 2560, 10240, 32, 32), 51200, (OUT, "blk.0.attn_qkv.bias", "blk.0.ffn_up.bias")),
    (
        "deepseek-v2-lite",
        sizes(
            "deepseek2", 27, 2048, 10944, 16, 1, expert_count=64, expert_used_count=6, expert_shared_count=2,
            expert_feed_forward_length=1408, leading_dense_block_count=1, expert_gating_func=1, **latent(),
        ),
        102400, (OUT,),
    ),
    (
        "deepseek-v3",
        sizes(
            "deepseek2", 61, 7168, 18432, 128, 1, expert_count=256, expert_used_count=8, expert_shared_count=1,
            expert_feed_forward_length=2048, leading_dense_block_count=3, expert_gating_func=2,
            **latent(attention__q_lora_rank=1536),
        ),
        129280, (OUT, "blk.3.exp_probs_b.bias"),
    ),
    (
        "glm-4.5-air",
        sizes(
            "glm4moe", 47, 4096, 10944, 96, 8, attention__key_length=128, expert_count=128, expert_used_count=8,
            expert_shared_count=1, expert_feed_forward_length=1408, leading_dense_block_count=1, nextn_predict_layers=1,
        ),
        151552, (OUT, Q_BIAS),
    ),
    (
        "gpt-oss-20b",
        sizes(
            "gpt-oss", 24, 2880, 2880, 64, 8, attention__key_length=64, expert_count=32, expert_used_count=4,
            expert_feed_forward_length=2880, attention__sliding_window=128,
        ),
        201088, (OUT, Q_BIAS, "blk.0.attn_output.bias"),
    ),
    ("command-r-35b", sizes("command-r", 40, 8192, 22528, 64, 64), 256000, ()),
    ("command-r-plus-104b", sizes("command-r", 64, 12288, 33792, 96, 8), 256000, ("blk.0.attn_q_norm.weight",)),
    ("stablelm-2-1.6b", sizes("stablelm", 24, 2048, 5632, 32, 32), 100352, (OUT, Q_BIAS)),
    (
        "stablelm-2-12b", sizes("stablelm", 40, 5120, 13824, 32, 8, use_parallel_residual=True), 100352,
        (OUT, "blk.0.attn_q_norm.weight"),
    ),
    ("starcoder2-3b", sizes("starcoder2", 30, 3072, 12288, 24, 2), 49152, (Q_BIAS, "blk.0.ffn_up.bias")),
    ("starcoder-15b", sizes("starcoder", 40, 6144, 24576, 48, 1, context_length=8192), 49152, ()),
    ("falcon-7b", sizes("falcon", 32, 4544, 18176, 71, 1), 65024, ()),
    ("falcon-40b", sizes("falcon", 60, 8192, 32768, 128, 8), 65024, ("blk.0.attn_norm_2.weight",)),
    (
        "gpt-neox-20b", sizes("gptneox", 44, 6144, 24576, 64, use_parallel_residual=True), 50432,
        (OUT, "blk.0.attn_qkv.bias", "blk.0.ffn_up.bias"),
    ),
    ("bloom-7b1", sizes("bloom", 30, 4096, 16384, 32, 32), 250880, ()),
    ("gpt2", sizes("gpt2", 12, 768, 3072, 12, context_length=1024), 50257, ()),
    ("mpt-7b", sizes("mpt", 32, 4096, 16384, 32), 50432, ()),
    ("baichuan2-13b", sizes("baichuan", 40, 5120, 13696, 40, 40), 125696, (OUT,)),
    ("qwen-7b", sizes("qwen", 32, 4096, 22016, 32), 151936, (OUT, "blk.0.attn_qkv.bias")),
    ("chatglm3-6b", sizes("chatglm", 28, 4096, 13696, 32, 2), 65024, (OUT, "blk.0.attn_qkv.bias")),
    ("internlm2-7b", sizes("internlm2", 32, 4096, 14336, 32, 8), 92544, (OUT,)),
    ("minicpm-2b", sizes("minicpm", 40, 2304, 5760, 36, 36), 122753, ()),
    ("granite-3.0-8b", sizes("granite", 40, 4096, 12800, 32, 8), 49155, ()),
    ("olmo-2-7b", sizes("olmo2", 32, 4096, 11008, 32, 32), 100352, (OUT,)),
    ("olmoe-1b-7b", sizes("olmoe", 16, 2048, 1024, 16, 16, expert_count=64, expert_used_count=8), 50304, (OUT,)),
    ("smollm3-3b", sizes("smollm3", 36, 2048, 11008, 16, 4), 128256, ()),
    ("seed-oss-36b", sizes("seed_oss", 64, 5120, 27648, 80, 8, attention__key_length=128), 155136, (OUT, Q_BIAS)),
    (
        "minimax-m2",
        sizes(
            "minimax-m2", 62, 3072, 1536, 48, 8, attention__key_length=128, expert_count=256, expert_used_count=8,
            expert_feed_forward_length=1536,
        ),
        200064, (OUT, "blk.0.attn_q_norm.weight"),
    ),
    (
        "phi-3.5-moe", sizes("phimoe", 32, 4096, 6400, 32, 8, expert_count=16, expert_used_count=2), 32064,
        (OUT, Q_BIAS, "blk.0.attn_output.bias", "output.bias"),
    ),
    (
        "qwen3-next-80b-a3b",
        sizes(
            "qwen3next", 48, 2048, 5120, 16, 2, attention__key_length=256, expert_count=512, expert_used_count=10,
            expert_feed_forward_length=512, expert_shared_feed_forward_length=512, ssm__conv_kernel=4,
            ssm__state_size=128, ssm__group_count=16, ssm__time_step_rank=32, ssm__inner_size=4096,
        ),
        151936, (OUT,),
    ),
]


@pytest.mark.parametrize(("name", "metadata", "vocab", "tensors"), CASES, ids=[case[0] for case in CASES])
def test_a_converted_model_has_the_parameters_of_its_config(
    name: str, metadata: dict[str, Any], vocab: int, tensors: tuple[str, ...]
) -> None:
    architecture = metadata["general.architecture"]
    found = read(metadata, vocab, metadata[f"{architecture}.embedding_length"], tensors)
    assert count_parameters(found).total == count_parameters(load_model(name)).total


def test_older_latent_attention_files_store_the_lengths_of_a_head() -> None:
    metadata = next(case[1] for case in CASES if case[0] == "deepseek-v2-lite")
    older = {key: value for key, value in metadata.items() if not key.endswith("_mla")}
    older |= {"deepseek2.attention.key_length": 192, "deepseek2.attention.value_length": 128}
    found = read(older, 102400, 2048, (OUT,))
    assert count_parameters(found).total == count_parameters(load_model("deepseek-v2-lite")).total


def test_every_mapped_architecture_has_a_reader() -> None:
    from vramcast.families import FAMILIES

    assert set(MODEL_TYPES.values()) <= set(FAMILIES)
