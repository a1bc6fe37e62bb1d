"""NeMo-RL's recipes: files over those that they begin with, and what is not modelled is refused by its name."""

from pathlib import Path
from typing import Any, Final

import pytest
import yaml

import vramcast
from vramcast.errors import VramcastError
from vramcast.formats.read import read_files
from vramcast.formats.reading import Config, sentence
from vramcast.formats.tools import nemo_rl

BASE: Final = """
grpo: {num_prompts_per_step: 64, num_generations_per_prompt: 8, val_period: 10}
loss_fn: {reference_policy_kl_penalty: 0.01}
policy:
  model_name: qwen2.5-1.5b
  tokenizer: {name: "${policy.model_name}"}
  train_global_batch_size: 512
  train_micro_batch_size: 4
  logprob_batch_size: ${policy.train_micro_batch_size}
  max_total_sequence_length: 1024
  precision: bfloat16
  dtensor_cfg: {_v2: true, enabled: true, activation_checkpointing: false, tensor_parallel_size: 1,
                lora_cfg: {enabled: false, dim: 8, match_all_linear: true}}
  megatron_cfg: {enabled: false, tensor_model_parallel_size: 2, peft: {enabled: false}}
  sequence_packing: {enabled: true, train_mb_tokens: "${mul:${policy.max_total_sequence_length}, 4}"}
  dynamic_batching: {enabled: false, train_mb_tokens: 77}
  optimizer: {name: torch.optim.AdamW, kwargs: {lr: 5e-6}}
  generation:
    backend: vllm
    max_new_tokens: ${policy.max_total_sequence_length}
    colocated: {enabled: true, resources: {gpus_per_node: null, num_nodes: null}}
    vllm_cfg: {precision: "${policy.precision}", tensor_parallel_size: 1, gpu_memory_utilization: 0.6,
               max_model_len: "${policy.max_total_sequence_length}", enforce_eager: false}
    vllm_kwargs: {}
data: {shuffle: true}
cluster: {gpus_per_node: 8, num_nodes: 1}
"""


def of(*more: str) -> Any:
    table = yaml.safe_load(BASE)
    for pair in more:
        name, _, text = pair.partition("=")
        inner, *parts = table, *name.split(".")
        for part in parts[:-1]:
            inner = inner.setdefault(part, {})
        inner[parts[-1]] = yaml.safe_load(text)
    return nemo_rl.read(Config("recipe.yaml", "", table))


def test_a_recipe_is_its_whole_question() -> None:
    found = of()
    assert not found.unread, sentence(found.unread)
    assert (found.ranks, found.nodes) == (8, 1)
    assert found.options == {
        "framework": "nemo-rl", "engine": "pytorch", "algorithm": "grpo", "sharded-by": "fsdp2", "recompute": "none",
        "model": "qwen2.5-1.5b", "prompts": 64, "samples": 8, "mini-batch": 64, "prompt-len": 256, "response-len": 768,
        "micro-tokens": 4096, "log-prob-tokens": 4096, "context": 1024, "graphs": True, "memory-fraction": 0.6,
        "rollout-tp": 1, "reference": True, "tp": 1, "images": 0,
    }


SPLIT: Final = ("policy.megatron_cfg.enabled=true", "policy.dtensor_cfg.enabled=false")


@pytest.mark.parametrize(("more", "options"), [
    (("policy.sequence_packing.enabled=false",), {"padded": True, "micro-batch": 4, "log-prob-micro-batch": 4}),
    (("policy.dynamic_batching.enabled=true", "policy.sequence_packing.enabled=false",
      "policy.dynamic_batching.train_mb_tokens=2048"), {"micro-tokens": 2048}),
    (("policy.dtensor_cfg.lora_cfg.enabled=true",), {"peft": "lora", "lora-rank": 8}),
    (("policy.dtensor_cfg.dp_replicate_size=2",), {"shard-group": 4}),
    (("policy.dtensor_cfg.cpu_offload=true",), {"trainer-option": ("steps_on_host=true",)}),
    (SPLIT, {"engine": "megatron", "tp": 2}),
    (("policy.generation.vllm_cfg.precision=fp8",), {"rollout-weights": "fp8-block"}),
    (("policy.generation.colocated.enabled=false", "grpo.async_grpo.enabled=true"),
     {"rollout-gpus": 4, "ahead": True}),
    (("policy.generation.colocated.enabled=false", "grpo.async_grpo.enabled=true",
      "grpo.async_grpo.max_trajectory_age_steps=8"), {"rollout-gpus": 4, "ahead": True, "lag": 8}),
    (("policy.generation.vllm_kwargs.max_num_seqs=32", "policy.generation.vllm_kwargs.mamba_ssm_cache_dtype=float32"),
     {"max-sequences": 32, "engine-option": ("mamba-ssm-cache-dtype=float32",)}),
    (("loss_fn.reference_policy_kl_penalty=0",), {"reference": False}),
    (("policy.dtensor_cfg.tensor_parallel_size=2", "policy.dtensor_cfg.context_parallel_size=2"),
     {"tp": 2, "ulysses": 2}),
    (("policy.generation.vllm_cfg.expert_parallel_size=4", "policy.generation.vllm_cfg.kv_cache_dtype=fp8"),
     {"rollout-dp": 4, "rollout-expert-parallel": True, "rollout-kv-dtype": "fp8"}),
    (("policy.generation.vllm_kwargs.speculative_config.method=mtp",
      "policy.generation.vllm_kwargs.speculative_config.num_speculative_tokens=2"),
     {"rollout-draft": "mtp", "rollout-draft-tokens": 2}),
    (("policy.generation.vllm_kwargs.enable_chunked_prefill=false",), {"batched-tokens": 1024}),
    ((*SPLIT, "policy.megatron_cfg.distributed_data_parallel_config.grad_reduce_in_fp32=true",
      "policy.megatron_cfg.optimizer.use_precision_aware_optimizer=false"),
     {"trainer-option": ("accumulate_in_fp32=true", "precision_aware=false")}),
    (("policy.megatron_cfg.enabled=true", "policy.megatron_cfg.freeze_config.freeze_vision_model=true",
      "policy.megatron_cfg.freeze_config.freeze_vision_projection=true",
      "policy.megatron_cfg.freeze_config.freeze_language_model=false"), {"freeze": "towers,projectors"}),
    (("policy.dtensor_cfg.env_vars.PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True",),
     {"alloc-conf": "expandable_segments:True"}),
], ids=str)
def test_names_say(more: tuple[str, ...], options: dict[str, Any]) -> None:
    found = of(*more)
    assert not found.unread, sentence(found.unread)
    assert {name: found.options.get(name) for name in options} == options


@pytest.mark.parametrize("more", [
    "policy.dtensor_cfg.expert_parallel_size=2", "policy.quant_cfg=x.yaml",
    "policy.dtensor_cfg.expert_parallel_size=8", "policy.generation.backend=sglang", "policy.draft.enabled=true",
    "policy.optimizer.name=transformer_engine.pytorch.optimizers.fused_adam.FusedAdam", "policy.something_new=3",
    "policy.generation.vllm_kwargs.quantization=fp8", "policy.train_global_batch_size=4",
    "grpo.adv_estimator.name=opd", "policy.dtensor_cfg.enabled=false", "policy.is_vlm=true",
])
def test_what_is_not_modelled_is_refused_by_its_name(more: str) -> None:
    found = of(more)
    name = more.partition("=")[0]
    assert [one.name.partition(" ")[0] for one in found.unread] == [
        "policy.generation.vllm_kwargs.*" if "vllm_kwargs" in name else name]


def test_a_recipe_is_read_over_those_that_it_begins_with(tmp_path: Path) -> None:
    (tmp_path / "recipes").mkdir()
    (tmp_path / "base.yaml").write_text(BASE)
    (tmp_path / "recipes" / "middle.yaml").write_text("defaults: ../base.yaml\nlogger: {x: 1}\n")
    recipe = tmp_path / "recipes" / "mine.yaml"
    recipe.write_text("defaults: ./middle.yaml\npolicy: {max_total_sequence_length: 2048}\ncheckpointing: {a: 1}\n")
    given = read_files([recipe], command="rl")
    assert not given.unread
    assert (given.options["micro-tokens"], given.options["context"]) == (8192, 2048)
    start = f"uv run examples/run_grpo.py --config {recipe} policy.max_total_sequence_length=4096"
    given = read_files([], command="rl", line=start)
    assert not given.unread and given.options["micro-tokens"] == 16384
    (tmp_path / "base.yaml").unlink()
    given = read_files([recipe], command="rl")
    assert [one.name for _, one in given.unread] == ["../base.yaml"]


def test_a_command_that_names_no_recipe_is_asked_for_it() -> None:
    """It takes one by itself, which may be none of today's."""
    with pytest.raises(VramcastError, match="names no --config"):
        read_files([], command="rl", line="uv run examples/run_grpo_math.py policy.model_name=Qwen/Qwen2.5-7B")


@pytest.mark.parametrize("other", ["dpo", "sft", "ppo", "distillation", "rm"])
def test_other_trainings_are_refused_by_name(other: str) -> None:
    with pytest.raises(VramcastError, match=f"a recipe of NeMo-RL's {other}, of which only GRPO is read"):
        nemo_rl.read(Config("a.yaml", "", {other: {"max_num_steps": 3}, "policy": {"model_name": "m"}}))


def test_weights_as_they_were_take_the_place_of_those_that_learn() -> None:
    """[nemo_rl dtensor_policy_worker_v2.py `use_reference_model`]: nothing more on the card, two copies on the host."""
    asked = {"gpus": "8xh100-sxm-80gb", "framework": "nemo-rl", "engine": "pytorch", "sharded_by": "fsdp2",
             "micro_tokens": 4096}
    with_, without = (vramcast.rl("qwen2.5-1.5b", reference=reference, **asked) for reference in (True, False))
    card, other = with_.ranks[0], without.ranks[0]
    assert card.phases["ref_log_prob"].device_bytes == card.phases["old_log_prob"].device_bytes
    assert card.peak == other.peak
    assert with_.host is not None and without.host is not None
    assert len(with_.host.parts) == len(without.host.parts) + 2


@pytest.mark.parametrize(("more", "start"), [
    (("grpo.use_dynamic_sampling=true", "grpo.batch_multiplier=3"), "grpo.batch_multiplier 3: prompts that dynamic"),
    (("loss_fn.force_on_policy_ratio=true",), "loss_fn.force_on_policy_ratio: NeMo-RL 0.7 computes no"),
    (("loss_fn.force_on_policy_ratio=true", "grpo.seq_logprob_error_threshold=2"), ""),
])
def test_what_only_time_depends_on_is_said(more: tuple[str, ...], start: str) -> None:
    notes = [str(note) for note in of(*more).notes if str(note) not in map(str, of().notes)]
    assert [note.startswith(start) for note in notes] == [True] * bool(start)


def test_gradients_and_fp32_weights_are_as_wide_as_its_recipes_say() -> None:
    """Under Megatron its recipes keep gradients in bf16, and of fp32 weights the low halves."""
    asked = {"gpus": "8xh100-sxm-80gb", "framework": "nemo-rl", "engine": "megatron", "micro_tokens": 4096}
    narrow, wide = (vramcast.rl("qwen2.5-1.5b", **asked, **more).ranks[0] for more in (
        {}, {"trainer_option": ("accumulate_in_fp32=true", "precision_aware=false")}))
    less = [wide.phases[phase].allocated_bytes - narrow.phases[phase].allocated_bytes
            for phase in ("init", "update_actor")]
    assert 2 * 1_540_000_000 < less[0] < 1.2 * less[1]
    with pytest.raises(VramcastError, match="precision_aware"):
        vramcast.rl("qwen2.5-1.5b", **asked, trainer_option="grad_accum_dtype=fp32")


def test_a_name_that_names_itself_stays_as_it_is_written() -> None:
    """Read in a loop, it grew without end."""
    found = of('policy.model_name="${policy.model_name}-chat"')
    assert "policy.model_name" in sentence(found.unread)
