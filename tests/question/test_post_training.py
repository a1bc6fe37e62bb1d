"""Post-training: how batches are cut for a rank, what is refused and how, and what is asked of which release."""

from pathlib import Path
from typing import Any

import pytest

from vramcast.api.answers import post_training_job_of
from vramcast.domain.post_training import Episodes, PostTrainingJob
from vramcast.engines.post_training.batches import part_of
from vramcast.errors import VramcastError
from vramcast.estimate.post_training import answer

BASE = {"model": "qwen2.5-0.5b", "gpus": "8xh100-sxm-80gb", "prompt-len": 300, "response-len": 700}


def job(**options: Any) -> PostTrainingJob:
    return post_training_job_of(BASE | {name.replace("_", "-"): value for name, value in options.items()})


@pytest.mark.parametrize(("options", "sentence"), [
    ({"gpus": "7xh100-sxm-80gb"}, "must be multiples of 7 data-parallel ranks"),
    ({"mini_batch": 2048}, "mini-batch no larger than the step"),
    ({"ulysses": 3}, "ulysses=3 does not divide 8 data-parallel ranks; use a divisor of 8"),
    ({"micro_tokens": 512}, "fewer than the 1000 tokens of the longest sequence; use at least 1000"),
    ({"micro_tokens": 512, "ulysses": 2, "response_len": 1000}, "use at least 650"),
    ({"rollout_tp": 3}, "rollout-tp=3 does not divide 8 GPUs"),
    ({"rollout_gpus": 8}, "rollout-gpus=8 leaves none of 8 GPUs"),
    ({"gpus": "2x8xh100-sxm-80gb", "rollout_gpus": 5}, "cards of one's own leave 11 of 16 GPUs"),
    ({"context": 512}, "context=512 is shorter than the 1000 tokens"),
    ({"mean_response_len": 800}, "mean-response-len=800 is longer than response-len=700"),
    ({"mean_prompt_len": 301}, "mean-prompt-len=301 is longer than prompt-len=300"),
    ({"framework": "verrl"}, "unknown framework 'verrl'; did you mean verl"), ({"framework": "verl@0.1"}, "verl 0.1"),
    ({"algorithm": "dpo"}, "dpo"), ({"rollout": "llama.cpp"}, "--rollout llama.cpp"),
    ({"model": "qwen2.5-vl-7b", "framework": "nemo-rl"}, "--images 0 answers for prompts of text"),
    ({"image_size": 800}, "reads no images"),
    ({"model": "qwen2.5-vl-7b", "images": 2, "image_size": 1024}, "prompt-len=300 is less than the 2,664 tokens"),
    ({"no_such_thing": 1}, "unknown option 'no-such-thing'"),
    ({"peft": "dora"}, "trains LoRA and no other adapters"),
    ({"lora_rank": 8}, "--lora-rank needs --peft, for example --peft lora"),
    ({"precision": "fp32"}, "--precision fp32 is none of them"), ({"offload_optimizer": "nvme"}, "use cpu"),
    ({"recompute": "selective"}, "use --recompute full or none"), ({"tp": 2}, "--tp splits the trainer under Megatron"),
    ({"engine": "megatron", "peft": "lora"}, "adapters under Megatron"),
    ({"memory_fraction": 1.5}, "memory-fraction=1.5 must lie above 0"), ({"memory_fraction": "nan"}, "memory-fraction"),
    ({"ahead": True}, "--ahead needs --rollout-gpus"),
    ({"model": "bert-base"}, "generates no tokens; use a language model"),
    ({"micro_batch": 4, "micro_tokens": 16384}, "--micro-batch and --micro-tokens say the same"),
    ({"critic_micro_batch": 4}, "--critic-micro-batch needs --algorithm ppo"),
    ({"layered_summon": True}, "--layered-summon needs --peft lora"),
    ({"fused_loss": True, "entropy_kernel": "eager"}, "--entropy-kernel needs logits, which --fused-loss never makes"),
    ({"engine": "huggingface"}, "verl's trainer does not run with --engine huggingface"),
    ({"framework": "trl", "engine": "pytorch"}, "trl's trainer does not run with --engine pytorch"),
    ({"framework": "trl", "ulysses": 2}, "--ulysses is not asked of TRL's trainers"),
    ({"framework": "trl", "padded": False}, "--padded is not asked of TRL's trainers"),
    ({"framework": "trl", "fused_loss": True}, "--fused-loss is not asked of TRL's trainers"),
    ({"framework": "openrlhf", "peft": "lora"}, "--peft is not modelled with OpenRLHF"),
    ({"framework": "openrlhf", "trainer_option": ("overlap=1",)}, "unknown trainer option 'overlap'"),
    ({"framework": "openrlhf@0.8", "trainer_sleep": True}, "moves the states of stage 3 alone; add --zero 3"),
    ({"framework": "openrlhf", "own_gpus": ("reference=2",)}, "--own-gpus needs --rollout-gpus"),
    ({"framework": "openrlhf", "own_gpus": ("critic=2",), "rollout_gpus": 2}, "there is no critic"),
    ({"own_gpus": ("reference=2",), "reference": True}, "--own-gpus is not modelled with verl"),
    ({"trainer_sleep": True}, "--trainer-sleep is asked of OpenRLHF's trainers alone"),
    ({"engine": "megatron", "reward_model": "qwen2.5-1.5b", "framework": "verl@0.7"},
     "a reward network beside --engine megatron"),
    ({"reward_model": "qwen2.5-1.5b", "rollout_gpus": 4}, "the engine of a reward network beside cards"),
    ({"reward_model": "qwen2.5-1.5b", "reward_micro_batch": 4}, "--reward-micro-batch says nothing of how"),
    ({"reward_model": "qwen2.5-1.5b", "reward_fraction": 2}, "reward-fraction=2.0 must lie above 0"),
    ({"trainer_option": ("steps_on_host=true",)}, "steps_on_host is FSDP2's CPUOffloadPolicy"),
    ({"reward_tp": 2}, "--reward-tp needs --reward-model"),
    ({"rollout_gpus": 99}, "rollout-gpus=99 leaves none of 8 GPUs to the trainer"),
    ({"lengths": "900,70", "mean_response_len": 3}, "--lengths and --mean-response-len both say"),
    ({"lengths": "none.txt"}, "none.txt: cannot be read as a list of lengths"),
    ({"lengths": "900,x"}, "lengths"), ({"lengths": "9000,1"}, "is longer than response-len=700"),
    ({"lengths": "600,500"}, "answers of at most 700 tokens and 600 in the mean deviate by at most 244, not by 500"),
    ({"gpus": None}, "which GPUs?"), ({"prompts": 0}, "prompts"), ({"samples": -1}, "samples"),
], ids=str)
def test_what_no_run_can_be_is_refused_in_one_sentence(options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(VramcastError) as caught:
        answer(job(**options))
    assert sentence in str(caught.value) and "\n" not in str(caught.value)


def test_the_longest_micro_batch_of_a_run_lies_between_the_mean_and_the_limit() -> None:
    episodes = Episodes(samples=8, prompt_len=512, response_len=4096, mean_prompt_len=100, mean_response_len=1000)
    sizes = [episodes.most_tokens(count) / count for count in (1, 4, 16, 64, 4096)]
    assert sizes == sorted(sizes, reverse=True)
    assert sizes[0] <= episodes.longest and sizes[-1] == pytest.approx(episodes.usual, rel=0.1)


def test_micro_batches_of_balanced_ranks_deviate_less() -> None:
    """Each rank of 8 has 40 of 320 sequences: answers to a prompt lie apart, and all 40 are the rank's whole step."""
    episodes = Episodes(prompts=64, samples=5, prompt_len=512, response_len=4096, mean_prompt_len=100,
                        mean_response_len=300)
    apart, together = ([episodes.most_tokens(count, balanced=ranks) for count in (8, 40)] for ranks in (8, 0))
    assert apart[0] < together[0] and apart[1] < together[1]
    assert apart[1] == pytest.approx(40 * 400, rel=0.15)


def test_lengths_of_a_log_are_their_mean_and_deviation(tmp_path: Path) -> None:
    """Ten answers of 100 and ten of 500: 300 +- 200; a limit cuts those that are longer."""
    plain, table = tmp_path / "lengths.txt", tmp_path / "log.jsonl"
    plain.write_text("100\n500\n" * 10)
    table.write_text('{"output": 100}\n{"output": 500}\n' * 10)
    for path in (plain, table):
        episodes = job(lengths=str(path), response_len=None).episodes
        assert (episodes.mean_response_len, episodes.response_deviation, episodes.response_len) == (300, 200.0, 500)
        assert job(lengths=str(path), response_len=300).episodes.mean_response_len == 200
    even, wide = (job(lengths=f"300,{spread}").episodes.most_tokens(4) for spread in (0, 150))
    assert even < wide == job(mean_response_len=300).episodes.most_tokens(4)


@pytest.mark.parametrize("options, tokens", [
    ({}, 16384), ({"response_len": 28672}, 28972), ({"response_len": 28672, "ulysses": 2}, 16384),
    ({"response_len": 65236, "ulysses": 2}, 32768),
])
def test_a_micro_batch_that_nobody_sizes_holds_the_longest_sequence(options: dict[str, Any], tokens: int) -> None:
    found = answer(job(**options), with_changes=False)
    assert any(text.startswith(f"dynamic micro-batches of {tokens:,} tokens") for text in found.assumptions)


def test_prompts_without_room_for_an_image_are_of_text() -> None:
    asked = {"model": "qwen3-vl-8b", "gpus": "8xh100-sxm-80gb"}
    assert (job(**asked).episodes.images, job(**asked, prompt_len=576).episodes.images) == (0, None)
    assert any("prompts of text" in text for text in job(**asked).assumed)


def test_cards_of_ones_own_are_whole_machines_or_as_many_of_each() -> None:
    """One step off runs with 6 cards of each of two machines, and 2 for the engine."""
    cluster = job(gpus="2x8xh100-sxm-80gb").cluster
    assert [(part.num_nodes, part.gpus_per_node) for part in (part_of(cluster, gpus) for gpus in (12, 8, 4))] == [
        (2, 6), (1, 8), (1, 4)]
