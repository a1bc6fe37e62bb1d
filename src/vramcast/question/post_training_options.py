"""The table of what can be asked of reinforcement-learning post-training."""

from __future__ import annotations

from typing import Final, get_args

from vramcast.domain.post_training import Algorithm
from vramcast.question.options import CONFIG_OPTIONS, MARKET_OPTIONS, MODEL_OPTIONS, OPTIONS, Kind, Option


def _count(section: str, field: str, help_: str) -> Option:
    return Option(section, field, Kind.COUNT, help_)


OF_TRL: Final = (
    "attention", "loss", "compile", "offload-activations", "modules-to-save", "lora-dropout", "base-weights",
    "adapter-dtype", "freeze", "optimizer-kernel",
)
"""What only TRL's trainers, which are transformers', leave to be asked."""

POST_TRAINING_OPTIONS: Final[dict[str, Option]] = {
    "framework": Option("job", "framework", Kind.TEXT, "framework@version: verl@0.8 (default), verl@0.4, nemo-rl@0.5, "
                        "trl@1.9, openrlhf@0.11, ms-swift@4.6, slime@0.3, "
                        "unsloth@2026.10"),
    "engine": Option("job", "engine", Kind.CHOICE, "what the trainer runs; pytorch: FSDP, huggingface: TRL's "
                     "trainers, deepspeed: OpenRLHF's", ("pytorch", "megatron", "huggingface", "deepspeed")),
    "steps": _count("job", "run_steps", "steps of the whole run, for its length and its cost"),
    "find": Option("job", "find", Kind.CHOICE, "the inverse question: vary this until it fits",
                   ("largest-batch", "longest-response", "fewest-gpus", "largest-fraction",
                    "fastest-step")),
    "algorithm": Option("job", "algorithm", Kind.CHOICE, "what is optimised", get_args(Algorithm)),
    "rollout": Option("job", "rollout", Kind.TEXT, "engine@version that generates, on the same cards: vllm, sglang"),
    "prompts": _count("episodes", "prompts", "prompts of a step (data.train_batch_size)"),
    "samples": _count("episodes", "samples", "answers to a prompt (rollout.n)"),
    "prompt-len": _count("episodes", "prompt_len", "longest prompt"),
    "response-len": _count("episodes", "response_len", "longest answer"),
    "mean-prompt-len": _count("episodes", "mean_prompt_len", "mean prompt, for what is to be expected; without it "
                              "every sequence is as long as the longest"),
    "mean-response-len": _count("episodes", "mean_response_len", "mean answer, the same"),
    "image-size": Option("episodes", "image_size", Kind.COUNT, "pixels per side of an image in a prompt; its positions "
                         "are part of --prompt-len"),
    "images": _count("episodes", "images", "images in a prompt; 0: text alone"),
    "lengths": Option("job", "lengths", Kind.TEXT, "of answers: MEAN,DEVIATION in tokens, or a file of those of a "
                      "log, one a line, JSON lines or CSV"),
    "mini-batch": _count("updates", "mini_batch", "prompts of an optimizer step (ppo_mini_batch_size)"),
    "epochs": _count("updates", "epochs", "passes over the sequences of a step (ppo_epochs)"),
    "micro-batch": _count("updates", "micro_batch", "sequences of a micro-batch on one card"),
    "micro-tokens": _count("updates", "micro_tokens", "tokens of a dynamic micro-batch on one card "
                           "(ppo_max_token_len_per_gpu)"),
    "log-prob-micro-batch": _count("updates", "log_prob_micro_batch", "sequences of a pass without gradients on one "
                                   "card; by default as --micro-batch"),
    "log-prob-tokens": _count("updates", "log_prob_tokens", "the same as tokens of a dynamic micro-batch"),
    "critic-micro-batch": _count("updates", "critic_micro_batch", "sequences of the critic's micro-batch"),
    "critic-micro-tokens": _count("updates", "critic_micro_tokens", "the same as tokens of a dynamic micro-batch"),
    "ulysses": _count("updates", "ulysses", "ranks that divide a sequence (ulysses_sequence_parallel_size)"),
    "entropy": Option("updates", "entropy", Kind.FLAG, "the loss has an entropy term (entropy_coeff is not 0)"),
    "entropy-kernel": Option("updates", "entropy_kernel", Kind.CHOICE, "how it is computed",
                             ("compiled", "eager", "chunked")),
    "fused-loss": Option("updates", "fused_loss", Kind.FLAG, "logits are never whole (use_fused_kernels)"),
    "padded": Option("updates", "padded", Kind.FLAG, "batches are padded to the longest (use_remove_padding=False)"),
    "reuse-log-prob": Option("updates", "reuses_log_prob", Kind.FLAG, "the engine's log-probabilities, instead of a "
                             "pass (rollout_correction.bypass_mode)"),
    "reference": Option("updates", "reference", Kind.FLAG, "a KL term asks the network as it was (use_kl_loss)"),
    "offload-reference": Option("updates", "offload_reference", Kind.FLAG, "the reference waits on the host"),
    "reward-model": Option("job", "reward", Kind.TEXT, "a network that rates answers, beside the trainer; without one "
                           "a function does"),
    "reward-micro-batch": _count("updates", "reward_micro_batch", "sequences that it rates at once on one card"),
    "reward-micro-tokens": _count("updates", "reward_micro_tokens", "the same as tokens of a dynamic micro-batch"),
    "reward-tp": _count("rollout", "reward_tp", "tensor-parallel degree of the engine that serves it (verl since 0.8)"),
    "reward-fraction": Option("rollout", "reward_fraction", Kind.NUMBER, "share of the card that this engine may take"),
    "critic-model": Option("job", "critic", Kind.TEXT, "the network that estimates values; without one as the one that "
                           "learns"),
    "trainer-sleep": Option("updates", "sleeps", Kind.FLAG, "states of the optimizer leave the card while others work "
                            "(deepspeed_enable_sleep)"),
    "own-gpus": Option("job", "own_gpus", Kind.NAMES, "critic+reward=4: cards of networks that have some of their own "
                       "(repeatable)"),
    "trainer-leaves": Option("updates", "leaves", Kind.FLAG, "weights leave the card while the engine generates "
                             "(offload_model of ms-swift)"),
    "sleep-level": _count("rollout", "level", "of the engine's sleep: 1, its weights wait on the host; 2, they are "
                          "dropped"),
    "handover-parts": _count("rollout", "parts", "parts in which layers are handed over (move_model_batches "
                             "of ms-swift)"),
    "rollout-gpus": _count("rollout", "gpus", "cards of the engine's own, of those that --gpus names"),
    "ahead": Option("rollout", "ahead", Kind.FLAG, "it generates the next step's answers while the trainer learns"),
    "rollout-tp": _count("rollout", "tp", "tensor-parallel degree of the engine"),
    "memory-fraction": Option("rollout", "memory_fraction", Kind.NUMBER, "share of the card that the engine may take "
                              "(gpu_memory_utilization)"),
    "max-sequences": _count("rollout", "max_sequences", "sequences that it runs at once (max_num_seqs)"),
    "batched-tokens": _count("rollout", "batched_tokens", "tokens of one of its forwards (max_num_batched_tokens)"),
    "context": _count("rollout", "context", "longest sequence it takes (max_model_len)"),
    "graphs": Option("rollout", "graphs", Kind.FLAG, "CUDA graphs (enforce_eager=False)"),
    "sleep": Option("rollout", "sleeps", Kind.FLAG, "it gives its memory up while the trainer works "
                    "(free_cache_engine)"),
    "rollout-weights": Option("rollout", "weights", Kind.CHOICE, "how the engine stores the weights that it is handed; "
                              "without it in 16 bits", ("fp8", "fp8-block")),
    "bucket-mib": _count("rollout", "bucket_mib", "MiB of the bucket in which weights are handed over "
                         "(update_weights_bucket_megabytes)"),
    "engine-option": Option("rollout", "engine_options", Kind.NAMES, "key=value for the engine that generates "
                            "(repeatable)"),
    "trainer-option": Option("job", "trainer_options", Kind.NAMES, "key=value for the trainer of TRL, OpenRLHF or "
                             "Megatron (repeatable), as --engine-option of `vramcast train`"),
    "layered-summon": Option("rollout", "layered_summon", Kind.FLAG, "adapters are gathered layer by layer"),
    **{name: OPTIONS[name] for name in (
        "tp", "pp", "cp", "ep", "etp", "virtual-stages", "first-stage-layers", "last-stage-layers",
        "sequence-parallel", "shards", "zero", "sharded-by", "shard-group", "reshard-after-forward", "precision",
        "optimizer", "recompute", "peft", "lora-rank", "lora-targets", "offload-parameters", "offload-optimizer",
        "alloc-conf", *OF_TRL,
    )},
    **CONFIG_OPTIONS,
    **MARKET_OPTIONS,
    **MODEL_OPTIONS,
}
"""Name as users write it -> where it goes. `gpus` and `model` are the two that are always there."""
