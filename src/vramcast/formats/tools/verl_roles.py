"""verl: what critic, reference and reward network must share with the actor, since they are not modelled otherwise.

[verl] volcengine/verl 1dda039b (0.10.0.dev) verl/trainer/config/{critic,ref,reward,engine}/*.yaml
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

MEGATRON: Final = "actor.megatron."
MCORE: Final = "actor.optim.override_optimizer_config."
"""What goes to Megatron's own optimizer."""


class Alike(NamedTuple):
    """A setting of another role that must be the actor's."""

    name: str
    of: str  # of the actor
    usual: Any  # where nobody says the actor's
    inherits: bool = False  # where nobody says it, it is the actor's; else it is the usual one


OF_CRITIC: Final = (
    Alike("critic.ppo_mini_batch_size", "actor.ppo_mini_batch_size", 256, inherits=True),
    Alike("critic.ppo_epochs", "actor.ppo_epochs", 1, inherits=True),
    Alike("critic.use_dynamic_bsz", "actor.use_dynamic_bsz", False, inherits=True),
)

OF_SHARDED_CRITIC: Final = (
    Alike("critic.strategy", "actor.strategy", "fsdp"),
    Alike("critic.ulysses_sequence_parallel_size", "actor.ulysses_sequence_parallel_size", 1),
    Alike("critic.model.enable_gradient_checkpointing", "model.enable_gradient_checkpointing", True),
    Alike("critic.model.lora_rank", "model.lora_rank", 0),
    *(Alike(f"critic.fsdp.{name}", f"actor.fsdp_config.{name}", usual) for name, usual in (
        ("param_offload", False), ("optimizer_offload", False), ("fsdp_size", -1), ("model_dtype", "fp32"),
        ("reshard_after_forward", True))),
)

SIZES: Final = (
    "tensor_model_parallel_size", "pipeline_model_parallel_size", "context_parallel_size",
    "expert_model_parallel_size",
)

OF_SPLIT_CRITIC: Final = (
    Alike("critic.strategy", "actor.strategy", "fsdp", inherits=True),
    *(Alike(f"critic.megatron.{name}", f"{MEGATRON}{name}", usual) for name, usual in (
        *((size, 1) for size in SIZES), ("expert_tensor_parallel_size", None),
        ("virtual_pipeline_model_parallel_size", None), ("sequence_parallel", True), ("param_offload", False),
        ("optimizer_offload", False), ("grad_offload", False), ("use_remove_padding", True),
        *((f"override_transformer_config.{name}", None) for name in (
            "recompute_granularity", "recompute_method", "recompute_num_layers", "num_layers_in_first_pipeline_stage",
            "num_layers_in_last_pipeline_stage")))),
    Alike(f"{MCORE}optimizer_cpu_offload".replace("actor", "critic"), f"{MCORE}optimizer_cpu_offload", False),
)

OF_REFERENCE: Final = (
    Alike("ref.strategy", "actor.strategy", "fsdp", inherits=True),
    Alike("ref.ulysses_sequence_parallel_size", "actor.ulysses_sequence_parallel_size", 1, inherits=True),
    *(Alike(f"ref.megatron.{name}", f"{MEGATRON}{name}", 1, inherits=True) for name in (
        *SIZES, "expert_tensor_parallel_size")),
    Alike("ref.megatron.virtual_pipeline_model_parallel_size", f"{MEGATRON}virtual_pipeline_model_parallel_size", None,
          inherits=True),
    Alike("ref.megatron.sequence_parallel", f"{MEGATRON}sequence_parallel", True, inherits=True),
    Alike("rollout.prompt_length", "data.max_prompt_length", 512, inherits=True),
    Alike("rollout.response_length", "data.max_response_length", 512, inherits=True),
)

RATED_ALIKE: Final = (
    Alike("reward_model.strategy", "actor.strategy", "fsdp"),
    Alike("reward_model.ulysses_sequence_parallel_size", "actor.ulysses_sequence_parallel_size", 1, inherits=True),
    Alike("reward_model.model.use_remove_padding", "model.use_remove_padding", False),
    Alike("reward_model.model.fsdp_config.fsdp_size", "actor.fsdp_config.fsdp_size", -1),
)
