"""Configurations of other tools: what they ask is answered, what they hold beside that is said."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import vramcast
from vramcast.api import job_of
from vramcast.domain.job import Job
from vramcast.engines.eager.question import recipe_of
from vramcast.engines.eager.recipe import part_of, weights
from vramcast.errors import InvalidSpec, SourceError, UnknownName, Unsupported, VramcastError
from vramcast.estimate.training import answer
from vramcast.formats.paths import Invocation
from vramcast.formats.read import read_files, settled
from vramcast.formats.reading import Given
from vramcast.formats.unread import about_network
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


def test_what_is_not_read_of_a_script_is_named(tmp_path: Path) -> None:
    given = read_files([written(tmp_path, "run.sh", LAUNCHER)], command="train")
    assert "run.sh: not read, as the command does not use them: $OTHER" in given.assumptions
    assert refusal(given) == ""  # --lr and --save change nothing, whatever stands in them


@pytest.mark.parametrize(("text", "tokens"), [("32k", 32_000), ("32K", 32_768), ("25.6k", 25_600), ("16384", 16_384)])
def test_vllms_numbers_have_suffixes(text: str, tokens: int, tmp_path: Path) -> None:
    path = written(tmp_path, "serve.sh", VLLM.replace("16384", text))
    assert read_files([path], command="serve").options["context"] == tokens


@pytest.mark.parametrize(("name", "content", "said"), [
    ("ds.json", {"zero_optimization": {"stage": 3, "offload_optimizer": {"device": "disk"}}}, "'disk'"),
    ("ds.json", {"zero_optimization": {"stage": 3}, "train_batch_size": "many"}, "'many'"),
    ("ds.json", {"zero_optimization": {"stage": 3}, "bf16": {"enabled": "perhaps"}}, "bf16.enabled: 'perhaps'"),
    ("a.json", {"num_train_epochs": 1, "bf16": "perhaps"}, "bf16: 'perhaps'"),
    ("a.json", {"finetuning_type": "freeze"}, "freeze is not modelled"),
    ("a.json", {"finetuning_type": "lora", "use_asft_loss": True}, "use_asft_loss: stops beside adapters"),
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
])
def test_no_value_is_dropped_in_silence(name: str, content: Any, said: str, tmp_path: Path) -> None:
    given = read_files([written(tmp_path, name, content)], command="train")
    assert said in refusal(given), given


@pytest.mark.parametrize(("command", "said"), [
    ("vllm serve llama-3.1-8b --config server.yaml", "config: is a file of its own"),
    ("vllm serve llama-3.1-8b --config $FILE", "config: ${FILE} is not set in the file"),
    ("vllm serve <your model> -tp 2 < in.txt > out.txt", "model: <your_model> is a placeholder"),
    ("vllm serve Qwen/<model> -tp 2", "model: <model> is a placeholder"),
    ("vllm serve <模型 目录> -tp 2", "model: <模型_目录> is a placeholder"),
    ("vllm serve llama-3.1-8b --max-model-len <LEN> --enforce-eager", "max_model_len: <LEN> is a placeholder"),
    ("vllm serve llama-3.1-8b --kv-transfer-config '{\"kv_connector\":\"NixlConnector\",\"kv_buffer_device\":\"cpu\"}'",
     "kv_transfer_config.kv_buffer_device: may change"),
    ("vllm serve llama-3.1-8b --device cpu", "device: runs on no GPU"),
    ("python -m sglang.launch_server --model llama-3.1-8b --device cpu", "device: runs on no GPU"),
    ("export VLLM_TARGET_DEVICE=cpu\nvllm serve llama-3.1-8b", "VLLM_TARGET_DEVICE: runs on no GPU"),
    ("docker run vllm/vllm-openai:glm51 llama-3.1-8b", "vllm/vllm-openai:glm51: does not say which vllm"),
    ("docker run vllm/vllm-openai:nightly-8bff831f llama-3.1-8b", "nightly-8bff831f: does not say which vllm"),
    ("docker run vllm/vllm-openai-cpu:latest-x86_64 --model llama-3.1-8b", "runs on no GPU"),
    ("docker run --gpus all ghcr.io/ggml-org/llama.cpp:server -m Qwen3-8B-Q4_0.gguf", "cpp:server: runs on no GPU"),
    ("docker run ghcr.io/ggml-org/llama.cpp:server-b4068 -m Qwen3-8B-Q4_0.gguf -ngl 99", "b4068: runs on no GPU"),
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


@pytest.mark.parametrize("image", ["vllm/vllm-openai", "vllm/vllm-openai-rocm:latest", "vllm/vllm-openai:latest",
                                   "vllm/vllm-openai:latest-cu130", "vllm/vllm-openai:v0.11.0-cu128",
                                   "vllm/vllm-openai:$TAG"])
def test_an_image_of_the_newest_or_of_a_named_version_is_read(image: str, tmp_path: Path) -> None:
    path = written(tmp_path, "serve.sh", f"docker run --gpus all {image} --model llama-3.1-8b")
    assert refusal(read_files([path], command="serve")) == ""


@pytest.mark.parametrize("model", ["vit-large-patch16-224", "bert-base-uncased"])
@pytest.mark.parametrize("objective", ["dpo", "ppo", "grpo"])
def test_answers_are_compared_by_models_that_write_some(model: str, objective: str) -> None:
    with pytest.raises(InvalidSpec, match="writes none"):
        vramcast.train(model, gpus="1xh100-sxm-80gb", objective=objective)


def test_removed_names_and_old_versions_get_one_sentence(tmp_path: Path) -> None:
    old = written(tmp_path, "ds.json", DEEPSPEED | {"amp": {"enabled": True}, "zero_optimisation": {}})
    said = refusal(read_files([old], command="train"))
    assert "amp: removed" in said
    assert "zero_optimisation: deepspeed" in said and "did you mean zero_optimization" in said


def test_what_llamafactory_freezes_beside_full_tuning_stays_in_16_bits(tmp_path: Path) -> None:
    table = {"model_name_or_path": "Qwen/Qwen2.5-VL-7B-Instruct", "stage": "sft", "finetuning_type": "full",
             "template": "qwen2_vl", "cutoff_len": 1024, "packing": True, "bf16": True, "learning_rate": 1e-5,
             "per_device_train_batch_size": 1, "gradient_accumulation_steps": 1, "num_train_epochs": 1}
    job = asked(written(tmp_path, "sft.yaml", table), gpus="1xb200")
    held = weights(recipe_of(job, loss="eager"))
    widths = {(part_of(weight.owner, weight.path), weight.learns): weight.width for weight in held}
    assert widths == {("vision", False): 2, ("projector", False): 2, ("embedding", True): 4, ("decoder", True): 4,
                      ("head", True): 4}


def test_preferences_of_llamafactory_without_a_reference_take_less(tmp_path: Path) -> None:
    table = {"finetuning_type": "full", "do_train": True, "stage": "dpo", "pref_ftx": 0.1}
    peaks = {}
    for loss in ("sigmoid", "orpo", "simpo"):
        path = written(tmp_path, f"{loss}.json", table | {"pref_loss": loss})
        peaks[loss] = answer(asked(path, model="qwen3-0.6b", gpus="h100", seq_len=512)).peak.allocated_bytes
    assert peaks["orpo"] == peaks["simpo"] < peaks["sigmoid"] - 2 * 596_049_920  # a second network in fp32 at least


@pytest.mark.parametrize(("sizes", "found"), [
    ({"sp_size": 2, "sp_backend": "deepspeed"}, (2, "ulysses")), ({"cp_size": 4}, (4, "allgather")),
    ({"cp_size": 2, "cp_comm_strategy": "alltoall"}, (2, "ring")),
])
def test_a_mesh_says_whose_ranks_share_samples(sizes: dict[str, Any], found: tuple[int, str], tmp_path: Path) -> None:
    kind = {"distributed_type": "DEEPSPEED", "deepspeed_config": {"zero_stage": 3}} if "sp_size" in sizes else {
        "distributed_type": "FSDP",
        "fsdp_config": {"fsdp_version": 2, "fsdp_auto_wrap_policy": "TRANSFORMER_BASED_WRAP"}}
    mesh = {f"parallelism_config_{name}": value for name, value in sizes.items()}
    path = written(tmp_path, "a.json", kind | {"mixed_precision": "bf16", "parallelism_config": mesh})
    plan = asked(path, model="llama-3.2-1b", gpus="8xh100", attention="flash").plan
    assert (plan.cp, plan.cp_kind) == found


@pytest.mark.parametrize(("options", "name"), [
    ({"engine": "deepspeed", "zero": "3", "offload-optimizer": "cpu", "grad-accum": 4}, "ds_config.json"),
    ({"engine": "deepspeed", "zero": "2", "precision": "mixed-fp16", "micro-batch": 4}, "ds_config.json"),
    ({"engine": "megatron", "tp": 4, "pp": 2, "recompute": "full", "recompute-layers": 3}, "run.sh"),
    ({"engine": "megatron", "tp": 2, "cp": 2, "micro-batch": 2, "loss": "eager"}, "run.sh"),
])
def test_what_is_written_reads_back_to_the_same_memory(options: dict[str, Any], name: str, tmp_path: Path) -> None:
    job = job_of({"model": "llama-3.1-8b", "gpus": "8xa100-sxm4-80gb", "seq-len": 4096, **options})
    write_configs(job, tmp_path, formats=(), force=False, answer=None)
    more = {"seq-len": 4096, "recompute": job.plan.recompute.value} if name == "ds_config.json" else {}
    model = {"model": "llama-3.1-8b"} if name == "ds_config.json" else {}
    read = asked(tmp_path / name, gpus="8xa100-sxm4-80gb", **model, **{k.replace("-", "_"): v for k, v in more.items()})
    assert answer(read).peak == answer(job).peak


@pytest.mark.parametrize(("name", "content", "error", "words"), [
    ("a.json", "{", SourceError, "not JSON"),
    ("a.json", "[1]", SourceError, "table"),
    ("a.yaml", "hello: world\n", SourceError, "recognised"),
    ("a.sh", "echo hello\n", SourceError, "recognised"),
    ("a.sh", "vllm serve 'open\n", SourceError, "quot"),
    ("a.json", '{"zero_optimization": {"stage": 1}, "x": ' + "[" * 30 + "]" * 30 + "}", SourceError, "deep"),
])
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


def test_a_remark_names_no_image(tmp_path: Path) -> None:
    command = "vllm serve llama-3.1-8b --max-model-len 4096  # beside vLLM-neuron, and vllm/vllm-openai-cpu:latest\n"
    assert refusal(read_files([written(tmp_path, "serve.sh", f"set -e\n{command}")], command="serve")) == ""


def test_arguments_that_a_script_hands_on_are_said_to_be_none(tmp_path: Path) -> None:
    path = written(tmp_path, "serve.sh", 'vllm serve llama-3.1-8b --port "$1" "$@"\n')
    for arguments, is_said in ((None, True), (("8000",), False)):
        found = read_files([path], command="serve", started=Invocation(arguments))
        assert any('"$@" is taken for nothing' in line for line in found.assumptions) == is_said
