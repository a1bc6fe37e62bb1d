"""Configurations of other tools: what they ask is answered, what they hold beside that is said."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import vramcast
from vramcast.api import job_of
from vramcast.catalogue.formats import load_format
from vramcast.domain.job import Job, Recompute, Shards
from vramcast.domain.model import Norm
from vramcast.errors import InvalidSpec, SourceError, UnknownName, Unsupported, VramcastError
from vramcast.estimate.training import answer
from vramcast.formats.read import Given, about_network, read_files, settled, solved
from vramcast.formats.table import Row, Switch
from vramcast.formats.tools import megatron_model
from vramcast.formats.write import write_configs

DEEPSPEED = {
    "train_batch_size": 256, "gradient_accumulation_steps": 8, "fp16": {"enabled": True},
    "zero_optimization": {
        "stage": 3, "offload_optimizer": {"device": "cpu", "pin_memory": True}, "reduce_bucket_size": 5e8,
        "overlap_comm": True,
    },
    "optimizer": {"type": "AdamW", "params": {"lr": 1e-5}},
}

MEGATRON = """#!/bin/bash
set -euo pipefail   # somebody's script
TP=4
PP=${PP:-2}
GPT=(
    --num-layers 32 --hidden-size 4096 --ffn-hidden-size 14336 --num-attention-heads 32 --swiglu
    --group-query-attention --num-query-groups 8 --seq-length 4096 --max-position-embeddings 8192
    --position-embedding-type rope --normalization RMSNorm --disable-bias-linear --vocab-size 128256
    --untie-embeddings-and-output-weights --attention-dropout 0.0 --hidden-dropout 0.0
)
torchrun --nproc-per-node 8 pretrain_gpt.py ${GPT[@]} \\
    --micro-batch-size 1 --global-batch-size 128 --bf16 --use-distributed-optimizer --sequence-parallel \\
    --tensor-model-parallel-size ${TP} --pipeline-model-parallel-size $PP --recompute-granularity full \\
    --recompute-method block --recompute-num-layers 4 --lr 1.5e-4
"""

VLLM = """vllm serve meta-llama/Llama-3.1-8B-Instruct -tp 2 --max-model-len 16384 --enforce-eager \\
  --gpu-memory-utilization 0.92 --kv-cache-dtype fp8 --swap-space 4 --port 8000
"""


def written(tmp_path: Path, name: str, content: str | dict[str, Any]) -> Path:
    path = tmp_path / name
    path.write_text(content if isinstance(content, str) else json.dumps(content), encoding="utf-8")
    return path


def asked(*paths: Path, **options: Any) -> Job:
    return job_of({name.replace("_", "-"): value for name, value in options.items()} | {"from": paths})


def refusal(given: Given) -> str:
    """What is said of files that are not understood as they stand; "" where they are."""
    try:
        settled(given, (), ignore_unread=False)
    except Unsupported as sentence:
        assert "--ignore-unread" in str(sentence) or "runs on no GPU" in str(sentence)
        return str(sentence)
    return ""


def test_a_batch_that_contradicts_itself_is_said_with_its_numbers(tmp_path: Path) -> None:
    path = written(tmp_path, "ds.json", DEEPSPEED | {"train_micro_batch_size_per_gpu": 3})
    with pytest.raises(InvalidSpec, match="256 is not 3 x 8 x 8 ranks = 192"):
        asked(path, model="llama-2-13b", gpus="8xa100-sxm4-80gb")


def test_options_win_over_the_file(tmp_path: Path) -> None:
    path = written(tmp_path, "ds.json", DEEPSPEED)
    job = asked(path, model="llama-2-13b", gpus="8xa100-sxm4-80gb", zero="1", micro_batch=1)
    assert job.plan.shards is Shards.OPTIMIZER
    assert job.workload.micro_batch == 1


def test_megatrons_arguments_are_the_model_too(tmp_path: Path) -> None:
    job = asked(written(tmp_path, "run.sh", MEGATRON), gpus="8xh100-sxm-80gb")
    assert vramcast.train("llama-3.1-8b", gpus="h100", engine="megatron").num_parameters == 8_030_261_248
    assert (job.plan.tp, job.plan.pp, job.plan.recompute, job.plan.recompute_layers) == (4, 2, Recompute.FULL, 4)
    assert job.workload.grad_accum == 128
    assert (job.model.vocab, job.model.num_layers, job.model.hidden) == (128256, 32, 4096)


LAUNCHER = """#!/bin/bash
# it's how many people start Megatron
TP=2
GBS=$((TP * 64))
GPT_ARGS="
    --num-layers 32 \\
    --hidden-size 4096 --num-attention-heads 32 --max-position-embeddings 8192 \\
    --seq-length 8192 --vocab-size 128256 --lr 1.5e-4
"
GPT_MODEL_ARGS=(
    --normalization RMSNorm  # as Llama
    --swiglu
)
OTHER="--num-layers 80"
torchrun pretrain_gpt.py $GPT_ARGS ${GPT_MODEL_ARGS[@]} --bf16 --micro-batch-size 1 --global-batch-size ${GBS} \\
    --tensor-model-parallel-size $TP --pipeline-model-parallel-size 1 --save $CHECKPOINTS "$@" 2>&1 | tee log.txt
"""


def test_arguments_in_quoted_variables_and_arrays_are_read(tmp_path: Path) -> None:
    job = asked(written(tmp_path, "run.sh", LAUNCHER), gpus="8xh100-sxm-80gb")
    assert (job.model.num_layers, job.workload.seq_len, job.plan.tp) == (32, 8192, 2)
    assert job.model.main.runs[0].layer.norm is Norm.RMS
    assert job.workload.grad_accum == 128 // 4


def test_what_is_not_read_of_a_script_is_named(tmp_path: Path) -> None:
    given = read_files([written(tmp_path, "run.sh", LAUNCHER)], command="train")
    assert "run.sh: not read, as the command does not use them: $OTHER" in given.assumptions
    assert refusal(given) == ""  # --lr and --save change nothing, whatever stands in them


def test_a_value_that_is_not_understood_gets_a_sentence(tmp_path: Path) -> None:
    script = MEGATRON.replace("--micro-batch-size 1", "--micro-batch-size one --global-batch-size")
    said = refusal(read_files([written(tmp_path, "run.sh", script)], command="train"))
    assert "micro-batch-size: must be of kind int, not 'one'" in said


@pytest.mark.parametrize(("text", "tokens"), [("32k", 32_000), ("32K", 32_768), ("25.6k", 25_600), ("16384", 16_384)])
def test_vllms_numbers_have_suffixes(text: str, tokens: int, tmp_path: Path) -> None:
    path = written(tmp_path, "serve.sh", VLLM.replace("16384", text))
    assert read_files([path], command="serve").options["context"] == tokens


@pytest.mark.parametrize(("value", "told"), [("1", True), ("0", False)])
def test_the_variable_that_allows_longer_sequences_is_read(value: str, told: bool, tmp_path: Path) -> None:
    text = VLLM.replace("vllm serve", f"export VLLM_ALLOW_LONG_MAX_MODEL_LEN={value}\nvllm serve")
    assert "VLLM_ALLOW" in text
    given = read_files([written(tmp_path, "serve.sh", text)], command="serve")
    assert ("allow-long=true" in given.options.get("engine-option", ())) is told


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("ds.json", {"zero_optimization": {"stage": 3, "offload_optimizer": {"device": "disk"}}}, "'disk'"),
        ("ds.json", {"zero_optimization": {"stage": 3}, "train_batch_size": "many"}, "'many'"),
        ("ds.json", {"zero_optimization": {"stage": 3}, "bf16": {"enabled": "perhaps"}}, "bf16.enabled: 'perhaps'"),
        ("a.json", {"num_train_epochs": 1, "bf16": "perhaps"}, "bf16: 'perhaps'"),
        ("a.json", {"finetuning_type": "freeze"}, "freeze is not modelled"),
        ("a.json", {"finetuning_type": "lora", "quantization_bit": 3}, "quantization_bit: '3'"),
        ("a.json", {"finetuning_type": "lora", "stage": "ppo"}, "stage: 'ppo'"),
        ("a.json", {"finetuning_type": "lora", "use_unsloth_gc": True}, "use_unsloth_gc"),
        ("a.json", {"finetuning_type": "lora", "deepspeed": "ds.json"}, "deepspeed: is a file of its own"),
        ("a.json", {"num_train_epochs": 1, "auto_find_batch_size": True}, "--micro-batch"),
        ("a.json", {"num_train_epochs": 1, "optim": "adamw_apex_fused"}, "'adamw_apex_fused'"),
        ("a.json", {"num_train_epochs": 1, "fsdp": "full_shard half"}, "'half'"),
        ("a.json", {"distributed_type": "FSDP", "fsdp_config": {"fsdp_sharding_strategy": "SOME"}}, "'SOME'"),
        ("a.json", {"distributed_type": "TPU"}, "TPU"),
        ("a.json", {"distributed_type": "NO", "mixed_precision": "fp7"}, "fp7"),
        ("a.sh", "torchtitan --parallelism.tensor_parallel_degree two --training.seq_len 8192", "'two'"),
    ],
)
def test_no_value_is_dropped_in_silence(name: str, content: Any, said: str, tmp_path: Path) -> None:
    given = read_files([written(tmp_path, name, content)], command="train")
    assert said in refusal(given), given


@pytest.mark.parametrize(("command", "said"), [
    ("vllm serve llama-3.1-8b --config server.yaml", "config: is a file of its own"),
    ("vllm serve llama-3.1-8b --config $FILE", "config: ${FILE} is not set in the file"),
    ("vllm serve <your model> -tp 2 < in.txt > out.txt", "model: <your_model> is a placeholder"),
    ("vllm serve Qwen/<model> -tp 2", "model: <model> is a placeholder"),
    ("vllm serve llama-3.1-8b --max-model-len <LEN> --enforce-eager", "max_model_len: <LEN> is a placeholder"),
    ("vllm serve llama-3.1-8b --kv-transfer-config '{\"kv_connector\":\"NixlConnector\",\"kv_buffer_device\":\"cpu\"}'",
     "kv_transfer_config.kv_buffer_device: may change"),
    ("vllm serve llama-3.1-8b --device cpu", "device: runs on no GPU"),
    ("python -m sglang.launch_server --model llama-3.1-8b --device cpu", "device: runs on no GPU"),
    ("export VLLM_TARGET_DEVICE=cpu\nvllm serve llama-3.1-8b", "VLLM_TARGET_DEVICE: runs on no GPU"),
    ("docker run vllm/vllm-openai:glm51 llama-3.1-8b", "vllm/vllm-openai:glm51: does not say which vllm"),
    ("docker run vllm/vllm-openai:nightly-8bff831f llama-3.1-8b", "nightly-8bff831f: does not say which vllm"),
    ("docker run vllm/vllm-openai-cpu:latest-x86_64 --model llama-3.1-8b", "runs on no GPU"),
    ("docker run lmsysorg/sglang:v0.5.5-xeon python -m sglang.launch_server --model llama-3.1-8b", "runs on no GPU"),
])
def test_what_a_server_takes_from_elsewhere_is_refused_by_name(command: str, said: str, tmp_path: Path) -> None:
    files = read_files([written(tmp_path, "serve.sh", command)], command="serve")
    assert said in refusal(files)
    if "no GPU" in said:  # what is left out would be the whole question
        with pytest.raises(Unsupported, match="runs on no GPU"):
            settled(files, (), ignore_unread=True)


@pytest.mark.parametrize(("argument", "paced"), [("256", True), ("0", False)])
def test_what_paces_prompts_alone_is_named(argument: str, paced: bool, tmp_path: Path) -> None:
    command = f"vllm serve llama-3.1-8b --long-prefill-token-threshold {argument}"
    given = read_files([written(tmp_path, "serve.sh", command)], command="serve")
    assert any("paces prompts" in line for line in given.assumptions) is paced


def test_a_placeholder_swallows_nothing_of_the_command(tmp_path: Path) -> None:
    """A shell would read `<model> --enforce-eager` as two files."""
    files = read_files([written(tmp_path, "serve.sh", "vllm serve <model> --enforce-eager -tp 2")], command="serve")
    assert (files.options["graphs"], files.options["tp"]) == (False, 2)


@pytest.mark.parametrize("method", ["gptq", "gptq_marlin", "awq", "AWQ"])
def test_packed_weights_are_those_of_a_checkpoint(method: str, tmp_path: Path) -> None:
    stem = method.lower().partition("_")[0]
    for model, read in (("Qwen/Qwen2.5-7B-Instruct", False), (f"Qwen/Qwen2.5-7B-Instruct-{stem.upper()}-Int4", True),
                        ("/models/mine", True), ("$MODEL", True)):
        path = written(tmp_path, "serve.sh", f"vllm serve {model} --quantization {method}")
        assert ("is no checkpoint in" in refusal(read_files([path], command="serve"))) is not read


@pytest.mark.parametrize(("script", "ranks"), [
    ("export CUDA_VISIBLE_DEVICES=0,1,2,3\npython pretrain_gpt.py", 4),
    ("CUDA_VISIBLE_DEVICES=0,1\ntorchrun --nproc-per-node 8 --nnodes 2 pretrain_gpt.py", 4),
    ("export CUDA_VISIBLE_DEVICES=$1\ntorchrun --nproc-per-node 8 pretrain_gpt.py", 8),
    ("CUDA_VISIBLE_DEVICES=0,1 torchrun --nproc-per-node 2 pretrain_gpt.py", 2),
    ("CUDA_VISIBLE_DEVICES=0,1 python pretrain_gpt.py", 2),
])
def test_cards_that_a_script_may_see_are_compared_with_the_question(script: str, ranks: int, tmp_path: Path) -> None:
    arguments = " --num-layers 2 --hidden-size 64 --num-attention-heads 4 --micro-batch-size 1 --seq-length 64"
    files = read_files([written(tmp_path, "a.sh", script + arguments)], command="train")
    assert set(files.ranks.values()) == {ranks}


@pytest.mark.parametrize("image", ["vllm/vllm-openai", "vllm/vllm-openai-rocm:latest", "vllm/vllm-openai:latest",
                                   "vllm/vllm-openai:latest-cu130", "vllm/vllm-openai:v0.11.0-cu128",
                                   "vllm/vllm-openai:$TAG"])
def test_an_image_of_the_newest_or_of_a_named_version_is_read(image: str, tmp_path: Path) -> None:
    path = written(tmp_path, "serve.sh", f"docker run --gpus all {image} --model llama-3.1-8b")
    assert refusal(read_files([path], command="serve")) == ""


@pytest.mark.parametrize(("units", "said"), [
    ("LlamaDecoderLayer", ""), ("T5Block,T5LayerNorm", "T5LayerNorm"), ("LlamaMLP", "LlamaMLP"), ("BertLayer", ""),
    ("Qwen3MoeDecoderLayer, Qwen3MoeSparseMoeBlock", "Qwen3MoeSparseMoeBlock"), (["GPT2Block"], ""),
])
def test_units_that_are_no_layers_are_refused(units: Any, said: str, tmp_path: Path) -> None:
    table = {"distributed_type": "FSDP", "mixed_precision": "bf16", "fsdp_config": {
        "fsdp_auto_wrap_policy": "TRANSFORMER_BASED_WRAP", "fsdp_transformer_layer_cls_to_wrap": units}}
    found = refusal(read_files([written(tmp_path, "acc.json", table)], command="train"))
    assert (f"units of {said} are not modelled" in found) if said else not found


def test_the_trainers_auto_wrap_is_one_unit_a_layer(tmp_path: Path) -> None:
    table = {"per_device_train_batch_size": 1, "bf16": True, "fsdp": "full_shard auto_wrap", "fsdp_config": {
        "transformer_layer_cls_to_wrap": ["Qwen3DecoderLayer"], "backward_prefetch": "backward_pre"}}
    assert refusal(read_files([written(tmp_path, "a.json", table)], command="train")) == ""
    table["fsdp_config"] = {"min_num_params": 10**8}
    assert "SIZE_BASED_WRAP" in refusal(read_files([written(tmp_path, "b.json", table)], command="train"))
    table |= {"fsdp": "full_shard", "fsdp_config": {"version": 1}}
    assert "NO_WRAP is not modelled" in refusal(read_files([written(tmp_path, "c.json", table)], command="train"))


@pytest.mark.parametrize("model", ["vit-large-patch16-224", "bert-base-uncased"])
@pytest.mark.parametrize("objective", ["dpo", "ppo", "grpo"])
def test_answers_are_compared_by_models_that_write_some(model: str, objective: str) -> None:
    with pytest.raises(InvalidSpec, match="writes none"):
        vramcast.train(model, gpus="1xh100-sxm-80gb", objective=objective)


@pytest.mark.parametrize(("command", "name", "text", "tool"), [
    ("train", "a.sh", "accelerate launch train.py --batch_size 4", "accelerate launches"),
    ("train", "a.py", "args = TrainingArguments(output_dir='x')", "Transformers' Trainer"),
    ("serve", "a.py", "from vllm import LLM\nllm = LLM(model='Qwen/Qwen3-8B')", "vLLM in Python"),
    ("serve", "a.sh", "python api_server.py --model x -q awq", "vLLM in Python"),
])
def test_a_script_of_a_tool_that_is_not_read_is_refused_by_its_name(
    command: str, name: str, text: str, tool: str, tmp_path: Path
) -> None:
    with pytest.raises((Unsupported, InvalidSpec), match=tool):
        read_files([written(tmp_path, name, text)], command=command)


def test_removed_names_and_old_versions_get_one_sentence(tmp_path: Path) -> None:
    old = written(tmp_path, "ds.json", DEEPSPEED | {"amp": {"enabled": True}, "zero_optimisation": {}})
    said = refusal(read_files([old], command="train"))
    assert "amp: removed" in said
    assert "zero_optimisation: deepspeed" in said and "did you mean zero_optimization" in said


def test_trainer_and_deepspeed_files_together_are_one_run(tmp_path: Path) -> None:
    lines = (
        "per_device_train_batch_size: 2", "bf16: true", "gradient_checkpointing: true",
        "gradient_accumulation_steps: 4", "deepspeed: ds.json",
    )
    trainer = written(tmp_path, "args.yaml", "\n".join(lines))
    auto = {"train_batch_size": "auto", "gradient_accumulation_steps": "auto", "fp16": {"enabled": "auto"}}
    config = DEEPSPEED | auto
    deepspeed = written(tmp_path, "ds.json", config)
    for order in ((trainer, deepspeed), (deepspeed, trainer)):
        job = asked(*order, model="qwen3-8b", gpus="8xa100-sxm4-80gb")
        assert (job.engine, job.plan.sharded_by) == ("huggingface", "deepspeed")  # the Trainer's code around ZeRO
        assert job.plan.recompute is Recompute.FULL
        assert (job.workload.micro_batch, job.workload.grad_accum) == (2, 4)


@pytest.mark.parametrize(("switch", "engine", "liger"), [
    ("enable_liger_kernel", "huggingface", True), ("use_unsloth", "unsloth", None),
])
def test_whose_kernels_llamafactory_runs_is_read(switch: str, engine: str, liger: Any, tmp_path: Path) -> None:
    table = {"finetuning_type": "lora", "do_train": True, "stage": "sft", switch: True}
    job = asked(written(tmp_path, "a.json", table), model="llama-3.2-1b", gpus="h100")
    assert (job.engine, job.engine_options.get("liger")) == (engine, liger)


def test_preferences_of_llamafactory_without_a_reference_take_less(tmp_path: Path) -> None:
    table = {"finetuning_type": "full", "do_train": True, "stage": "dpo", "pref_ftx": 0.1}
    peaks = {}
    for loss in ("sigmoid", "orpo", "simpo"):
        path = written(tmp_path, f"{loss}.json", table | {"pref_loss": loss})
        peaks[loss] = answer(asked(path, model="qwen3-0.6b", gpus="h100", seq_len=512)).peak.allocated_bytes
    assert peaks["orpo"] == peaks["simpo"] < peaks["sigmoid"] - 2 * 596_049_920  # a second network in fp32 at least


@pytest.mark.parametrize(("model", "pixels", "side"), [
    ("qwen2.5-vl-7b", 262144, 512), ("qwen3-vl-4b", 262144, 512), ("qwen2.5-vl-7b", None, 768),
    ("llava-1.5-7b", 262144, None), ("llama-3.2-1b", 262144, None),  # makes all images its size; reads none
])
def test_llamafactory_makes_images_smaller(model: str, pixels: int | None, side: int | None, tmp_path: Path) -> None:
    table = {"finetuning_type": "lora", "do_train": True, "stage": "sft", "image_max_pixels": pixels}
    job = asked(written(tmp_path, "a.json", table), model=model, gpus="h100")
    assert job.workload.image_size == side


@pytest.mark.parametrize(
    ("options", "name"),
    [
        ({"engine": "deepspeed", "zero": "3", "offload-optimizer": "cpu", "grad-accum": 4}, "ds_config.json"),
        ({"engine": "deepspeed", "zero": "2", "precision": "mixed-fp16", "micro-batch": 4}, "ds_config.json"),
        ({"engine": "megatron", "tp": 4, "pp": 2, "recompute": "full", "recompute-layers": 3}, "run.sh"),
        ({"engine": "megatron", "tp": 2, "cp": 2, "micro-batch": 2, "loss": "eager"}, "run.sh"),
    ],
)
def test_what_is_written_reads_back_to_the_same_memory(options: dict[str, Any], name: str, tmp_path: Path) -> None:
    job = job_of({"model": "llama-3.1-8b", "gpus": "8xa100-sxm4-80gb", "seq-len": 4096, **options})
    write_configs(job, tmp_path, formats=(), force=False, answer=None)
    more = {"seq-len": 4096, "recompute": job.plan.recompute.value} if name == "ds_config.json" else {}
    model = {"model": "llama-3.1-8b"} if name == "ds_config.json" else {}
    read = asked(tmp_path / name, gpus="8xa100-sxm4-80gb", **model, **{k.replace("-", "_"): v for k, v in more.items()})
    assert answer(read).peak == answer(job).peak


@pytest.mark.parametrize(
    ("name", "content", "error", "words"),
    [
        ("a.json", "{", SourceError, "not JSON"),
        ("a.json", "[1]", SourceError, "table"),
        ("a.yaml", "hello: world\n", SourceError, "recognised"),
        ("a.sh", "echo hello\n", SourceError, "recognised"),
        ("a.sh", "vllm serve 'open\n", SourceError, "quot"),
        ("a.json", '{"zero_optimization": {"stage": 1}, "x": ' + "[" * 30 + "]" * 30 + "}", SourceError, "deep"),
    ],
)
def test_what_is_no_configuration_gets_one_sentence(
    name: str, content: str, error: type[Exception], words: str, tmp_path: Path
) -> None:
    path = written(tmp_path, name, content)
    with pytest.raises(error, match=words):
        read_files([path], command="serve" if "vllm" in content else "train")


def test_other_bad_input(tmp_path: Path) -> None:
    path = written(tmp_path, "ds.json", DEEPSPEED)
    with pytest.raises(UnknownName, match="nothing"):
        read_files([path], command="train", format_name="nothing")
    with pytest.raises(SourceError):
        read_files([tmp_path / "missing.json"], command="train")
    path.write_text(" " * (2 << 20))
    with pytest.raises(SourceError, match="at most"):
        read_files([path], command="train")


@settings(max_examples=150, deadline=None)
@given(st.sampled_from(["run.sh", "ds.json", "a.yaml"]), st.text(max_size=300), st.sampled_from([MEGATRON, VLLM, ""]))
def test_no_text_leads_to_anything_but_a_sentence(
    tmp_path_factory: pytest.TempPathFactory, name: str, noise: str, script: str
) -> None:
    path = written(tmp_path_factory.mktemp("fuzz"), name, noise + script + noise)
    for command in ("train", "serve"):
        try:
            given = read_files([path], command=command)
            solved(given.options, given.batch, 8)
            settled(given, (), ignore_unread=False)
        except VramcastError as error:
            assert len(str(error)) < 1500


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-10, 10**12) | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3), max_leaves=10,
)


@settings(max_examples=150, deadline=None)
@given(st.dictionaries(
    st.sampled_from([
        "zero_optimization", "train_batch_size", "bf16", "fp16", "optimizer", "distributed_type", "fsdp_config",
        "deepspeed_config", "per_device_train_batch_size", "finetuning_type", "optim", "deepspeed", "fsdp",
        "lora_target", "num_layers", "micro_batch_size", "hidden_size", "gpu_memory_utilization", "quantization",
    ]), JSON, min_size=1, max_size=6,
))
def test_no_table_leads_to_anything_but_a_sentence(
    tmp_path_factory: pytest.TempPathFactory, values: dict[str, Any]
) -> None:
    path = written(tmp_path_factory.mktemp("fuzz"), "a.json", values)
    for command in ("train", "serve"):
        try:
            settled(read_files([path], command=command), (), ignore_unread=False)
        except VramcastError as error:
            assert len(str(error)) < 1500


@pytest.mark.parametrize("length", ["auto", "-1"])
def test_a_length_that_vllm_fits_to_the_card_is_no_default(tmp_path: Path, length: str) -> None:
    path = written(tmp_path, "serve.sh", f"vllm serve Qwen/Qwen3-8B --max-model-len {length}")
    with pytest.raises(Unsupported, match="max_model_len"):
        settled(read_files([path], command="serve"), (), ignore_unread=False)


def test_arguments_of_megatron_are_its_own_with_its_defaults() -> None:
    kinds = (Row, Switch)
    tables = [(found,) if isinstance(found, kinds) else found for found in vars(megatron_model).values()]
    named = [row for table in tables if isinstance(table, tuple) for row in table if isinstance(row, kinds)]
    assert len(named) > 30
    for row in named:
        entry = load_format("megatron").find("arguments", row.name)
        assert entry is not None, row
        if isinstance(row, Row) and row.usual:  # none: the engine's choice
            assert entry.default in (None, row.usual), row


def test_a_copy_that_bitsandbytes_packed_is_trained_over_as_it_is(tmp_path: Path) -> None:
    name = "/models/Llama-3.1-8B-Instruct-bnb-4bit"
    content = {"finetuning_type": "lora", "stage": "sft", "do_train": True, "model_name_or_path": name}
    given = about_network(read_files([written(tmp_path, "a.json", content)], command="train"), name)
    assert refusal(given) == "" and given.options["base-weights"] == "nf4-dq"
    mixed = content | {"model_name_or_path": "unsloth/Qwen3-14B-unsloth-bnb-4bit"}
    assert "bnb weights are not modelled" in refusal(read_files([written(tmp_path, "b.json", mixed)], command="train"))


@pytest.mark.parametrize(("name", "text", "said"), [
    ("a.yml", "base_model: {{ model }}\nsequence_len: {{ length | default(4096) }}\nadapter: lora\n", "is a template"),
    ("a.json", '{"zero_optimization": {"stage": {% if big %}3{% else %}2{% endif %}}}', "is a template"),
    ("a.yml", 'base_model: meta-llama/Llama-3.1-8B\ndatasets:\n  - path: "tatsu-lab/alp', "not YAML: .* line 3"),
    ("a.json", '{"zero_optimization": {"stage": 3, "offload_optimizer"', "not JSON"),
    ("a.yml", "base_model: !include base.yml\nadapter: lora\n", "'!include', line 1"),
    ("a.yml", "name: CI\njobs: {test: {runs-on: ubuntu}}\n", "is recognised in it"),
])
def test_half_a_file_and_one_of_another_tool_are_one_sentence(name: str, text: str, said: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text(text, encoding="utf-8")
    with pytest.raises(SourceError, match=said) as refused:
        read_files([tmp_path / name], command="train")
    assert "\n" not in str(refused.value) and "tatsu-lab" not in str(refused.value)


def test_the_file_of_deepspeed_that_another_names_is_read_where_it_is_here(tmp_path: Path) -> None:
    content = {"finetuning_type": "full", "stage": "sft", "do_train": True, "model_name_or_path": "qwen2.5-7b",
               "deepspeed": "ds/zero.json"}
    mine = written(tmp_path, "mine.json", content)
    assert "deepspeed: is a file of its own" in refusal(read_files([mine], command="train"))
    (tmp_path / "ds").mkdir()
    zero = written(tmp_path / "ds", "zero.json", {"zero_optimization": {"stage": 3}, "bf16": {"enabled": True}})
    found = read_files([mine], command="train")
    assert found.options == read_files([mine, zero], command="train").options and found.options["zero"] == "3"
