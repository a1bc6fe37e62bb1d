"""axolotl's YAML, read and written."""

from pathlib import Path
from typing import Any

import pytest
import yaml
from msgspec.structs import replace

from tests.formats.plans import named
from tests.formats.test_read_back import figures, plain, read_again
from tests.formats.test_readers import asked, refusal, written
from vramcast.api import job_of
from vramcast.domain.job import Job
from vramcast.domain.program import Alloc
from vramcast.engines.eager.graphs import blocks
from vramcast.engines.eager.preference import rated
from vramcast.engines.eager.question import recipe_of
from vramcast.errors import Unsupported
from vramcast.estimate.training import answer
from vramcast.formats.files import File
from vramcast.formats.read import read_files
from vramcast.formats.write import files_of

QLORA = """
base_model: llama-3.2-1b
load_in_8bit: false
load_in_4bit: true
datasets:
  - path: mhenrichsen/alpaca_2k_test
    type: alpaca
val_set_size: 0.05
adapter: qlora
lora_r: 32
lora_alpha: 16
lora_dropout: 0.05
lora_target_linear: true
sequence_len: 4096
sample_packing: true
wandb_project:
gradient_accumulation_steps: 4
micro_batch_size: 2
num_epochs: 4
optimizer: paged_adamw_8bit
learning_rate: 0.0002
bf16: auto
tf32: false
gradient_checkpointing: true
flash_attention: true
"""


def table(**changes: Any) -> dict[str, Any]:
    found = yaml.safe_load(QLORA) | changes
    return {name: value for name, value in found.items() if value != "gone"}


def read(path: Path, **changes: Any) -> dict[str, Any]:
    return read_files([written(path, "axolotl.yaml", table(**changes))], command="train").options


FULL: dict[str, Any] = dict.fromkeys(
    ("adapter", "load_in_4bit", "lora_r", "lora_alpha", "lora_dropout", "lora_target_linear"), "gone")


@pytest.mark.parametrize("changes, expected", [
    (FULL, {"precision": "bf16"}),
    (FULL | {"adapter": None}, {"precision": "bf16"}),
    (FULL | {"adapter": None, "activation_offloading": True}, {"recompute": "full", "offload-activations": True}),
    (FULL | {"bf16": False}, {"precision": "fp32"}),
    ({"bf16": "full"}, {"precision": "bf16", "adapter-dtype": "fp32"}),
    (FULL | {"bf16": False, "float16": True, "fp16": False}, {"precision": "fp16"}),
    (FULL | {"bf16": False, "tf32": True}, {"precision": "tf32"}),
    ({"fp16": True, "bf16": None}, {"precision": "amp-fp16"}),
    ({"adapter": "lora", "load_in_4bit": False, "load_in_8bit": True}, {"base-weights": "int8"}),
    ({"bnb_config_kwargs": {"bnb_4bit_use_double_quant": False}}, {"base-weights": "nf4"}),
    ({"peft_use_dora": True}, {"peft": "dora"}),
    ({"relora": True, "relora_prune_ratio": 0.9, "jagged_restart_steps": 150}, {"peft": "lora", "lora-rank": 32}),
    ({"lora_target_linear": False, "lora_target_modules": ["q_proj", "v_proj"]}, {"lora-targets": "q_proj,v_proj"}),
    ({"lora_modules_to_save": ["embed_tokens", "lm_head"]}, {"modules-to-save": "embed_tokens,lm_head"}),
    ({"optimizer": "adamw_torch_8bit"}, {"optimizer": "adamw-8bit-torchao"}),
    ({"optimizer": "adamw_torch_fused"}, {"optimizer": "adamw", "optimizer-kernel": "fused"}),
    ({"gradient_checkpointing": False}, {"recompute": "none"}),
    ({"gradient_checkpointing": "offload"}, {"recompute": "none", "offload-activations": True}),
    (FULL | {"activation_offloading": True}, {"recompute": "full", "offload-activations": True}),
    ({"flash_attention": None, "attn_implementation": "xformers"}, {"attention": "efficient"}),
    ({"flash_attention": None, "sdp_attention": True}, {"attention": "flash"}),
    ({"flash_attention": None, "attn_implementation": "eager"}, {"attention": "eager"}),
    ({"rl": "dpo", "sample_packing": False}, {"objective": "dpo"}),
    (FULL | {"reward_model": True}, {"objective": "reward"}),
    (FULL | {"process_reward_model": True, "num_labels": 2}, {"objective": "tagging"}),
    (FULL | {"pretraining_dataset": [{"path": "allenai/c4"}], "datasets": "gone"}, {"objective": "pretrain"}),
    ({"plugins": ["axolotl.integrations.cut_cross_entropy.CutCrossEntropyPlugin"]}, {"loss": "fused_linear"}),
    (FULL | {"unfrozen_parameters": ["^model.language_model.*", "lm_head"]}, {"freeze": "vision,projector"}),
    (FULL | {"unfrozen_parameters": ["^lm_head.weight$", "^model.embed_tokens.weight$"]}, {"freeze": "layers"}),
    (FULL | {"unfrozen_parameters": ["^lm_head.weight$", "^model.embed_tokens.weight$",
                                     "model.layers.5[0-5]+.block_sparse_moe.gate"],
             "base_model": "mistral-community/Mixtral-8x22B-v0.1"}, {"freeze": "layers"}),
    ({"rl": "dpo", "sample_packing": False, "lora_dropout": 0}, {"engine-option": (
        "accelerate=1.13", "trl=1.8", "dtype=bfloat16", "prepare_kbit=none", "reentrant=false")}),
    ({"torch_compile": "auto"}, {"compile": True}),
    ({"context_parallel_size": 2}, {"cp": 2, "cp-kind": "ring"}),
    ({"tensor_parallel_size": 2}, {"tp": 2}),
    (FULL | {"lisa_n_layers": 4, "lisa_step_interval": 20}, {"peft": None}),
    ({"tiled_mlp": True}, {"precision": "amp-bf16"}),
    ({"sequence_len": "gone"}, {"seq-len": 512}),
    (FULL | {"fsdp_version": 2, "fsdp_config": {"auto_wrap_policy": "TRANSFORMER_BASED_WRAP", "offload_params": True}},
     {"sharded-by": "fsdp2", "shards": "everything", "offload-parameters": "cpu", "precision": "amp-bf16"}),
    (FULL | {"fsdp": ["full_shard", "auto_wrap"], "fsdp_config": {"fsdp_use_orig_params": False}},
     {"sharded-by": "fsdp1", "shards": "everything", "engine": "huggingface@5.14"}),
    (FULL | {"deepspeed": "deepspeed_configs/zero2.json"},
     {"sharded-by": "deepspeed", "zero": "2", "offload-optimizer": "cpu", "precision": "mixed-bf16"}),
])
def test_names_are_read_as_axolotl_means_them(
    changes: dict[str, Any], expected: dict[str, Any], tmp_path: Path
) -> None:
    found = read(tmp_path, **changes)
    assert {name: found.get(name) for name in expected} == expected


def test_ligers_kernels_run_where_the_plugin_is_there(tmp_path: Path) -> None:
    switches = {"liger_rope": True, "liger_rms_norm": True, "liger_fused_linear_cross_entropy": True}
    plugin = {"plugins": ["axolotl.integrations.liger.LigerPlugin"]}
    assert "liger=rope+rms_norm" in read(tmp_path, **switches, **plugin)["engine-option"]
    assert read(tmp_path, **switches, **plugin)["loss"] == "fused_linear"
    assert read(tmp_path, **switches)["loss"] == "eager"


def test_bf16_auto_is_fp16_on_cards_that_have_none(tmp_path: Path) -> None:
    path = written(tmp_path, "axolotl.yaml", table())
    assert asked(path, gpus="t4").plan.precision == "amp-fp16"
    assert asked(path, gpus="t4", precision="amp-bf16").plan.precision == "amp-bf16"
    assert asked(path, gpus="a100").plan.precision == "amp-bf16"
    with pytest.raises(Unsupported, match="no bf16, and the gradients of weights in fp16"):
        asked(written(tmp_path, "full.yaml", table(**FULL)), gpus="t4")


def test_a_batch_of_one_card_is_divided(tmp_path: Path) -> None:
    path = written(tmp_path, "axolotl.yaml", table(batch_size=16, gradient_accumulation_steps=None))
    assert (asked(path, gpus="h100").workload.micro_batch, asked(path, gpus="h100").workload.grad_accum) == (2, 8)


@pytest.mark.parametrize("model, named, experts, option", [
    ("mixtral-8x7b", {}, False, True),  # its layers have no other linear ones
    ("qwen3-30b-a3b", {}, False, True),
    ("qwen3-30b-a3b", {"lora_target_linear": None, "lora_target_modules": ["down_proj"]}, True, True),
    ("qwen3-30b-a3b", {"lora_dropout": 0}, False, False),
    ("llama-3.2-1b", {}, False, False),
])
def test_stacked_experts_are_adapted_by_name_alone_and_without_dropout(
    model: str, named: dict[str, Any], experts: bool, option: bool, tmp_path: Path
) -> None:
    job = asked(written(tmp_path, "a.yaml", table(base_model=model, **named)), gpus="h100")
    assert job.plan.peft is not None
    assert any(path.startswith("moe.experts.") for path in job.plan.peft.targets) == experts
    assert bool(job.engine_options.get("experts_without_dropout")) == option
    answer(replace(job, workload=replace(job.workload, seq_len=64, min_seq_len=None)))


@pytest.mark.parametrize("command, said", [
    ("axolotl train other.yml", "'other.yml': is a file of its own"),
    ("axolotl train lora.yml --lora-rnk 4", "lora_rnk"),
    ("axolotl train lora.yml --sweep s.yml", "sweep"),
    ("accelerate launch --use_fsdp -m axolotl.cli.train lora.yml", "shards beside axolotl's own configuration"),
])
def test_what_a_command_says_that_is_not_read_is_named(command: str, said: str, tmp_path: Path) -> None:
    written(tmp_path, "lora.yml", yaml.safe_dump(table()))
    assert said in refusal(read_files([written(tmp_path, "run.sh", command)], command="train"))


@pytest.mark.parametrize("changes, sentence", [
    ({"rl": "ebft"}, "rl: 'ebft' is not one of dpo"),
    ({"lisa_n_layers": 4}, "lisa_n_layers"),
    (FULL | {"qat": {"weight_dtype": "nvfp4", "activation_dtype": "nvfp4", "group_size": 16}}, "stops in torchao 0.17"),
    (FULL | {"qat": {"weight_dtype": "int4", "activation_dtype": "fp8"}}, "activations of 'fp8' are not modelled"),
    (FULL | {"qat": {"weight_dtype": "int4", "quantize_embedding": True}}, "qat.quantize_embedding"),
    ({"plugins": ["axolotl.integrations.kd.KDPlugin"]}, "KDPlugin may change memory"),
    ({"unfrozen_parameters": ["lm_head"]}, "unfrozen_parameters: is compared beside an adapter with names"),
    (FULL | {"unfrozen_parameters": ["model.layers.1"]}, "unfrozen_parameters"),
    (FULL | {"fp8": True}, "fp8: is modelled under FSDP2 with"),
    ({"plugins": ["axolotl.integrations.diffusion.DiffusionPlugin"]}, "reads no mask of pairs of positions"),
    ({"flash_attn_rms_norm": True}, "flash_attn_rms_norm: axolotl 0.18.0 stops at it"),
    ({"deepspeed": "my/ds.json"}, "deepspeed: is a file of its own"),
    ({"adapter": "lora"}, "packs nothing for adapter: lora"),
    ({"lora_target_linear": None}, "lora_target_modules: is not given"),
    ({"optimizer": "dion"}, "optimizer: 'dion' is not modelled"),
    (FULL | {"flash_attention": None, "bf16": "full"}, "bf16: leaves embeddings, head and norms in fp32"),
    (FULL | {"fp16": True, "bf16": False}, "stops at the scaler"),
    ({"micro_batch_sise": 2}, "did you mean micro_batch_size"),
    ({"hub_token_of_mine": "hf_abcdefghijklmnopqrstuvwxyz"}, "knows no such name"),
    ({"eval_batch_size": 8}, "evaluation of 8 samples at once"),
])
def test_what_is_not_modelled_is_named(changes: dict[str, Any], sentence: str, tmp_path: Path) -> None:
    said = refusal(read_files([written(tmp_path, "axolotl.yaml", table(**changes))], command="train"))
    assert sentence in said
    assert "hf_abc" not in said


@pytest.mark.parametrize("more, wide", [
    ({}, False), ({"flash_attention": None}, True), ({"flash_attention": None, "sdp_attention": True}, True),
    ({"flash_attention": None, "adapter": "qlora", "load_in_4bit": True}, False),
    ({"flash_attention": None, "deepspeed": "deepspeed_configs/zero2.json"}, False),
    ({"flash_attention": None, "plugins": ["axolotl.integrations.cut_cross_entropy.CutCrossEntropyPlugin"]}, False),
])
def test_kernels_that_read_fp32_leave_ends_and_norms_so(more: dict[str, Any], wide: bool, tmp_path: Path) -> None:
    assert ("fp32_modules=true" in read(tmp_path, **FULL | more)["engine-option"]) == wide


@pytest.mark.parametrize("version, said", [(1, ""), (2, "units of MixtralSparseMoeBlock")])
def test_blocks_of_experts_are_units_of_fsdp1(version: int, said: str, tmp_path: Path) -> None:
    wrapped = {"fsdp_transformer_layer_cls_to_wrap": "MixtralSparseMoeBlock"}
    changes = {"base_model": "mixtral-8x7b", "fsdp": ["full_shard", "auto_wrap"], "fsdp_config": wrapped,
               "fsdp_version": version, "optimizer": "adamw_torch_fused"}
    found = read_files([written(tmp_path, "axolotl.yaml", table(**changes))], command="train")
    assert said in refusal(found) if said else "fsdp_units=experts" in found.options["engine-option"]


@pytest.mark.parametrize("said, pairs", [
    ({"activation_dtype": "int8", "weight_dtype": "int4", "group_size": 64, "fake_quant_after_n_steps": 10},
     {"qat=int8-int4", "qat_group=64"}),
    ({"weight_dtype": "int4"}, {"qat=int4", "qat_group=32"}),
    ({"activation_dtype": "mxfp4", "weight_dtype": "mxfp4"}, {"qat=mxfp4", "qat_group=32"}),
])
def test_rounding_of_a_later_quantisation_is_read(said: dict[str, Any], pairs: set[str], tmp_path: Path) -> None:
    assert pairs <= set(read(tmp_path, **FULL, qat=said)["engine-option"])


def test_samples_of_text_alone_have_no_image(tmp_path: Path) -> None:
    """A tower whose images have one size is counted with one a sample unless it is told that there is none."""
    text = asked(written(tmp_path, "a.yaml", table(**FULL, base_model="gemma-3-4b")), gpus="h200")
    assert text.workload.images == 0
    seen = asked(written(tmp_path, "b.yaml", table(**FULL, base_model="gemma-3-4b", processor_type="AutoProcessor")),
                 gpus="h200")
    assert figures(text)[0][0] < figures(seen)[0][0]
    assert asked(written(tmp_path, "c.yaml", table()), gpus="h200").workload.images == 1


@pytest.mark.parametrize("more", [
    {"peft": "lora", "lora_rank": 16, "attention": "flash"},
    {"peft": "lora", "lora_targets": "q_proj,v_proj", "modules_to_save": "head", "lora_dropout": 0.05,
     "objective": "sft", "loss": "eager", "engine_option": ("dtype=bfloat16",)},
    {"peft": "dora", "base_weights": "nf4", "recompute": "full", "optimizer": "paged-adamw-8bit",
     "engine_option": ("prepare_kbit=none", "dtype=bfloat16"), "objective": "sft", "loss": "eager",
     "adapter_dtype": "fp32"},
    {"peft": "lora", "base_weights": "int8", "engine_option": ("prepare_kbit=none",), "micro_batch": 4},
    {"model": "qwen3-30b-a3b", "gpus": "h200", "peft": "lora", "base_weights": "int8", "lora_targets": "q_proj",
     "engine_option": ("prepare_kbit=none", "pack_experts=true")},
    {"precision": "bf16", "engine_option": ("autocast=true",), "attention": "flash", "optimizer": "adamw-8bit"},
    {"precision": "bf16", "engine_option": ("autocast=true", "liger=rope+rms_norm"), "loss": "fused_linear",
     "attention": "flash", "recompute": "full", "grad_accum": 8},
    {"precision": "bf16", "engine_option": ("autocast=true", "cut_cross_entropy=true"), "loss": "fused_linear",
     "attention": "flash", "optimizer": "muon"},
    {"precision": "fp32", "seq_len": 1024}, {"precision": "tf32", "compile": True, "attention": "eager"},
    {"gpus": "8xh100", "shards": "everything", "sharded_by": "fsdp2", "attention": "flash", "recompute": "full"},
    {"gpus": "8xh100", "shards": "everything", "sharded_by": "fsdp1", "offload_parameters": "cpu",
     "offload_optimizer": "cpu"},
    {"objective": "dpo", "precision": "bf16", "engine_option": ("autocast=true",), "attention": "flash",
     "recompute": "full"},
    {"objective": "dpo", "precision": "bf16", "attention": "flash", "recompute": "full", "engine_option": (
        "autocast=true", "reentrant=false", "precompute_ref_log_probs=true", "log_probs=rows+nll")},
    {"peft": "lora", "offload_activations": True, "loss": "eager", "objective": "sft", "engine_option": (
        "dtype=bfloat16",), "adapter_dtype": "fp32"},
    {"precision": "bf16", "attention": "flash", "recompute": "full", "offload_activations": True, "engine_option": (
        "autocast=true", "reentrant=false")},
])
def test_what_is_written_reads_back_as_the_same_plan(more: dict[str, Any]) -> None:
    pairs = ("accelerate=1.13", "trl=1.8", *more.get("engine_option", ()))
    options = named({"model": "llama-3.2-1b", "gpus": "h100", "engine": "huggingface@5.14"} | more
                    | {"engine_option": pairs})
    job = job_of(options)
    (file,) = [one for one in files_of(job, ("axolotl",))[0] if one.name == "axolotl.yaml"]
    assert read_back(file)["base_model"] in ("meta-llama/Llama-3.2-1B", "Qwen/Qwen3-30B-A3B")
    found = list(read_again(job, options, [("axolotl.yaml",)], formats=("axolotl",)))
    assert found
    for _, again in found:
        assert plain(again) == plain(job)
        assert figures(again) == figures(job)


def read_back(file: File) -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load(file.text)
    return found


@pytest.mark.parametrize("more, sentence", [
    ({"precision": "amp-bf16"}, "axolotl loads weights in 16 bits and runs autocast over them"),
    ({"objective": "reward", "precision": "bf16"}, "not for reward"),
    ({"attention": "cudnn", "precision": "fp32"}, "no attention cudnn"),
    ({"peft": "lora", "base_weights": "nf4", "engine_option": ("prepare_kbit=peft",)}, "casts norms and embeddings"),
    ({"optimizer": "galore", "precision": "fp32"}, "not written for optimizer galore"),
])
def test_what_axolotl_does_not_do_is_not_written(more: dict[str, Any], sentence: str) -> None:
    job = job_of(named({"model": "llama-3.2-1b", "gpus": "h100", "engine": "huggingface"} | more))
    with pytest.raises(Unsupported, match=sentence):
        files_of(job, ("axolotl",))


MOE = {"base_model": "qwen3-30b-a3b", "quantize_moe_experts": True, "use_scattermoe": True, "use_kernels": True,
       "lora_dropout": 0, "plugins": ["axolotl.integrations.kernels.KernelsPlugin"]}


def test_scattermoe_keeps_what_its_kernels_keep(tmp_path: Path) -> None:
    """Beside adapters elsewhere it pins the unpacked experts and makes their gradient; beside adapters of experts it
    unpacks again. Rows are never brought together forward."""
    kept = {}
    for experts in (False, True):
        beside = {"lora_target_linear": False, "lora_target_modules": ["q_proj"], "lora_target_parameters": (
            ["mlp.experts.gate_up_proj", "mlp.experts.down_proj"] if experts else [])}
        job = asked(written(tmp_path, "axolotl.yaml", table(**MOE, **beside)), gpus="h100")
        assert job.engine_options["experts"] == "scattermoe"
        graph = next(graph for count, graph in blocks(recipe_of(job, autocast=True)).main.graphs)
        products = {one.outputs[0].name: one for one in graph.operators if one.name == "scatter2scatter"}
        kept[experts] = {value.name.rpartition(".")[2] for one in products.values() for value in one.extra}
        behind = [tensor.num_bytes for one in products.values() for tensor in one.backward_temporaries]
        assert max(behind) == 2 * 128 * 2 * 768 * 2048
    assert kept == {False: {"unpacked", "rows"}, True: {"lora_factors", "rows"}}


@pytest.mark.parametrize(("said", "why"), [
    ({"adapter": "lora", "load_in_4bit": False, "use_scattermoe": True}, "use_scattermoe: beside adapters"),
    ({"use_sonicmoe": True}, "use_sonicmoe"),
    ({"rl": "grpo", "trl": {"use_vllm": True}}, "use_vllm: puts a server on the same cards"),
    ({"torch_compile": True, "torch_compile_mode": "max-autotune"}, "torch_compile_mode"),
])
def test_what_runs_elsewhere_or_otherwise_is_named(said: dict[str, Any], why: str, tmp_path: Path) -> None:
    assert why in refusal(read_files([written(tmp_path, "axolotl.yaml", table(**said))], command="train"))


def test_preferences_of_single_answers_are_of_the_release_that_axolotl_installs(tmp_path: Path) -> None:
    """TRL 1.8 copies the logits of both kinds of answers before the reference is asked, 1.9 behind it."""
    job = asked(written(tmp_path, "axolotl.yaml", table(rl="kto", sample_packing="gone")), gpus="h100")
    later = replace(job, engine_options={**job.engine_options, "trl": "1.9"})
    logits = job.workload.tokens * job.model.vocab * 4
    assert rated_names(job, "held") == [*rated_names(later, "held"), "logits of both kinds of answers"]
    assert answer(job).peak.allocated_bytes - answer(later).peak.allocated_bytes <= logits


def rated_names(job: Job, what: str) -> list[str]:
    found = rated(job, recipe_of(job, outputs_fp32=True, autocast=True))
    return [node.tensor.name for node in getattr(found, what) if isinstance(node, Alloc)]
