"""What logs of each engine and age say."""

from __future__ import annotations

from typing import Any

import pytest

from tests.sources.logs.samples import gib, parsed, read, sample
from vramcast.units import MIB

RANKS: dict[str, dict[str, dict[str, float]]] = {
    "vllm-v0": {"": {"weights": 14.2487, "activations": 1.44, "communication": 0.12, "kv cache": 24.17}},
    "vllm-v0-results": {"": {"weights": 5.2064, "activations": 0.6236, "communication": 0.44, "kv cache": 6.83}},
    "vllm-v1": {
        "Worker_TP0": {
            "weights": 7.51, "activations": 1.01, "communication": 2.61, "cuda graphs": 0.66, "kv cache": 61.02
        },
        "Worker_TP1": {
            "weights": 7.51, "activations": 1.01, "communication": 2.61, "cuda graphs": 0.66, "kv cache": 61.00
        },
    },
    # the peak holds the estimated graphs, and consumed memory the weights
    "vllm-newest": {
        "EngineCore": {
            "weights": 15.27, "activations": 3.67 - 0.58, "communication": 15.60 - 15.27, "cuda graphs": 0.62,
            "kv cache": 53.0,
        }
    },
    "vllm-oom": {"EngineCore_DP0": {"weights": 13.72, "cuda graphs": 0.80, "kv cache": 50.10}},
    "sglang": {
        "TP1": {"weights": 7.58, "kv cache": 58.10, "communication": 1.21},
        "TP0": {"weights": 7.58, "kv cache": 58.10, "communication": 1.21, "cuda graphs": 0.62},
    },
    "sglang-draft": {"": {"weights": 15.40, "draft model": 0.90, "kv cache": 41.20 + 1.14, "cuda graphs": 0.75}},
    "sglang-hybrid": {"": {"weights": 13.60, "kv cache": 32.0 + 2.0}},  # the sum line replaces the two pools
    "sglang-old": {"TP0": {"weights": 78.50 - 63.45}},
    "tensorrt": {"": {"weights": 7700 / 1024, "activations": 608.02 / 1024, "inputs": 2.0, "kv cache": 59.40}},
    "tensorrt-pytorch": {"RANK 0": {"weights": 7.80, "activations": 1.10, "workspaces": 2.70, "kv cache": 57.28}},
    "llamacpp": {"CUDA0": {"weights": 4403.49 / 1024, "kv cache": 1088 / 1024, "activations": 296 / 1024}},
    "llamacpp-old": {"": {"weights": 3577.56 / 1024, "kv cache": 2.0, "activations": 291 / 1024}},
    "llamacpp-twice": {
        "CUDA0": {"weights": 4600 / 1024, "kv cache": 740 / 1024, "activations": 370 / 1024, "workspaces": 870 / 1024},
        "CUDA1": {"weights": 3700 / 1024, "kv cache": 554 / 1024, "activations": 310 / 1024},
    },
    "ollama": {"CUDA0": {"weights": 3.1, "kv cache": 338 / 1024, "activations": 1.1}},
}
"""Log -> process -> GiB by ledger category."""

OPTIONS: dict[str, dict[str, Any]] = {
    "vllm-v0": {
        "context": 4096, "memory-fraction": 0.9, "max-sequences": 256, "graphs": False, "kv-dtype": "fp8",
        "dtype": "fp16", "tp": 1,
    },
    "vllm-v1": {
        "context": 8192, "tp": 2, "pp": 1, "memory-fraction": 0.92, "max-sequences": 512, "batched-tokens": 8192,
        "dtype": "bf16",
    },
    "vllm-oom": {"memory-fraction": 0.95},
    "sglang": {"context": 32768, "tp": 2, "memory-fraction": 0.85, "max-sequences": 2048, "batched-tokens": 8192},
    "sglang-draft": {"draft": "eagle3", "draft-tokens": 4, "context": 40960},
    "tensorrt": {"context": 8192, "tp": 2, "max-sequences": 256, "batched-tokens": 8192, "block-tokens": 64},
    "tensorrt-pytorch": {"context": 16384, "tp": 2, "memory-fraction": 0.85, "max-sequences": 512},
    "llamacpp": {
        "context": 8192, "concurrency": 2, "micro-batch": 512, "kv-dtype": "q8_0", "v-dtype": "q8_0",
        "gpu-layers": 33, "attention": "flash",
    },
    "ollama": {"context": 4096, "concurrency": 2},
}

SAID: dict[str, tuple[str, str, str]] = {
    "vllm-v0": ("vllm", "0.6.6", "Qwen/Qwen2.5-7B-Instruct"),
    "vllm-v0-results": ("vllm", "0.6.4.post1", "microsoft/phi-2"),
    "vllm-v1": ("vllm", "0.19.1", "meta-llama/Llama-3.1-8B-Instruct"),
    "vllm-newest": ("vllm", "0.30.2", "Qwen/Qwen3-8B"),
    "sglang": ("sglang", "", "meta-llama/Llama-3.1-8B-Instruct"),
    "tensorrt-pytorch": ("tensorrt-llm", "1.1.0", "Qwen/Qwen3-8B"),
    "llamacpp": ("llama.cpp", "5200", "/m/Llama-3.1-8B-Instruct-Q4_K_M.gguf"),
    "llamacpp-old": ("llama.cpp", "1500", "./llama-2-7b.Q4_0.gguf"),
    "ollama": ("llama.cpp", "", "Gemma 3 4b It"),
}
"""Log -> engine, version, first name of the model."""


@pytest.mark.parametrize("name", RANKS)
def test_every_process_states_its_memory_by_ledger_category(name: str) -> None:
    found = {rank.label: rank.num_bytes for rank in read(name).ranks}
    assert set(found) == set(RANKS[name])
    for label, sizes in RANKS[name].items():
        assert found[label] == pytest.approx({key: gib(size) for key, size in sizes.items()}, abs=MIB / 4), label


@pytest.mark.parametrize("name", OPTIONS)
def test_arguments_become_options_of_the_question(name: str) -> None:
    options = read(name).options
    assert {key: options.get(key) for key in OPTIONS[name]} == OPTIONS[name]


@pytest.mark.parametrize("name", SAID)
def test_a_log_names_engine_version_and_model(name: str) -> None:
    log = read(name)
    assert (log.engine, log.version, log.models[0]) == SAID[name]


def test_what_the_cache_holds_is_the_tightest_copy() -> None:
    assert read("vllm-v1").counts == {"tokens": 999_424, "concurrency": 122.0}
    twice = sample("vllm-v1").replace(
        "GPU KV cache size: 999,424 tokens", "GPU KV cache size: 999,424 tokens\nGPU KV cache size: 990,000 tokens"
    )
    assert parsed(twice).counts["tokens"] == 990_000


def test_cards_are_named_by_devices_listings_and_tuned_kernels() -> None:
    assert read("llamacpp").cards == ("NVIDIA GeForce RTX 3090",)
    assert read("llamacpp-twice").cards == ("NVIDIA GeForce RTX 4090",) * 2
    tuned = sample("vllm-v1") + "WARNING Using default MoE config at configs/E=8,N=1,device_name=NVIDIA_L40S.json\n"
    assert parsed(tuned).cards == ("NVIDIA L40S",)
    listed = "GPU 0: NVIDIA A100-SXM4-80GB\nGPU 1: NVIDIA A100-SXM4-80GB\n" + sample("vllm-v1")
    assert parsed(listed).cards == ("NVIDIA A100-SXM4-80GB",) * 2


def test_memory_in_use_before_the_server_began_is_seen() -> None:
    assert read("vllm-v1").held_bytes == gib(79.19) - gib(78.60)


def test_older_words_of_an_out_of_memory_message_are_read_too() -> None:
    older = (
        "INFO llm_engine.py:237] Initializing an LLM engine (v0.6.1) with config: model='facebook/opt-6.7b'\n"
        "torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 128.00 MiB (GPU 0; 23.65 GiB total "
        "capacity; 22.10 GiB already allocated; 96.00 MiB free; 22.40 GiB reserved in total by PyTorch)\n"
    )
    message = parsed(older).out_of_memory
    assert message is not None
    assert (message.tried, message.total, message.free) == (128 * MIB, gib(23.65), 96 * MIB)
    assert message.unallocated == pytest.approx(gib(0.30), abs=2)
    assert message.stage == "load"


def test_a_cuda_malloc_that_failed_is_an_out_of_memory_message() -> None:
    text = sample("llamacpp-old") + (
        "ggml_backend_cuda_buffer_type_alloc_buffer: allocating 2944.00 MiB on device 0: cudaMalloc failed: out of "
        "memory\n"
    )
    message = parsed(text).out_of_memory
    assert message is not None
    assert message.tried == 2944 * MIB


def test_what_vllm_says_when_it_gives_up_is_kept() -> None:
    refused = sample("vllm-v1").split("GPU KV cache size")[0] + (
        "ValueError: To serve at least one request with the models's max seq len (131072), (16.00 GiB KV cache is "
        "needed, which is larger than the available KV cache memory (10.91 GiB). Based on the available memory ...\n"
    )
    log = parsed(refused)
    assert "16.00 GiB KV cache is needed" in log.refusal
    assert log.ranks[0].num_bytes["kv cache"] == gib(61.02)  # what a worker says of itself wins
    assert not log.counts


def test_the_last_of_several_startups_counts() -> None:
    first = sample("vllm-v1").replace("Model loading took 7.51", "Model loading took 9.99")
    log = parsed(first + sample("vllm-v1"))
    assert log.startups == 2
    assert log.ranks[0].num_bytes["weights"] == gib(7.51)


def test_data_parallel_engines_are_one_startup() -> None:
    other = sample("vllm-v1").replace("EngineCore_DP0", "EngineCore_DP1").split("\n", 3)[3]
    assert parsed(sample("vllm-v1") + other).startups == 1


def test_a_draft_model_is_no_second_startup() -> None:
    assert read("llamacpp-twice").startups == 1
    again = sample("llamacpp") + sample("llamacpp").replace("4403.49", "4000.00")
    log = parsed(again)
    assert log.startups == 2
    assert log.ranks[0].num_bytes["weights"] == 4000 * MIB


def test_pipeline_stages_are_told_apart() -> None:
    staged = sample("vllm-v1").replace("Worker_TP0", "Worker_PP0_TP0").replace("Worker_TP1", "Worker_PP1_TP0")
    assert {rank.label: rank.stage for rank in parsed(staged).ranks} == {"Worker_PP0_TP0": 0, "Worker_PP1_TP0": 1}


def test_a_speculative_config_becomes_a_draft() -> None:
    text = sample("vllm-v1").replace(
        "speculative_config=None",
        "speculative_config=SpeculativeConfig(method='eagle3', model='x/y', num_spec_tokens=3)",
    )
    options = parsed(text).options
    assert (options["draft"], options["draft-tokens"]) == ("eagle3", 3)


def test_adapters_count_only_where_they_are_enabled() -> None:
    assert "lora-slots" not in read("vllm-v0").options
    enabled = sample("vllm-v0").replace("enable_lora=False, max_loras=1", "enable_lora=True, max_loras=4")
    assert parsed(enabled).options["lora-slots"] == 4
