"""OpenRLHF's commands of all releases: what each name says, and what is not modelled is refused by its name."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import pytest

from vramcast.api.post_training import post_training_job_of
from vramcast.formats.reading import Config, sentence
from vramcast.formats.tools import openrlhf

PPO: Final = (
    "--ref.num_gpus_per_node 8 --reward.num_gpus_per_node 8 --critic.num_gpus_per_node 8 --vllm.num_engines 4 "
    "--vllm.tensor_parallel_size 2 --train.colocate_all --vllm.gpu_memory_utilization 0.5 "
    "--actor.model_name_or_path org/llama --reward.model_name_or_path org/rm --train.batch_size 128 "
    "--rollout.batch_size 1024 --data.max_len 2048 --ds.zero_stage 3 --ckpt.save_hf --actor.adam.lr 5e-7 "
    "--actor.gradient_checkpointing_enable --ds.packing_samples --vllm.enable_sleep --ds.enable_sleep "
    "--train.dynamic_batch_enable --train.max_tokens_per_gpu 16384 --vllm.enforce_eager"
)
OLD: Final = (
    "--ref_num_gpus_per_node 8 --actor_num_gpus_per_node 8 --vllm_num_engines 8 --colocate_all_models --pretrain "
    "org/llama --remote_rm_url f.py --micro_train_batch_size 8 --train_batch_size 128 --micro_rollout_batch_size "
    "16 --rollout_batch_size 128 --n_samples_per_prompt 8 --prompt_max_len 1024 --generate_max_len 512 "
    "--zero_stage 3 --bf16 --flash_attn --advantage_estimator group_norm --init_kl_coef 1e-3 --packing_samples "
    "--vllm_enable_sleep --l2 0.1"
)


def of(more: str = "", base: str = PPO) -> Any:
    text = f"ray job submit --address=http://x -- python3 -m openrlhf.cli.train_ppo_ray {base} {more}\n"
    return openrlhf.read(Config("run.sh", text, None))


def test_a_command_is_its_whole_question() -> None:
    found = of()
    assert not found.unread
    assert (found.ranks, found.nodes) == (8, 1)
    assert found.options == {
        "framework": "openrlhf@0.11", "engine": "deepspeed", "rollout": "vllm", "prompts": 1024, "samples": 1,
        "epochs": 1, "ulysses": 1, "rollout-tp": 2, "memory-fraction": 0.5, "graphs": False, "trainer-sleep": True,
        "zero": "3", "offload-optimizer": "none", "offload-reference": False, "recompute": "full", "algorithm": "ppo",
        "attention": "flash", "model": "org/llama", "reward-model": "org/rm", "critic-model": "org/rm",
        "reference": True, "entropy": False, "prompt-len": 512, "response-len": 1536, "mini-batch": 128,
        "micro-tokens": 16384, "log-prob-tokens": 16384, "padded": False, "sleep": True,
    }


def test_names_without_points_are_those_of_the_last_release_that_has_them_all() -> None:
    """Micro-batches of an optimizer step are sequences, a mini-batch prompts: 128 over 8 answers each."""
    found = of(base=OLD)
    assert not found.unread
    said = ("framework", "algorithm", "mini-batch", "micro-batch", "log-prob-micro-batch", "prompt-len", "response-len")
    assert [found.options[name] for name in said] == ["openrlhf@0.8.8", "grpo", 16, 8, 16, 1024, 512]
    assert "reward-model" not in found.options and "critic-model" not in found.options


@pytest.mark.parametrize("left_out, release, bf16", [
    ("--flash_attn", "0.9.1", True), ("--flash_attn --bf16", "0.9.5", True), ("--bf16", "0.8.8", False),
])
def test_weights_are_bf16_unasked_since_0_9_2(left_out: str, release: str, bf16: bool) -> None:
    base = OLD
    for word in left_out.split():
        base = base.replace(f"{word} ", "")
    found = of(base=base)
    assert found.options["framework"] == f"openrlhf@{release}"
    assert ("bf16: is not set" in sentence(found.unread)) is not bf16


@pytest.mark.parametrize("more, option, value", [
    ("--ds.adam_offload", "offload-optimizer", "cpu"),
    ("--algo.advantage.estimator rloo", "algorithm", "rloo"),
    ("--algo.kl.init_coef 0", "reference", False),
    ("--actor.entropy_coef 0.01", "entropy", True),
    ("--actor.entropy_coef 0.0", "entropy", False),
    ("--rollout.max_new_tokens 1024", "response-len", 1024),
    ("--ds.ring_attn_size 2", "ulysses", 2),
    ("--rollout.max_tokens_per_gpu 32768", "log-prob-tokens", 32768),
    ("--critic.model_name_or_path org/v", "critic-model", "org/v"),
    ("--ds.overlap_comm --ds.grad_accum_dtype fp32", "trainer-option", ("overlap_comm=true", "grad_accum_dtype=fp32")),
])
def test_a_name_says_an_option(more: str, option: str, value: Any) -> None:
    found = of(more)
    assert not found.unread
    assert found.options[option] == value


def test_networks_have_cards_of_their_own_where_they_are_not_together() -> None:
    apart = PPO.replace("--train.colocate_all ", "").replace("--vllm.enable_sleep ", "")
    found = of("--train.colocate_actor_ref --train.colocate_critic_reward", apart)
    assert not found.unread
    assert (found.options["rollout-gpus"], found.options["own-gpus"], found.ranks) == (8, ("critic+reward=8",), 24)
    assert of("--train.colocate_actor_ref", apart).options["own-gpus"] == ("critic=8", "reward=8")
    ahead = of("--train.async_enable", PPO.replace("--vllm.enable_sleep ", ""))
    assert (ahead.options["rollout-gpus"], ahead.options["ahead"]) == (8, True)


@pytest.mark.parametrize("more, why", [
    ("--ds.zero_stag 3", "did you mean ds.zero_stage?"),
    ("--ds.lora.rank 8", "ds.lora.rank: adapters are not modelled for OpenRLHF"),
    ("--ds.tensor_parallel_size 2", "ds.tensor_parallel_size"),
    ("--rollout.temperature 0.7", "rollout.temperature"),
    ("--vllm.num_engines 3", "x tensor_parallel_size = 6 must be the 8 cards of the actor"),
    ("--critic.num_gpus_per_node 4", "critic.num_gpus_per_node: other than the actor's"),
    ("--train.batch_size 100 --rollout.n_samples_per_prompt 8", "is no multiple of n_samples_per_prompt=8"),
    ("--ds.zero_stage 1", "is not one of 2, 3"),
])
def test_what_is_not_modelled_is_refused_by_name(more: str, why: str) -> None:
    assert why in sentence(of(more).unread)


def test_a_file_is_asked_with_other_networks(tmp_path: Path) -> None:
    (tmp_path / "run.sh").write_text(f"python3 -m openrlhf.cli.train_ppo_ray {PPO}\n")
    job = post_training_job_of({
        "model": "llama-3.1-8b", "reward-model": "qwen2.5-7b", "critic-model": "qwen2.5-1.5b",
        "gpus": "8xh100-sxm-80gb", "from": (str(tmp_path / "run.sh"),),
    })
    assert job.reward is not None and job.critic is not None
    names = [model.name for model in (job.model, job.reward, job.critic)]
    assert names == ["llama-3.1-8b", "qwen2.5-7b", "qwen2.5-1.5b"]


def test_what_is_counted_otherwise_is_said() -> None:
    said, unsaid = of("--ds.ring_attn_size 2").notes, of().notes
    assert any("ring" in note for note in said) and not any("ring" in note for note in unsaid)
