"""Fully sharded data parallelism as Accelerate and the Trainer name it.

[acc] accelerate utils/dataclasses.py `FullyShardedDataParallelPlugin`, commands/config/config_args.py
[HF] transformers training_args.py `_process_fsdp_args`: the same names without "fsdp_"
"""

from __future__ import annotations

import re
from typing import Any, Final

from vramcast.question.configs.watched import Watched

STRATEGIES: Final = {
    "FULL_SHARD": "everything", "SHARD_GRAD_OP": "optimizer+gradients", "NO_SHARD": "nothing",
    "1": "everything", "2": "optimizer+gradients", "3": "nothing",
}
"""FSDP 1's strategies by name and number; the hybrid ones need the ranks of a machine."""

WRAPPED: Final = ("TRANSFORMER_BASED_WRAP",)
"""One unit a layer: what is modelled."""

LAYER: Final = re.compile(r"\w*(?<!Moe)(?<!MoE)(?:Layer|Block)")
"""How Transformers calls one layer of a network; its parts end in MLP, Attention, MoeBlock, Experts ..."""

PREFETCHES: Final = {"backward_pre": "pre", "no_prefetch": "none"}
"""The latter where nothing is said; in any case [acc]."""

OF_ONE: Final = ("use_orig_params", "sync_module_states", "forward_prefetch", "backward_prefetch", "sharding_strategy",
                 "limit_all_gathers")
"""Names that say nothing to FSDP 2."""


def fsdp_options(
    fsdp: Watched, *, strategy: str | None = None, offload: bool = False, version: int = 1, wrap: str | None = None,
    prefix: str = "fsdp_",
) -> dict[str, Any]:
    """The options of a table of FSDP.

    Args:
        fsdp: its names
        strategy: as named elsewhere
        offload: whether something else says that weights wait on the host
        version: of FSDP where the table says none
        wrap: the wrapping policy where the table says none
        prefix: of the names
    """

    def key(name: str) -> str:
        return name if prefix == "" and f"fsdp_{name}" not in fsdp else f"fsdp_{name}"

    version = fsdp.count(key("version")) or version
    policy = str(fsdp.get(key("auto_wrap_policy"), wrap)).upper()
    _check_units(fsdp, key("transformer_layer_cls_to_wrap"))
    if policy not in WRAPPED:
        fsdp.cannot(key("auto_wrap_policy"), f"{policy[:40]} is not modelled; {', '.join(WRAPPED)} is")
    fsdp.get(key("min_num_params"))  # of the other policy
    shards = _strategy(fsdp, key("sharding_strategy"), key("reshard_after_forward"), strategy, version)
    found: dict[str, Any] = {"engine": "huggingface", "sharded-by": f"fsdp{version}"} | shards
    if version == 2:
        for name in OF_ONE:
            fsdp.get(key(name))
    else:
        for name, usual in (("forward_prefetch", (False, "false")), ("use_orig_params", (True, "true")),
                            ("limit_all_gathers", (True, "true"))):
            fsdp.only(key(name), *usual)
        prefetch = fsdp.one_of(key("backward_prefetch"), PREFETCHES, lower=True, option="engine-option")
        found |= {"engine-option": (f"backward_prefetch={prefetch or 'none'}",)} if prefetch != "pre" else {}
    if offload or fsdp.flag(key("offload_params")) or fsdp.flag(key("cpu_offload")):
        found |= {"offload-optimizer": "cpu", "offload-parameters": "cpu"}
    if fsdp.flag(key("activation_checkpointing")):
        found["recompute"] = "full"
    if fsdp.flag(key("activation_checkpointing_offload")):
        fsdp.cannot(key("activation_checkpointing_offload"))
    return found if found.get("shards") != "nothing" else {
        name: value for name, value in found.items() if name not in ("sharded-by", "engine-option")
    }


def _check_units(fsdp: Watched, key: str) -> None:
    """Refuse units that are no whole layers."""
    named = fsdp.get(key) or ()
    listed = named if isinstance(named, (list, tuple)) else str(named).split(",")
    if others := [text for name in listed if not LAYER.fullmatch(text := str(name).strip())]:
        fsdp.cannot(key, f"units of {others[0][:60]} are not modelled; units of one layer are")


def _strategy(fsdp: Watched, strategy_key: str, reshard_key: str, given: str | None, version: int) -> dict[str, Any]:
    """What is split, and whether gathered weights are freed after forward."""
    named, reshard = fsdp.get(strategy_key), fsdp.get(reshard_key)
    if version == 2:
        kept = given == "SHARD_GRAD_OP" or str(reshard).lower() == "false"
        if given is not None and given not in ("FULL_SHARD", "SHARD_GRAD_OP"):
            fsdp.cannot(reshard_key, f"{given.lower()} is not modelled for FSDP 2", option="shards")
        if reshard is not None and str(reshard).lower() not in ("true", "false"):
            fsdp.refuse(reshard_key, "true or false", option="reshard-after-forward")
        return {"shards": "everything"} | ({"reshard-after-forward": False} if kept else {})
    text = str(reshard).upper() if isinstance(reshard, str) and str(reshard).lower() not in ("true", "false") else None
    chosen = given or text or (str(named).upper() if named is not None else "FULL_SHARD")
    if chosen not in STRATEGIES:
        fsdp.cannot(strategy_key, f"{chosen[:40]!r} is not one of {', '.join(STRATEGIES)}", option="shards")
        return {}
    return {"shards": STRATEGIES[chosen]}
