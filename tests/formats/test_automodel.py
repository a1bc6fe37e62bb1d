"""NeMo Automodel's recipes: FSDP2 over weights in 16 bits, adapters by patterns of names, samples of a pack."""

from pathlib import Path
from typing import Any

import pytest
import yaml

import vramcast
from vramcast.api import job_of
from vramcast.domain.job import Job, Precision
from vramcast.errors import Unsupported
from vramcast.formats.read import read_files
from vramcast.formats.reading import Given

RECIPE: dict[str, Any] = {
    "recipe": "TrainFinetuneRecipeForNextTokenPrediction",
    "step_scheduler": {"global_batch_size": 64, "local_batch_size": 2, "num_epochs": 1, "val_every_steps": 10},
    "dist_env": {"backend": "nccl", "timeout_minutes": 1},
    "model": {"_target_": "nemo_automodel.NeMoAutoModelForCausalLM.from_pretrained",
              "pretrained_model_name_or_path": "meta-llama/Llama-3.2-1B"},
    "distributed": {"strategy": "fsdp2", "dp_size": "none", "tp_size": 1, "cp_size": 1, "sequence_parallel": False,
                    "activation_checkpointing": True},
    "loss_fn": {"_target_": "nemo_automodel.components.loss.masked_ce.MaskedCrossEntropy"},
    "dataset": {"_target_": "nemo_automodel.components.datasets.llm.squad.make_squad_dataset", "split": "train"},
    "packed_sequence": {"packed_sequence_size": 2048},
    "optimizer": {"_target_": "torch.optim.AdamW", "lr": 1e-5, "betas": [0.9, 0.999]},
}
LORA = {"_target_": "nemo_automodel.components._peft.lora.PeftConfig", "dim": 16, "alpha": 32,
        "target_modules": "*_proj"}


def read(tmp_path: Path, recipe: dict[str, Any]) -> Given:
    (tmp_path / "recipe.yaml").write_text(yaml.safe_dump(recipe), encoding="utf-8")
    return read_files([tmp_path / "recipe.yaml"], command="train")


def job(tmp_path: Path, recipe: dict[str, Any]) -> Job:
    assert [one.name for _, one in read(tmp_path, recipe).unread] == []
    return job_of({"from": (tmp_path / "recipe.yaml",), "gpus": "8xh100-sxm-80gb"})


@pytest.mark.parametrize(("more", "adapted"), [
    ({}, {"attention.q", "attention.k", "attention.v", "attention.out", "mlp.gate", "mlp.up", "mlp.down"}),
    ({"target_modules": ["*q_proj", "v_proj"]}, {"attention.q", "attention.v"}),
    ({"target_modules": [], "exclude_modules": ["*.down_proj", "*lm_head"]},
     {"attention.q", "attention.k", "attention.v", "attention.out", "mlp.gate", "mlp.up"}),
])
def test_patterns_choose_the_adapted_modules(tmp_path: Path, more: dict[str, Any], adapted: set[str]) -> None:
    peft = job(tmp_path, RECIPE | {"peft": LORA | more}).plan.peft
    assert peft is not None
    assert (peft.rank, peft.adapter_dtype, set(peft.targets)) == (16, "bf16", adapted)


def test_noise_of_the_embeddings_and_windows_of_means_change_nothing(tmp_path: Path) -> None:
    scheduler = RECIPE["step_scheduler"] | {"loss_average_window_steps": 20}
    noisy = RECIPE | {"neftune": {"noise_alpha": 5.0}, "step_scheduler": scheduler}
    assert job(tmp_path, noisy) == job(tmp_path, RECIPE)


@pytest.mark.parametrize(("section", "values", "name"), [
    ("distributed", {"strategy": "fsdp2", "pp_size": 8}, "distributed.pp_size"),
    ("distributed", {"tp_size": 2, "sequence_parallel": True}, "distributed.sequence_parallel"),
    ("distributed", {"strategy": "fsdp2", "mp_policy": {"reduce_dtype": "bfloat16"}},
     "distributed.mp_policy.reduce_dtype"),
    ("distributed", {"strategy": "megatron_fsdp"}, "distributed.strategy"),
    ("recipe", "KnowledgeDistillationRecipeForVLM", "recipe"),
    ("model", {"_target_": "nemo_automodel.NeMoAutoModelForSeq2SeqLM.from_pretrained"}, "model._target_"),
    ("model", {"text_config": {"mtp_num_hidden_layers": 1}}, "model.text_config.mtp_num_hidden_layers"),
    ("freeze_config", {"freeze_language_model": True}, "freeze_config.freeze_language_model"),
    ("optimizer", {"_target_": "dion.Muon"}, "optimizer._target_"),
    ("optimizer", {"_target_": "flashoptim.FlashAdamW", "master_weight_bits": 16}, "optimizer.master_weight_bits"),
    ("optimizer", {"_target_": "transformer_engine.pytorch.optimizers.FusedAdam", "exp_avg_dtype": "float16"},
     "optimizer.exp_avg_dtype"),
    ("fp8", {"enabled": True}, "fp8.enabled"),
    ("fp8", {"enabled": True, "recipe_name": "rowwise"}, "fp8.recipe_name"),
    ("peft", LORA | {"target_modules": "q_proj[0]"}, "peft.target_modules"),
    ("dataset", {"seq_length": "${data.length}"}, "dataset.seq_length"),
])
def test_what_makes_another_run_of_it_is_named(tmp_path: Path, section: str, values: Any, name: str) -> None:
    recipe = {each: value for each, value in RECIPE.items() if each != "packed_sequence"} | {section: values}
    assert name in [one.name for _, one in read(tmp_path, recipe).unread]


@pytest.mark.parametrize(
    ("model", "frozen"),
    [("google/gemma-3-4b-it", ("vision",)), ("Qwen/Qwen3-VL-4B-Instruct", ("vision", "projector"))],
)
def test_a_frozen_tower_lies_whole_in_the_root_unit(tmp_path: Path, model: str, frozen: tuple[str, ...]) -> None:
    """The projector with it where its name says that it sees; images are as large as the processor makes them."""
    recipe = RECIPE | {
        "recipe": "FinetuneRecipeForVLM", "processor": {"max_pixels": 1003520},
        "freeze_config": {"freeze_embeddings": True, "freeze_vision_tower": True},
        "model": {"_target_": "nemo_automodel.NeMoAutoModelForImageTextToText.from_pretrained",
                  "pretrained_model_name_or_path": model, "text_config": {"use_cache": False}},
    }
    found = job(tmp_path, recipe)
    assert (found.plan.freeze, found.engine_options["frozen_towers"]) == (frozen, "root")
    assert found.workload.image_size == (None if "gemma" in model else 1001)
    given = {"from": (tmp_path / "recipe.yaml",), "gpus": "8xh100-sxm-80gb"}
    whole, apart = (sum(entry.num_bytes for entry in vramcast.train(**given, **more).fullest.ledger
                        if entry.category == "weights")
                    for more in ({}, {"engine_option": ("reduce_dtype=float32", "frozen_towers=layers")}))
    tower = {"google/gemma-3-4b-it": 0.41e9, "Qwen/Qwen3-VL-4B-Instruct": 0.30e9}[model]
    assert whole - apart == pytest.approx(2 * tower, rel=0.05)


def test_matrices_of_layers_are_gathered_in_8_bits(tmp_path: Path) -> None:
    on = {"enabled": True}
    fp8 = on | {"recipe_name": "tensorwise", "enable_fsdp_float8_all_gather": True, "filter_fqns": ["lm_head"]}
    assert job(tmp_path, RECIPE | {"fp8": fp8, "compile": on}).engine_options["float8_all_gather"] is True
    with pytest.raises(Unsupported, match="add both"):
        vramcast.train("llama-3.2-1b", gpus="8xh100-sxm-80gb", engine="pytorch", precision="bf16", shards="everything",
                       engine_option=("float8_all_gather=true",))


MOE = RECIPE | {
    "model": {"_target_": "nemo_automodel.NeMoAutoModelForCausalLM.from_config", "config": "Qwen/Qwen3-30B-A3B",
              "backend": {"attn": "te", "linear": "te", "rms_norm": "torch_fp32", "experts": "gmm",
                          "dispatcher": "deepep"}},
    "distributed": {"strategy": "fsdp2", "ep_size": 8, "activation_checkpointing": True,
                    "moe": {"reshard_after_forward": False, "wrap_outer_model": True}},
}


def test_experts_over_ranks_stand_in_16_bits_beside_fsdp(tmp_path: Path) -> None:
    found = job(tmp_path, MOE)
    assert (found.engine, found.plan.ep, found.plan.precision) == ("torchtitan", 8, Precision.BF16)
    answer = vramcast.train(**{"from": (tmp_path / "recipe.yaml",)}, gpus="8xh100-sxm-80gb")
    dense, experts = answer.num_parameters - 48 * 128 * 3 * 2048 * 768, 48 * 16 * 3 * 2048 * 768
    states = sum(entry.num_bytes for entry in answer.fullest.ledger if entry.category == "optimizer")
    assert states == pytest.approx(2 * 2 * (dense / 8 + experts), rel=0.01)  # two moments in bf16
    early = MOE | {"distributed": MOE["distributed"] | {"defer_fsdp_grad_sync": False}}
    assert job(tmp_path, early).engine_options["defers_sync"] is False


def test_stages_hold_as_many_layers_as_the_pipeline_says(tmp_path: Path) -> None:
    pipeline = {"pp_schedule": "interleaved1f1b", "pp_microbatch_size": 1, "layers_per_stage": 5,
                "round_virtual_stages_to_pp_multiple": "down"}
    mesh = MOE["distributed"] | {"pp_size": 2, "ep_size": 4, "pipeline": pipeline}
    found = job(tmp_path, MOE | {"distributed": mesh})
    assert (found.plan.pp, found.plan.virtual_stages, found.plan.schedule) == (2, 5, "interleaved")


TE = "transformer_engine.pytorch.optimizers.fused_adam.FusedAdam"


@pytest.mark.parametrize(("optimizer", "widths"), [
    ({"_target_": TE}, 8),
    ({"_target_": TE, "master_weights": True}, 12),
    ({"_target_": TE, "master_weights": True, "store_param_remainders": True}, 10),
    ({"_target_": TE, "master_weights": True, "store_param_remainders": True, "exp_avg_dtype": "torch.bfloat16",
      "exp_avg_sq_dtype": "torch.bfloat16"}, 6),
    ({"_target_": "flashoptim.FlashAdamW"}, 2 * (1 + 2 / 32) + 1),
    ({"_target_": "flashoptim.FlashAdamW", "master_weight_bits": 32}, 2 * (1 + 2 / 32) + 2),
])
def test_what_an_optimizer_keeps_of_a_weight_in_bf16(
    tmp_path: Path, optimizer: dict[str, Any], widths: float
) -> None:
    job(tmp_path, RECIPE | {"optimizer": optimizer})
    answer = vramcast.train(**{"from": (tmp_path / "recipe.yaml",)}, gpus="8xh100-sxm-80gb")
    states = sum(entry.num_bytes for entry in answer.fullest.ledger if entry.category == "optimizer")
    assert states == pytest.approx(widths * answer.num_parameters / 8, rel=0.01)


def test_ranks_divide_the_positions_of_a_sample_and_all_weights(tmp_path: Path) -> None:
    """Rings gather keys and values of all ranks; everything else of layers is half as long."""
    mesh = RECIPE["distributed"] | {"activation_checkpointing": False}
    peaks, saved = [], []
    for cp in (1, 2):
        found = job(tmp_path, RECIPE | {"distributed": mesh | {"cp_size": cp}})
        answer = vramcast.train(**{"from": (tmp_path / "recipe.yaml",)}, gpus="8xh100-sxm-80gb")
        ledger = answer.fullest.ledger
        peaks.append(sum(entry.num_bytes for entry in ledger if entry.category == "optimizer"))
        saved.append(sum(entry.num_bytes for entry in ledger if entry.category == "activations"))
        assert (found.engine, found.plan.cp, found.workload.grad_accum) == ("pytorch", cp, 4 * cp)
    assert peaks[0] == peaks[1]
    assert saved[1] == pytest.approx(saved[0] / 2, rel=0.02)


@pytest.mark.parametrize("adapters", [{}, {"peft": LORA}])
def test_ranks_divide_heads_widths_and_words_beside_fsdp(tmp_path: Path, adapters: dict[str, Any]) -> None:
    """Each has as much of all matrices as without, and whole logits in fp32; norms are left to fewer ranks."""
    states, logits = [], []
    for tp in (1, 4):
        found = job(tmp_path, RECIPE | adapters | {"distributed": RECIPE["distributed"] | {"tp_size": tp}})
        ledger = vramcast.train(**{"from": (tmp_path / "recipe.yaml",)}, gpus="8xh100-sxm-80gb").fullest.ledger
        states.append(sum(entry.num_bytes for entry in ledger if entry.category == "optimizer"))
        logits.append(max(entry.num_bytes for entry in ledger if entry.path.endswith("log_softmax")))
        assert (found.engine, found.plan.tp, found.workload.grad_accum) == ("pytorch", tp, 4 * tp)
    assert states[0] <= states[1] <= states[0] * 1.02
    assert logits[0] == logits[1]


@pytest.mark.parametrize(("more", "adapted", "rank"), [
    ({"target_modules": ["*"]}, {"moe.experts.gate_up", "moe.experts.down", "head.output"}, 16),
    ({"target_modules": ["*"], "moe_rank_scaling": True}, {"moe.experts.gate_up", "moe.experts.down"}, 2),
    ({"target_modules": "*_proj"}, {"attention.q"}, 0),
    ({"target_modules": None, "match_all_linear": True}, {"attention.q", "head.output"}, 0),
])
def test_experts_over_ranks_are_corrected_as_one_module(
    tmp_path: Path, more: dict[str, Any], adapted: set[str], rank: int
) -> None:
    """One correction of gate and up of each of a rank's 16 experts, one of down, in two moments."""
    found = job(tmp_path, MOE | {"peft": LORA | more})
    peft = found.plan.peft
    assert peft is not None and adapted <= set(peft.targets) and "moe.router" not in peft.targets
    answer = vramcast.train(**{"from": (tmp_path / "recipe.yaml",)}, gpus="8xh100-sxm-80gb")
    states = sum(entry.num_bytes for entry in answer.fullest.ledger
                 if entry.category == "optimizer" and "moe.experts" in entry.path)
    assert states == pytest.approx(2 * 2 * 48 * 16 * rank * ((2048 + 2 * 768) + (768 + 2048)), rel=0.01)


def test_towers_stand_beside_experts_over_ranks(tmp_path: Path) -> None:
    recipe = MOE | {
        "recipe": "FinetuneRecipeForVLM", "freeze_config": {"freeze_vision_tower": True},
        "model": MOE["model"] | {"config": "Qwen/Qwen3-VL-30B-A3B-Instruct"},
    }
    found = job(tmp_path, recipe)
    assert (found.engine, found.plan.freeze, found.plan.ep) == ("torchtitan", ("vision", "projector"), 8)
    answer = vramcast.train(**{"from": (tmp_path / "recipe.yaml",)}, gpus="8xh100-sxm-80gb")
    weights = {entry.path: entry.num_bytes for entry in answer.fullest.ledger if entry.category == "weights"}
    assert "weights/head/unsharded attention.q.bias" in weights  # the tower is in the unit around everything
    assert weights["weights/head/unsharded head.output"] == 2 * 151_936 * 2048  # once, whatever was gathered before it
