"""verl: what critic, reference and reward network must share with the actor, since they are not modelled otherwise, and
what rates answers.

[verl] volcengine/verl 1dda039b (0.10.0.dev) verl/trainer/config/{critic,ref,reward,engine}/*.yaml

verl: what trains and what generates, where their names are their own.

[verl] volcengine/verl 1dda039b (0.10.0.dev) verl/workers/engine/veomni/transformer_impl.py, verl/trainer/config/engine/
veomni.yaml, verl/workers/config/rollout.py
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from vramcast.domain.version import Version, read_version
from vramcast.engines.post_training.releases import FRAMEWORKS
from vramcast.engines.post_training.rollout import ENGINES
from vramcast.formats.tools.rollout_engine import Passed, passed_on
from vramcast.formats.watched import Known, Watched, is_unset

NAMES: Final = Known("verl", "config")

TRAINS_WITH: Final = {"dp": "fsdp", "megatron": "megatron", "veomni": "fsdp2"}
"""`model_engine`, which picks the configurations of all roles [config/model_engine] -> what they train with. VeOmni
shards by FSDP2, in fp32 that is computed in bf16 [workers/engine/veomni/transformer_impl.py]."""

OF_VEOMNI: Final = {
    **{f"{role}.veomni.{name}": f"{role}.fsdp_config.{name}" for role in ("actor", "ref") for name in (
        "param_offload", "optimizer_offload", "fsdp_size")},
    "actor.veomni.enable_full_shard": "actor.fsdp_config.reshard_after_forward",
    "actor.veomni.enable_fsdp_offload": "actor.fsdp_config.offload_policy",
    "actor.veomni.ulysses_parallel_size": "actor.ulysses_sequence_parallel_size",
    "ref.veomni.ulysses_parallel_size": "ref.ulysses_sequence_parallel_size",
    "actor.veomni.router_replay.mode": "actor.megatron.router_replay.mode",
}
"""Its names -> FSDP's that say the same."""

EXPERTS_OF_VEOMNI: Final = ("actor.veomni.expert_parallel_size", "ref.veomni.expert_parallel_size")

VEOMNIS: Final = re.compile(
    r"(?:actor|ref)\.veomni\.(?:\w+_implementation|forward_prefetch|init_device|ckpt_manager|load_checkpoint_path|seed|"
    r"full_determinism|use_torch_compile|strategy)$")
"""Its choices of kernels, and what says nothing of memory."""


def as_fsdp(named: Mapping[str, Any]) -> dict[str, Any]:
    """The names of VeOmni's engine as those of FSDP2; any other's as they are."""
    if named.get("model_engine") != "veomni":
        return dict(named)
    found = {OF_VEOMNI.get(name, name): value for name, value in named.items() if not VEOMNIS.match(name)}
    found.pop("ref.strategy", None)
    return found | {"actor.strategy": "fsdp2"}


def check_experts(values: Watched) -> None:
    """Refuse experts that VeOmni divides over ranks."""
    for name in EXPERTS_OF_VEOMNI:
        if (values.count(name) or 1) > 1:
            values.cannot(name, "experts divided over FSDP's ranks are not modelled for verl")
        values.pop(name, None)


KWARGS: Final = "rollout.engine_kwargs."


def engine_of(values: Watched) -> Passed:
    """Experts of the engine, and what is handed through to it: of the other one it says nothing."""
    engine = str(values.get("rollout.name", "vllm")).partition("_")[0]
    values.get("rollout.moe_tensor_parallel_size")  # of TensorRT-LLM alone [workers/config/rollout.py]
    experts = values.count("rollout.expert_parallel_size") or 1
    found: dict[str, Any] = {"rollout-expert-parallel": True} if experts > 1 else {}
    tp, dp = (values.count(f"rollout.{name}_parallel_size") for name in ("tensor_model", "data"))
    ranks = (tp or 2) * (dp or 1)
    if experts not in (1, ranks):
        values.cannot("rollout.expert_parallel_size", "{} must be the {} ranks of a copy, tensor times data parallel, "
                      "where verl stops", experts, ranks)
    prefix = f"{KWARGS}{engine}."
    own: dict[str, Any] = {}
    for name in [name for name in values if name.startswith(KWARGS)]:
        value = values.get(name)
        if name.startswith(prefix) and not NAMES.is_harmless(name):
            own[name.removeprefix(prefix)] = value
    if engine not in ENGINES or not own:
        return Passed(found, [], [])
    passed = passed_on(engine, own, prefix)
    for one in passed.unread:
        values.refused[one.name] = one
    return passed._replace(options=found | passed.options)


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


ENGINE_RATES_SINCE: Final = (0, 7)
"""First release whose reward network is served by an engine unasked [config/reward_model/dp_reward_loop.yaml
`use_reward_loop`]; before, and where that is off, it is a worker of FSDP."""

ENGINE_ALONE_RATES_SINCE: Final = (0, 8)
"""First release without that worker [config/reward/reward.yaml]."""

SERVES: Final = {
    "reward_model.rollout.enforce_eager": True, "reward_model.rollout.max_num_seqs": 1024,
    "reward_model.rollout.max_num_batched_tokens": 8192, "reward_model.rollout.free_cache_engine": True,
    "reward_model.rollout.data_parallel_size": 1, "reward.reward_model.rollout.pipeline_model_parallel_size": 1,
}
"""What decides the size of that engine -> its default, which alone is modelled."""


def version_of(release: str) -> Version:
    return read_version(release) or FRAMEWORKS["verl"].default


def rewards(values: Watched, release: str) -> dict[str, Any]:
    """The network that rates answers, where one does."""
    if not values.flag("reward_model.enable"):
        return {}
    asked, path = values.flag("reward_model.use_reward_loop"), network(values, "reward_model.model.path")
    if version_of(release) >= ENGINE_ALONE_RATES_SINCE:
        return ({} if path is None else {"reward-model": path}) | _server_of_rewards(values)
    if version_of(release) >= ENGINE_RATES_SINCE if asked is None else asked:
        values.cannot("reward_model.enable", "serves a reward network by an engine of its own, which is not modelled; "
                      "reward_model.use_reward_loop=False, a worker of FSDP, is")
    for one in RATED_ALIKE:
        actors = values.get(one.of, one.usual)
        said = values.get(one.name, actors if one.inherits else one.usual)
        if said != actors and ("strategy" not in one.name or said == "megatron"):  # one worker serves both FSDP
            values.cannot(one.name, "other than {} is not modelled", one.of)
    found: dict[str, Any] = {} if path is None else {"reward-model": path}
    dynamic = values.flag("reward_model.use_dynamic_bsz")
    dynamic = values.flag("actor.use_dynamic_bsz") if dynamic is None else dynamic
    size = values.count("reward_model.micro_batch_size_per_gpu")
    tokens = values.count("reward_model.forward_max_token_len_per_gpu") or 32768
    return found | ({"reward-micro-tokens": tokens} if dynamic else {"reward-micro-batch": size} if size else {})


def _server_of_rewards(values: Watched) -> dict[str, Any]:
    """The engine that serves it, where nothing else is said than its degree and its share of the card."""
    rollout = "reward_model.rollout."
    for name, usual in SERVES.items():
        if name in values and str(values.get(name)) != str(usual):
            values.cannot(name, "other than {} is not modelled", usual)
    if values.get(f"{rollout}name", engine := values.get("rollout.name", "vllm")) != engine:
        values.cannot(f"{rollout}name", "other than {} is not modelled", "rollout.name")
    found = {"reward-tp": values.count(f"{rollout}tensor_model_parallel_size"),
             "reward-fraction": values.number(f"{rollout}gpu_memory_utilization")}
    return {name: value for name, value in found.items() if value is not None}


def network(values: Watched, name: str) -> str | None:
    """A hub's id, or the last part of a folder, whatever stands before it."""
    path = dict.get(values, name)
    if not isinstance(path, str):
        return values.text(name)
    last = path.rstrip("/").rpartition("/")[2]
    if is_unset(last):
        return values.text(name)
    values[name] = path if path.count("/") == 1 and path[0] not in "/~.$" else last
    return values.text(name)
