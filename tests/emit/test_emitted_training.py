"""What training formats say is what the plan says."""

from __future__ import annotations

import re

import msgspec
import pytest
from msgspec.structs import replace

from tests.emit.plans import constants, files, notes, training, values
from vramcast.emit.files import PLACEHOLDER
from vramcast.emit.write import files_of
from vramcast.errors import Unsupported


def test_deepspeed_says_batch_precision_stage_and_offload() -> None:
    job = training(
        "llama-3.1-8b",
        "2x8xh100",
        engine="deepspeed",
        zero="3",
        micro_batch=2,
        grad_accum=4,
        offload_optimizer="cpu",
        offload_parameters="nvme",
        engine_option="overlap_comm=false",
    )
    found = values(job, "ds_config.json")
    assert (found["train_batch_size"], found["train_micro_batch_size_per_gpu"]) == (2 * 4 * 16, 2)
    assert found["gradient_accumulation_steps"] == 4 and found["bf16"] == {"enabled": True}
    zero = found["zero_optimization"]
    assert zero["stage"] == 3 and zero["overlap_comm"] is False
    assert zero["offload_optimizer"]["device"] == "cpu"
    assert zero["offload_param"] == {"device": "nvme", "nvme_path": "/local_nvme", "pin_memory": True}


def test_deepspeed_refuses_disks_without_stage_3_and_says_so() -> None:
    job = training("llama-3.1-8b", "8xh100", engine="deepspeed", zero="2", offload_optimizer="nvme")
    assert "no deepspeed: DeepSpeed offloads to disks with ZeRO 3 only" in notes(job)
    with pytest.raises(Unsupported, match="add --zero 3"):
        files(job, "deepspeed")


def test_the_learning_rate_is_the_same_in_both_files_that_the_trainer_compares() -> None:
    job = training("llama-3.1-8b", "8xh100", engine="deepspeed", zero="3")
    rate = values(job, "training_args.yaml")["learning_rate"]
    assert values(job, "ds_config.json")["optimizer"]["params"]["lr"] == rate


def test_an_optimizer_that_deepspeed_lacks_is_the_trainers() -> None:
    job = training("llama-3.1-8b", "8xh100", engine="deepspeed", zero="2", optimizer="adamw-8bit")
    assert "optimizer" not in values(job, "ds_config.json")
    assert values(job, "ds_config.json")["zero_allow_untested_optimizer"] is True
    assert values(job, "training_args.yaml")["optim"] == "adamw_bnb_8bit"


def test_the_trainer_without_sharding_runs_without_deepspeed() -> None:
    job = training("llama-3.2-1b", "8xh100", engine="huggingface", recompute="full", loss="fused", compile=True)
    assert "ds_config.json" not in files(job)
    found = values(job, "training_args.yaml")
    assert found["bf16"] is True and found["gradient_checkpointing"] is True and found["torch_compile"] is True
    assert found["gradient_checkpointing_kwargs"] == {"use_reentrant": False}
    assert found["liger_kernel_config"]["cross_entropy"] is True and found["liger_kernel_config"]["rms_norm"] is False
    assert values(job, "accelerate.yaml")["distributed_type"] == "MULTI_GPU"


@pytest.mark.parametrize(
    ("base", "wanted"),
    [
        ("nf4", ("load_in_4bit=True", '"nf4"')),
        ("nf4-dq", ("bnb_4bit_use_double_quant=True",)),
        ("int8", ("load_in_8bit=True",)),
    ],
)
def test_adapters_over_a_quantised_base_are_in_the_script(base: str, wanted: tuple[str, ...]) -> None:
    job = training(
        "llama-3.2-1b",
        "a10",
        engine="huggingface",
        peft="dora",
        base_weights=base,
        lora_rank=16,
        lora_targets="attention.q,mlp.up",
        modules_to_save="head",
    )
    text = files(job)["train_trainer.py"].text
    for part in (*wanted, "r=16", "use_dora=True", "'q_proj', 'up_proj'", "modules_to_save=['lm_head']"):
        assert part in text
    factory = values(job, "llamafactory.yaml")
    assert factory["use_dora"] is True and factory["lora_target"] == "q_proj,up_proj" and factory["lora_rank"] == 16
    assert factory["quantization_bit"] == (8 if base == "int8" else 4)


def test_modules_of_an_unknown_family_are_refused_by_name() -> None:
    job = training("llama-3.2-1b", "a100", engine="huggingface", peft="lora")
    stranger = replace(job, model=replace(job.model, family="home-made"))
    assert "module names of family home-made are not known" in notes(stranger)


def test_llamafactory_says_the_stage_and_what_it_would_do_unasked() -> None:
    asked = training("llama-3.2-1b", "h100", engine="huggingface", objective="dpo", recompute="none")
    found = values(asked, "llamafactory.yaml")
    assert found["stage"] == "dpo" and found["disable_gradient_checkpointing"] is True
    assert found["finetuning_type"] == "full" and found["flash_attn"] == "auto"  # nobody asked for a kernel
    asked = training("llama-3.2-1b", "h100", engine="huggingface", attention="flash")
    assert values(asked, "llamafactory.yaml")["flash_attn"] == "fa2"


def test_only_trl_makes_its_loss_in_chunks() -> None:
    asked = training("llama-3.2-1b", "h100", engine="huggingface", objective="sft")
    assert "add --loss eager" in notes(asked)
    asked = training("llama-3.2-1b", "h100", engine="huggingface", objective="sft", loss="eager")
    found = values(asked, "llamafactory.yaml")
    assert found["stage"] == "sft" and found["disable_gradient_checkpointing"] is False


def test_fsdp2_says_mesh_resharding_offload_and_recomputation() -> None:
    job = training(
        "llama-3.1-8b",
        "2x8xh100",
        engine="torchtitan",
        tp=2,
        shard_group=4,
        recompute="full",
        offload_parameters="cpu",
        reshard_after_forward=False,
    )
    found = values(job, "accelerate.yaml", "accelerate-fsdp2")
    assert found["fsdp_config"]["fsdp_version"] == 2 and found["fsdp_config"]["fsdp_reshard_after_forward"] is False
    assert found["fsdp_config"]["fsdp_offload_params"] is True
    assert found["fsdp_config"]["fsdp_activation_checkpointing"] is True
    mesh = {name.removeprefix("parallelism_config_"): value for name, value in found["parallelism_config"].items()}
    assert mesh == {"dp_replicate_size": 2, "dp_shard_size": 4, "tp_size": 2, "cp_size": 1}


def test_fsdp1_says_its_strategy() -> None:
    job = training("llama-3.2-1b", "2x8xh100", engine="torchtitan", shard_group=8)
    config = values(job, "accelerate.yaml", "accelerate-fsdp1")["fsdp_config"]
    assert (config["fsdp_version"], config["fsdp_sharding_strategy"]) == (1, "HYBRID_SHARD")


def test_torchtitan_says_every_degree_batch_loss_and_policy() -> None:
    job = training(
        "llama-3.1-70b",
        "4x8xh100",
        engine="torchtitan",
        tp=2,
        pp=4,
        cp=2,
        micro_batch=8,
        grad_accum=2,
        schedule="interleaved",
        virtual_stages=2,
        loss="eager",
        recompute="full",
        compile=True,
    )
    found = values(job, "run.sh")
    assert found["training"]["local_batch_size"] == "8" and found["training"]["global_batch_size"] == "32"
    parallel = found["parallelism"]
    degrees = [parallel[f"{name}_degree"] for name in ("tensor_parallel", "pipeline_parallel", "context_parallel")]
    assert degrees == ["2", "4", "2"] and parallel["data_parallel_shard_degree"] == "2"
    assert parallel["pipeline_parallel_schedule"] == "Interleaved1F1B" and found["compile"]["enable"] is True
    registry = files(job)["vramcast_plan.py"].text
    assert 'model_registry("70B"' in registry and "FullAC.Config()" in registry
    assert "loss=CrossEntropyLoss.Config" in registry


@pytest.mark.parametrize(
    ("options", "word"),
    [({"schedule": "gpipe"}, "GPipe"), ({}, "1F1B"), ({"virtual_stages": 2, "micro_batch": 8}, "Interleaved1F1B")],
)
def test_torchtitan_says_its_schedule(options: dict[str, object], word: str) -> None:
    job = training("llama-3.1-8b", "8xh100", engine="torchtitan", **{"pp": 4, "micro_batch": 4} | options)
    assert values(job, "run.sh")["parallelism"]["pipeline_parallel_schedule"] == word


def test_torchtitan_refuses_a_network_it_does_not_have() -> None:
    with pytest.raises(Unsupported, match=r"no flavour for mistral-7b-v0\.1"):
        files(training("mistral-7b-v0.1", "8xh100", engine="torchtitan"))


def test_megatron_says_the_network_and_the_plan() -> None:
    job = training(
        "deepseek-v3",
        "16x8xh100",
        engine="megatron",
        tp=2,
        pp=8,
        ep=8,
        first_stage_layers=7,
        last_stage_layers=6,
        recompute="full",
        recompute_layers=4,
        grad_accum=32,
    )
    found = values(job, "run.sh")
    wanted = {
        "num-layers": "61",
        "hidden-size": "7168",
        "q-lora-rank": "1536",
        "num-experts": "256",
        "moe-router-topk": "8",
        "moe-layer-freq": "([0]*3+[1]*58)",
        "tensor-model-parallel-size": "2",
        "pipeline-model-parallel-size": "8",
        "expert-model-parallel-size": "8",
        "decoder-first-pipeline-num-layers": "7",
        "global-batch-size": "256",
        "decoder-last-pipeline-num-layers": "6",
        "recompute-granularity": "full",
        "recompute-num-layers": "4",
        "sequence-parallel": True,
        "use-distributed-optimizer": True,
        "bf16": True,
        "mtp-num-layers": "1",
    }
    assert {name: found[name] for name in wanted} == wanted
    assert "export CUDA_DEVICE_MAX_CONNECTIONS=1" in files(job)["run.sh"].text


def test_megatron_says_selective_modules_offload_and_interleaving() -> None:
    job = training(
        "llama-3.1-70b",
        "8x8xh100",
        engine="megatron",
        tp=4,
        pp=4,
        virtual_stages=5,
        cp=2,
        schedule="interleaved",
        cp_kind="ulysses",
        grad_accum=8,
        recompute="selective",
        recompute_modules="core_attn,mlp",
        offload_optimizer="cpu",
        precision="fp8",
    )
    found = values(job, "run.sh")
    assert found["recompute-modules"] == ["core_attn", "mlp"] and found["num-virtual-stages-per-pipeline-rank"] == "5"
    assert found["cp-comm-type"] == "a2a" and found["optimizer-cpu-offload"] is True and found["fp8-format"] == "hybrid"


def test_megatron_lays_out_uneven_stages_and_its_fsdp() -> None:
    job = training("llama-3.1-8b", "8xh100", engine="megatron", pp=4, grad_accum=8)
    uneven = msgspec.structs.replace(job, engine_options={"stage_layers": "7,9,9,7"})
    layout = values(uneven, "run.sh")["pipeline-model-parallel-layout"]
    assert re.fullmatch(r"Et{7}\|t{9}\|t{9}\|t{7}L", layout)
    sharded = training("llama-3.1-8b", "8xh100", engine="megatron", zero="3", engine_option="fsdp=true")
    assert values(sharded, "run.sh")["data-parallel-sharding-strategy"] == "optim_grads_params"
    assert "CUDA_DEVICE_MAX_CONNECTIONS" not in files(sharded)["run.sh"].text


def test_megatron_refuses_what_it_switched_off_itself() -> None:
    with pytest.raises(Unsupported, match="cross_entropy=native"):
        files(training("llama-3.1-8b", "8xh100", engine="megatron", loss="fused"))


def test_pytorch_says_its_constants_and_kernels() -> None:
    job = training(
        "qwen3-0.6b",
        "8xh100",
        engine="pytorch",
        micro_batch=3,
        grad_accum=2,
        seq_len=2048,
        precision="amp-fp16",
        recompute="full",
        recompute_layers=5,
        optimizer_kernel="fused",
        attention="cudnn",
    )
    file = files(job)["train.py"]
    found = constants(file)
    assert (found["MICRO_BATCH"], found["GRAD_ACCUM"], found["SEQ_LEN"]) == (3, 2, 2048)
    assert found["SCALED"] is True and found["RECOMPUTED_LAYERS"] == 5 and found["MODEL"] == "Qwen/Qwen3-0.6B"
    for part in ("torch.float16", "fused=True", "SDPBackend.CUDNN_ATTENTION", "DistributedDataParallel"):
        assert part in file.text


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


@pytest.mark.parametrize("model", ["t5-base", "bert-base-uncased"])
def test_llamafactory_is_written_for_decoders(model: str) -> None:
    with pytest.raises(Unsupported, match="decoders only"):
        files_of(training(model, "h100", engine="huggingface", objective="sft"), ("llamafactory",))
