"""OpenRLHF's commands of all releases: what each name says, and what is not modelled is refused by its name."""

from typing import Any, Final

import pytest

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


def test_what_is_counted_otherwise_is_said() -> None:
    said, unsaid = of("--ds.ring_attn_size 2").notes, of().notes
    assert any("ring" in note for note in said) and not any("ring" in note for note in unsaid)
