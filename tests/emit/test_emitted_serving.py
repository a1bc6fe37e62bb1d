"""What servers are started with is what the plan says, defaults of its version written out."""

from __future__ import annotations

import json

import pytest

from tests.emit.plans import files, notes, serving, values
from vramcast.emit.lines import words_of
from vramcast.errors import Unsupported


def test_vllm_writes_defaults_of_the_planned_version_out() -> None:
    job = serving("llama-3.1-8b", "2xl40s", engine="vllm@0.19", context="32k", concurrency=16, kv_dtype="fp8")
    found = values(job, "serve.sh")
    assert found["gpu-memory-utilization"] == "0.9"  # 0.92 from 0.20 on
    assert (found["tensor-parallel-size"], found["max-model-len"]) == ("2", "32768")
    assert found["kv-cache-dtype"] == "fp8" and found["enable-prefix-caching"] is True
    assert words_of(files(job)["serve.sh"].text, "ARGS")[0] == "meta-llama/Llama-3.1-8B-Instruct"


def test_vllm_says_drafts_adapters_and_what_is_switched_off() -> None:
    job = serving(
        "llama-3.1-8b",
        "h100",
        engine="vllm@0.33",
        context="8k",
        draft="eagle3",
        draft_tokens=3,
        lora_slots=4,
        lora_rank=32,
        graphs=False,
        prefix_caching=False,
        cache_bytes=2**33,
    )
    found = values(job, "serve.sh")
    assert json.loads(found["speculative-config"]) == {
        "method": "eagle3",
        "num_speculative_tokens": 3,
        "model": "DRAFT-CHECKPOINT",
    }
    assert (found["max-loras"], found["max-lora-rank"]) == ("4", "32") and found["enforce-eager"] is True
    assert found["no-enable-prefix-caching"] is True and found["kv-cache-memory-bytes"] == str(2**33)


def test_vllm_over_several_machines_says_which_one_it_is() -> None:
    job = serving("llama-3.1-405b", "2x8xh100", engine="vllm", context="8k", tp=8, pp=2)
    text = files(job)["serve.sh"].text
    assert '--nnodes "2" --node-rank "$NODE_RANK" --master-addr "$MASTER_ADDR"' in text


def test_weights_that_no_engine_makes_while_loading_must_be_in_the_checkpoint() -> None:
    job = serving("llama-3.1-8b", "h100", engine="vllm", context="8k", weights="int4")
    assert "name a checkpoint of llama-3.1-8b stored as int4" in notes(job)
    assert "quantization" not in values(job, "serve.sh")
    made = serving("llama-3.1-8b", "h100", engine="vllm", context="8k", weights="fp8")
    assert values(made, "serve.sh")["quantization"] == "fp8"


def test_sglang_says_attention_groups_by_their_present_name() -> None:
    job = serving("deepseek-v3", "8xh200", engine="sglang", tp=4, dp=2, expert_parallel=True, context="16k")
    found = values(job, "serve.sh")
    assert (found["tp-size"], found["attn-dp-size"], found["ep-size"]) == ("8", "2", "8")
    assert "enable-dp-attention" not in found


def test_sglang_without_graphs_switches_both_kinds_off() -> None:
    found = values(serving("qwen3-32b", "2xh100", engine="sglang", context="8k", graphs=False), "serve.sh")
    assert found["disable-decode-cuda-graph"] is True and found["disable-prefill-cuda-graph"] is True


def test_tensorrt_llm_puts_what_has_no_option_into_its_file() -> None:
    job = serving("llama-3.1-70b", "8xh100", engine="tensorrt-llm", context="8k", kv_dtype="fp8")
    assert values(job, "trtllm_config.yaml")["kv_cache_config"] == {"dtype": "fp8", "tokens_per_block": 32}
    assert values(job, "serve.sh")["extra_llm_api_options"] == "trtllm_config.yaml"
    with pytest.raises(Unsupported, match=r"1\.0 and later"):
        files(serving("llama-3.1-8b", "h100", engine="tensorrt-llm@0.12", context="8k"), "tensorrt-llm")


def test_llamacpp_says_cache_types_layers_and_slots() -> None:
    job = serving(
        "qwen3-32b",
        "2xrtx-4090",
        engine="llama.cpp",
        weights="q4_k_m",
        context="16k",
        concurrency=2,
        kv_dtype="q8_0",
        gpu_layers=40,
    )
    found = values(job, "serve.sh")
    assert found["model"] == "qwen3-32b-q4_k_m.gguf" and found["ctx-size"] == "32768" and found["parallel"] == "2"
    assert found["gpu-layers"] == "40" and found["cache-type-k"] == found["cache-type-v"] == "q8_0"


def test_a_pipeline_has_no_format() -> None:
    from vramcast.api import serve_job_of
    from vramcast.emit.write import files_of

    with pytest.raises(Unsupported, match="no configuration files are written for engine diffusers"):
        files_of(serve_job_of({"model": "flux.1-dev", "gpus": "h100"}))


@pytest.mark.parametrize(
    ("engine", "variable"),
    [("vllm", "VLLM_ALLOW_LONG_MAX_MODEL_LEN"), ("sglang", "SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN"),
     ("tensorrt-llm", "TLLM_ALLOW_LONG_MAX_MODEL_LEN")],
)
def test_longer_sequences_are_allowed_by_a_variable(engine: str, variable: str) -> None:
    job = serving("llama-3.1-8b", "h100", engine=engine, context="200k", engine_option="allow-long=true")
    text = files(job)["serve.sh"].text
    assert f"export {variable}=1" in text and "allow-long" not in text
