"""What files say is what the plan says: of training frameworks, and of servers with the defaults of their version."""

import json
import re
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from tests.formats.plans import at, constants, files, notes, serving, training, values
from vramcast.domain.job import Job
from vramcast.domain.serving import ServeJob
from vramcast.errors import Unsupported
from vramcast.formats.files import PLACEHOLDER
from vramcast.formats.lines import words_of

EIGHT_BITS = training("llama-3.1-8b", "8xh100", engine="deepspeed", zero="2", optimizer="adamw-8bit")
TRAINER = training("llama-3.2-1b", "8xh100", engine="huggingface", recompute="full", loss="fused", compile=True)
FSDP2 = training(
    "llama-3.1-8b", "2x8xh100", engine="torchtitan", tp=2, shard_group=4, recompute="full", offload_parameters="cpu",
    reshard_after_forward=False,
)
TITAN = training(
    "llama-3.1-70b", "4x8xh100", engine="torchtitan", tp=2, pp=4, cp=2, micro_batch=8, grad_accum=2,
    schedule="interleaved", virtual_stages=2, loss="eager", recompute="full", compile=True,
)
DEEPSEEK = training(
    "deepseek-v3", "16x8xh100", engine="megatron", tp=2, pp=8, ep=8, first_stage_layers=7, last_stage_layers=6,
    recompute="full", recompute_layers=4, grad_accum=32, engine_option="mtp_layers=1",
)
INTERLEAVED = training(
    "llama-3.1-70b", "8x8xh100", engine="megatron", tp=4, pp=4, virtual_stages=5, cp=2, schedule="interleaved",
    cp_kind="ulysses", grad_accum=8, recompute="selective", recompute_modules="core_attn,mlp", offload_optimizer="cpu",
    precision="fp8",
)
MEGATRON_FSDP = training("llama-3.1-8b", "8xh100", engine="megatron", zero="3", engine_option="fsdp=true")
VLLM = serving("llama-3.1-8b", "2xl40s", engine="vllm@0.19", context="32k", concurrency=16, kv_dtype="fp8")
DRAFTS = serving(
    "llama-3.1-8b", "h100", engine="vllm@0.33", context="8k", draft="eagle3", draft_tokens=3, lora_slots=4,
    lora_rank=32, graphs=False, prefix_caching=False, cache_bytes=2**33,
)
GROUPS = serving("deepseek-v3", "8xh200", engine="sglang", tp=4, dp=2, expert_parallel=True, context="16k")
TRT = serving("llama-3.1-70b", "8xh100", engine="tensorrt-llm", context="8k", kv_dtype="fp8")
CACHE_TYPES = serving(
    "qwen3-32b", "2xrtx-4090", engine="llama.cpp", weights="q4_k_m", context="16k", concurrency=2, kv_dtype="q8_0",
    gpu_layers=40,
)

SAID: list[tuple[Job | ServeJob, str, dict[str, Any]]] = [
    (EIGHT_BITS, "ds_config.json", {"zero_allow_untested_optimizer": True, "optimizer": None}),
    (EIGHT_BITS, "training_args.yaml", {"optim": "adamw_bnb_8bit"}),
    (FSDP2, "accelerate.yaml accelerate-fsdp2", {
        "fsdp_config.fsdp_version": 2, "fsdp_config.fsdp_reshard_after_forward": False,
        "fsdp_config.fsdp_offload_params": True, "fsdp_config.fsdp_activation_checkpointing": True,
        "parallelism_config": {
            f"parallelism_config_{name}": size
            for name, size in {"dp_replicate_size": 2, "dp_shard_size": 4, "tp_size": 2, "cp_size": 1}.items()
        },
    }),
    (training("llama-3.2-1b", "2x8xh100", engine="torchtitan", shard_group=8), "accelerate.yaml accelerate-fsdp1",
     {"fsdp_config.fsdp_version": 1, "fsdp_config.fsdp_sharding_strategy": "HYBRID_SHARD"}),
    *(
        (training("llama-3.1-8b", "8xh100", engine="torchtitan", pp=4, **options), "run.sh",
         {"parallelism.pipeline_parallel_schedule": word})
        for options, word in (
            ({"micro_batch": 4, "schedule": "gpipe"}, "GPipe"), ({"micro_batch": 4}, "1F1B"),
            ({"virtual_stages": 2, "micro_batch": 8}, "Interleaved1F1B"),
        )
    ),
    (DEEPSEEK, "run.sh", {
        "num-layers": "61", "hidden-size": "7168", "q-lora-rank": "1536", "num-experts": "256", "moe-router-topk": "8",
        "moe-layer-freq": "([0]*3+[1]*58)", "tensor-model-parallel-size": "2", "pipeline-model-parallel-size": "8",
        "expert-model-parallel-size": "8", "decoder-first-pipeline-num-layers": "7", "global-batch-size": "256",
        "decoder-last-pipeline-num-layers": "6", "recompute-granularity": "full", "recompute-num-layers": "4",
        "sequence-parallel": True, "use-distributed-optimizer": True, "bf16": True, "mtp-num-layers": "1",
    }),
    (training("mimo-7b", "2xh100", engine="megatron"), "run.sh", {"mtp-num-layers": None}),  # as it is counted
    (INTERLEAVED, "run.sh", {
        "recompute-modules": ["core_attn", "mlp"], "num-virtual-stages-per-pipeline-rank": "5", "cp-comm-type": "a2a",
        "optimizer-cpu-offload": True, "fp8-format": "hybrid",
    }),
    (VLLM, "serve.sh", {
        "gpu-memory-utilization": "0.9",  # 0.92 from 0.20 on
        "tensor-parallel-size": "2", "max-model-len": "32768", "kv-cache-dtype": "fp8", "enable-prefix-caching": True,
    }),
    (DRAFTS, "serve.sh", {
        "max-loras": "4", "max-lora-rank": "32", "enforce-eager": True, "no-enable-prefix-caching": True,
        "kv-cache-memory-bytes": str(2**33),
    }),
    (serving("llama-3.1-8b", "h100", engine="vllm", context="8k", weights="fp8"), "serve.sh", {"quantization": "fp8"}),
    (GROUPS, "serve.sh", {"tp-size": "8", "attn-dp-size": "2", "ep-size": "8", "enable-dp-attention": None}),
    (serving("qwen3-32b", "2xh100", engine="sglang", context="8k", graphs=False), "serve.sh",
     {"disable-decode-cuda-graph": True, "disable-prefill-cuda-graph": True}),
    (TRT, "trtllm_config.yaml", {"kv_cache_config": {"dtype": "fp8", "tokens_per_block": 32}}),
    (TRT, "serve.sh", {"extra_llm_api_options": "trtllm_config.yaml"}),
    (CACHE_TYPES, "serve.sh", {
        "model": "qwen3-32b-q4_k_m.gguf", "ctx-size": "32768", "parallel": "2", "gpu-layers": "40",
        "cache-type-k": "q8_0", "cache-type-v": "q8_0",
    }),
]
"""A plan, its file (and the format), what that holds; None: what it must not. Files that read back as their plan are
proved by that."""


@pytest.mark.parametrize(("job", "name", "said"), SAID, ids=lambda value: value if isinstance(value, str) else "")
def test_files_hold_what_the_plan_says(job: Job | ServeJob, name: str, said: dict[str, Any]) -> None:
    found = values(job, *name.split())
    assert {path: at(found, path) for path in said} == said


REFUSED: list[tuple[Job | ServeJob, tuple[str, ...], str]] = [
    (training("llama-3.1-8b", "8xh100", engine="deepspeed", zero="2", offload_optimizer="nvme"), ("deepspeed",),
     "add --zero 3"),
    (training("mistral-7b-v0.1", "8xh100", engine="torchtitan"), (), r"no flavour for mistral-7b-v0\.1"),
    (training("llama-3.1-8b", "8xh100", engine="megatron", loss="fused"), (), "cross_entropy=native"),
    *(
        (training(model, "h100", engine="huggingface", objective="sft"), ("llamafactory",), "decoders only")
        for model in ("t5-base", "bert-base-uncased")
    ),
    (serving("llama-3.1-8b", "h100", engine="tensorrt-llm@0.12", context="8k"), ("tensorrt-llm",), r"1\.0 and later"),
]


@pytest.mark.parametrize(("job", "formats", "why"), REFUSED)
def test_what_a_format_cannot_say_is_refused(job: Job | ServeJob, formats: tuple[str, ...], why: str) -> None:
    with pytest.raises(Unsupported, match=why):
        files(job, *formats)


def test_a_format_that_nobody_asked_for_is_left_out_with_its_reason() -> None:
    job = training("llama-3.1-8b", "8xh100", engine="deepspeed", zero="2", offload_optimizer="nvme")
    assert "no deepspeed: DeepSpeed offloads to disks with ZeRO 3 only" in notes(job)
    assert "ds_config.json" not in files(TRAINER)  # which runs without DeepSpeed
    chunked = training("llama-3.2-1b", "h100", engine="huggingface", objective="sft")
    assert "add --loss eager" in notes(chunked)  # only TRL makes its loss in chunks


def test_modules_of_an_unknown_family_are_refused_by_name() -> None:
    job = training("llama-3.2-1b", "a100", engine="huggingface", peft="lora")
    stranger = replace(job, model=replace(job.model, family="home-made"))
    assert "module names of family home-made are not known" in notes(stranger)


def test_torchtitans_registry_says_network_loss_and_policy() -> None:
    registry = files(TITAN)["vramcast_plan.py"].text
    for part in ('model_registry("70B"', "FullAC.Config()", "loss=CrossEntropyLoss.Config"):
        assert part in registry


def test_megatron_lays_out_uneven_stages_and_orders_kernels() -> None:
    job = training("llama-3.1-8b", "8xh100", engine="megatron", pp=4, grad_accum=8)
    uneven = msgspec.structs.replace(job, engine_options={"stage_layers": "7,9,9,7"})
    layout = values(uneven, "run.sh")["pipeline-model-parallel-layout"]
    assert re.fullmatch(r"Et{7}\|t{9}\|t{9}\|t{7}L", layout)
    assert "export CUDA_DEVICE_MAX_CONNECTIONS=1" in files(DEEPSEEK)["run.sh"].text
    assert "CUDA_DEVICE_MAX_CONNECTIONS" not in files(MEGATRON_FSDP)["run.sh"].text


def test_a_cut_model_or_one_by_numbers_is_written_by_its_own_name() -> None:
    job = training("llama-3.1-8b", "h100", engine="pytorch", layers=4)
    assert constants(files(job)["train.py"])["MODEL"] == "meta-llama/Llama-3.1-8B-Instruct"
    assert "the plan is of llama-3.1-8b cut to 4 layers" in notes(job)
    described = training(None, "h100", engine="pytorch", params="7B", layers=32, hidden=4096)
    assert constants(files(described)["train.py"])["MODEL"] == PLACEHOLDER
    assert "no checkpoint is known for" in notes(described)


def test_a_script_prepares_of_a_packed_base_what_the_answer_counts() -> None:
    def script(*options: str) -> str:
        plan = training(
            "llama-3.2-1b", "1xa100-sxm4-80gb", engine="huggingface", peft="lora", base_weights="nf4",
            engine_option=list(options), recompute="full",
        )
        return "".join(file.text for file in files(plan, "transformers").values())

    assert "prepare_model_for_kbit_training(" in script("prepare_kbit=peft")
    assert "kbit" not in script()
    assert "parameter.data.float()" in script("trl=0.13")
    assert "enable_input_require_grads" in script("reentrant=true")


def test_vllm_names_checkpoint_drafts_and_machines() -> None:
    assert words_of(files(VLLM)["serve.sh"].text, "ARGS")[0] == "meta-llama/Llama-3.1-8B-Instruct"
    draft = {"method": "eagle3", "num_speculative_tokens": 3, "model": "DRAFT-CHECKPOINT"}
    assert json.loads(values(DRAFTS, "serve.sh")["speculative-config"]) == draft
    several = serving("llama-3.1-405b", "2x8xh100", engine="vllm", context="8k", tp=8, pp=2)
    machines = '--nnodes "2" --node-rank "$NODE_RANK" --master-addr "$MASTER_ADDR"'
    assert machines in files(several)["serve.sh"].text
