"""The table of what can be asked of reinforcement-learning post-training.

The table of what can be asked of a search for training plans: axes, goals, limits, techniques.

The table of what can be asked of a serving plan: command line, job files and Python arguments are made from it.
"""

from __future__ import annotations

from typing import Final, get_args

from msgspec import Struct

from vramcast.domain.planning import Goal
from vramcast.domain.post_training import Algorithm
from vramcast.question.option import Kind, Option, choice_of
from vramcast.question.options import CONFIG_OPTIONS, HEADROOM, MARKET_OPTIONS, MODEL_OPTIONS, OPTIONS


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
    "lag": _count("rollout", "lag", "steps by which its answers may be late, with --ahead (max_trajectory_age_steps)"),
    "rollout-tp": _count("rollout", "tp", "tensor-parallel degree of the engine"),
    "rollout-dp": _count("rollout", "dp", "copies of the engine that start together (data_parallel_size)"),
    "rollout-attention-dp": Option("rollout", "attention_dp", Kind.FLAG, "they attend apart and share the experts"),
    "rollout-expert-parallel": Option("rollout", "expert_parallel", Kind.FLAG, "whole experts on each of its ranks"),
    "rollout-kv-dtype": Option("rollout", "kv_dtype", Kind.TEXT, "its cache: auto, bf16, fp8 ..."),
    "rollout-cache-bytes": _count("rollout", "cache_bytes", "size of its cache, whatever its share leaves"),
    "rollout-block-tokens": _count("rollout", "block_tokens", "tokens of a block of its cache"),
    "rollout-draft": Option("draft", "draft", Kind.TEXT, "what proposes tokens to it: eagle, eagle3, mtp, ngram, "
                            "medusa or a MODEL; it does not learn"),
    "rollout-draft-tokens": _count("draft", "draft_tokens", "tokens that it proposes at once"),
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


FINDS: Final = (
    "largest-batch", "longest-sequence", "knee", "largest-model", "smallest-box", "cheapest-box", "fewest-gpus",
)
"""Inverse questions; `search.inverse` answers them."""

AXES: Final[dict[str, str]] = {
    "engine": "engines", "tp": "tp", "pp": "pp", "cp": "cp", "ep": "ep", "etp": "etp",
    "virtual-stages": "virtual_stages", "micro-batch": "micro_batches", "shards": "shards", "zero": "shards",
    "recompute": "recompute", "offload-optimizer": "offload_optimizer", "offload-parameters": "offload_parameters",
    "precision": "precisions", "optimizer": "optimizers",
}
"""Option of `train` of which a search takes several values -> field of `Space`."""

NOT_ASKED: Final = ("calibration", "grad-accum", "recompute-layers", "recompute-modules", "schedule", "teacher",
                     "tokens", "vision-tower")
"""Options of `train` that a search sets itself, that are read in another way here, or that hold for one plan alone."""


class Allowance(Struct, frozen=True):
    """What forbidding or allowing a technique does to an axis of the space."""

    field: str  # of Space
    default: tuple[str | int, ...]  # the axis without any technique
    adds: tuple[str, ...]  # what comes beside it where the technique is allowed; empty: everything else, by itself
    help: str

    @property
    def allowed(self) -> bool:
        """Whether it is tried where nothing is said."""
        return not self.adds


TECHNIQUES: Final[dict[str, Allowance]] = {
    "sharding": Allowance("shards", ("nothing",), (), "ZeRO and FSDP"),
    "recompute": Allowance("recompute", ("none",), (), "activation checkpointing"),
    "tensor": Allowance("tp", (1,), (), "tensor parallelism"),
    "pipeline": Allowance("pp", (1,), (), "pipeline parallelism"),
    "context": Allowance("cp", (1,), (), "context parallelism"),
    "expert": Allowance("ep", (1,), (), "expert parallelism"),
    "offload": Allowance("offload_optimizer", ("none",), ("cpu",), "optimizer states in main memory"),
    "nvme": Allowance("offload_optimizer", ("none",), ("nvme",), "optimizer states on local disks"),
    "offload-parameters": Allowance("offload_parameters", ("none",), ("cpu",), "weights in main memory"),
    "fp8": Allowance("precisions", (), ("fp8",), "matrix products in fp8"),
    "pure-bf16": Allowance("precisions", (), ("bf16",), "no fp32 copy of the weights"),
    "8bit-optimizer": Allowance("optimizers", ("adamw",), ("adamw-8bit",), "AdamW with 8-bit states"),
}
"""What `--allow` and `--forbid` name. What slows down much or changes the result must be allowed by name."""


def _search(
    field: str, kind: Kind, help_: str, choices: tuple[str, ...] = (), *, also: tuple[str, ...] = ()
) -> Option:
    return Option("search", field, kind, help_, choices, also=also)


def _names(*, allowed: bool) -> str:
    """The techniques that are tried by themselves, or those that are not."""
    return ", ".join(name for name, row in TECHNIQUES.items() if row.allowed is allowed)


def _as_axis(option: Option) -> Option:
    """The same option with several values."""
    return Option("axis", option.field, Kind.NAMES, f"{option.help}; several: 1,2,4", option.choices)


PLAN_OPTIONS: Final[dict[str, Option]] = {
    "on": _search("on", Kind.NAMES, "what to look at: 8xh100-sxm-80gb, h100, aws:p5.48xlarge, aws, any (repeatable)",
                  also=("gpus",)),
    "goal": _search("goal", Kind.CHOICE, "what makes a plan better (fastest)", tuple(str(goal) for goal in Goal)),
    "find": _search("find", Kind.CHOICE, "the inverse question: what fits, instead of which plan is best", FINDS),
    "techniques": _search("techniques", Kind.FLAG, "no search: only the decision path and what each technique saves"),
    "budget": _search("budget", Kind.TEXT, "most money of the run, with currency: 100000usd; needs --tokens"),
    "deadline": _search("deadline", Kind.TEXT, "longest time of the run: 12h, 30d; needs --tokens"),
    "tokens": _search("tokens", Kind.AMOUNT, "length of the run: 300B, 1T"),
    "headroom": _search("headroom", Kind.TEXT, HEADROOM),
    "max-gpus": _search("max_gpus", Kind.COUNT, "most GPUs of a plan: several machines where --on names a kind"),
    "allow": _search("allow", Kind.NAMES, f"techniques to try too: {_names(allowed=False)}"),
    "forbid": _search("forbid", Kind.NAMES, f"techniques not to try: {_names(allowed=True)}"),
    "top": _search("top", Kind.COUNT, "plans in the table (10)"),
    **{
        name: _as_axis(option) if name in AXES else option
        for name, option in OPTIONS.items() if name not in NOT_ASKED
    },
}
"""Name as users write it -> where it goes. `model` is always there."""


GOALS: Final = ("smallest-gpu", "fewest-gpus", "best-split", "longest-context", "most-users", "quantisation")
"""Inverse questions; `search.serving` answers them."""

SERVE_OPTIONS: Final[dict[str, Option]] = {
    "find": choice_of("job", "find", "the inverse question: vary this until the load fits", GOALS),
    "headroom": Option("job", "headroom", Kind.TEXT, f"with --find: {HEADROOM}"),
    "engine": Option(
        "job", "engine", Kind.TEXT, "engine@version: vllm@0.19 (default), sglang, tensorrt-llm, llama.cpp, diffusers"
    ),
    "context": Option("requests", "context", Kind.COUNT, "longest sequence, prompt and answer (32k = 32768)"),
    "concurrency": Option("requests", "concurrency", Kind.COUNT, "sequences in flight; diffusers: images per prompt"),
    "input-len": Option("requests", "input_len", Kind.COUNT, "tokens of a prompt", also=("input",)),
    "output-len": Option("requests", "output_len", Kind.COUNT, "tokens of an answer", also=("output",)),
    "rate": Option("traffic", "rate", Kind.NUMBER, "requests that arrive per second: latencies by simulation of the "
                   "engine's scheduler"),
    "arrivals": Option("traffic", "arrivals", Kind.TEXT, "instead: a file of recorded requests, JSON lines or CSV"),
    "slo": Option("traffic", "slo", Kind.TEXT, "latencies that are promised: ttft<2s,tpot<50ms (also e2e)"),
    "burstiness": Option("traffic", "burstiness", Kind.NUMBER, "of arrivals: 1 Poisson, less comes in bursts"),
    "num-requests": Option("traffic", "num_requests", Kind.COUNT, "requests that are simulated"),
    "seed": Option("traffic", "seed", Kind.COUNT, "of the random arrivals"),
    "shared-prefix": Option("traffic", "shared_prefix", Kind.COUNT, "tokens that all prompts begin with"),
    "replicas": Option("traffic", "replicas", Kind.COUNT, "such deployments behind one router"),
    "router": choice_of("traffic", "router", "how it chooses", ("round-robin", "least-loaded")),
    "images": Option("requests", "images", Kind.COUNT, "images in a prompt"),
    "image-size": Option("requests", "image_size", Kind.COUNT, "pixels per side of an image in a prompt"),
    "height": Option("requests", "height", Kind.COUNT, "generated image or video: pixels"),
    "width": Option("requests", "width", Kind.COUNT, "generated image or video: pixels"),
    "frames": Option("requests", "frames", Kind.COUNT, "generated video: frames"),
    "tp": Option("plan", "tp", Kind.COUNT, "tensor-parallel degree; by default what pp and dp leave of the GPUs"),
    "pp": Option("plan", "pp", Kind.COUNT, "pipeline stages"),
    "dp": Option("plan", "dp", Kind.COUNT, "data-parallel copies"),
    "attention-dp": Option("plan", "attention_dp", Kind.FLAG, "copies attend apart and share the experts"),
    "expert-parallel": Option("plan", "expert_parallel", Kind.FLAG, "whole experts per rank instead of slices"),
    "dcp": Option("plan", "dcp", Kind.COUNT, "decode context parallelism: the cache divided inside a tp group"),
    "weights": Option(
        "plan", "weights", Kind.TEXT, "what if the weights were stored so: fp8, int4, nf4, mxfp4, nvfp4, q4_k_m ..."
    ),
    "dtype": choice_of("plan", "dtype", "activations and unquantised weights", ("bf16", "fp16", "fp32")),
    "kv-dtype": Option("plan", "kv_dtype", Kind.TEXT, "cache: auto, bf16, fp8, int8, q8_0 ..."),
    "v-dtype": Option("plan", "v_dtype", Kind.TEXT, "llama.cpp: cached values, when not as keys"),
    "memory-fraction": Option("plan", "memory_fraction", Kind.NUMBER, "share of the card the engine may take"),
    "cache-bytes": Option("plan", "cache_bytes", Kind.COUNT, "absolute size of the cache instead of a share"),
    "max-sequences": Option("plan", "max_sequences", Kind.COUNT, "vLLM max_num_seqs and its kin"),
    "batched-tokens": Option("plan", "batched_tokens", Kind.COUNT, "vLLM max_num_batched_tokens and its kin"),
    "micro-batch": Option("plan", "micro_batch", Kind.COUNT, "llama.cpp -ub"),
    "block-tokens": Option("plan", "block_tokens", Kind.COUNT, "tokens of one cache block"),
    "graphs": Option("plan", "graphs", Kind.FLAG, "CUDA graphs"),
    "prefix-caching": Option("plan", "prefix_caching", Kind.FLAG, "keep finished sequences' blocks for reuse"),
    "lora-slots": Option("plan", "lora_slots", Kind.COUNT, "adapters on the card at once (vLLM max_loras)"),
    "lora-rank": Option("plan", "lora_rank", Kind.COUNT, "largest rank of an adapter"),
    "draft": Option(
        "draft", "draft", Kind.TEXT, "speculative decoding: eagle, eagle3, mtp, ngram, medusa or a MODEL"
    ),
    "draft-tokens": Option("draft", "draft_tokens", Kind.COUNT, "tokens proposed at once"),
    "gpu-layers": Option("plan", "gpu_layers", Kind.COUNT, "llama.cpp -ngl: layers on the cards"),
    "attention": choice_of("plan", "attention", "implementation, where there is a choice", ("eager", "sdpa", "flash")),
    "offload": choice_of(
        "plan", "offload", "diffusers: what waits on the host", ("none", "model", "sequential", "group")
    ),
    "tiling": Option("plan", "tiling", Kind.FLAG, "diffusers: the VAE decodes in tiles"),
    "slicing": Option("plan", "slicing", Kind.FLAG, "diffusers: the VAE decodes one image after the other"),
    "calibration": Option(
        "job", "calibration", Kind.TEXT, "a file that --save-calibration wrote: measured over predicted, by entry"
    ),
    "engine-option": Option("job", "engine_options", Kind.NAMES, "key=value for the engine (repeatable)"),
    **CONFIG_OPTIONS,
    **MARKET_OPTIONS,
    **MODEL_OPTIONS,
}
"""Name as users write it -> where it goes. `gpus` and `model` are the two that are always there."""
