"""verl: what trains and what generates, where their names are their own.

[verl] volcengine/verl 1dda039b (0.10.0.dev) verl/workers/engine/veomni/transformer_impl.py, verl/trainer/config/engine/
veomni.yaml, verl/workers/config/rollout.py
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from vramcast.engines.post_training.rollout import ENGINES
from vramcast.formats.tools.rollout_engine import Passed, passed_on
from vramcast.formats.watched import Known, Watched

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


