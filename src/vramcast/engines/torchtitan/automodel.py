"""NeMo Automodel's networks whose experts are divided over ranks, with frozen parts: adapters beside all of it, towers.

[am] NVIDIA-NeMo/Automodel at 36044ad3 components/_peft/lora.py `apply_lora_to_linear_modules`: stacked experts get one
correction of gate and up together and one of down, without dropout, of a rank that `moe_rank_scaling` divides by the
experts of a token [lora_experts.py `GroupedExpertsDeepEPLoRA`]; components/moe/parallelizer.py `apply_fsdp`
They are counted as eager code, whose frozen parts these are, over torchtitan's layers.
"""

from __future__ import annotations

from msgspec.structs import replace

from vramcast.domain.job import Loss, RankProgram
from vramcast.domain.model import MoE
from vramcast.engines.eager.question import recipe_of
from vramcast.engines.eager.recipe import Sharding
from vramcast.engines.pytorch import sharded_role
from vramcast.engines.torchtitan.setting import Setting


def whole_network(setting: Setting) -> RankProgram:
    """All ranks do the same, each with its experts.

    Raises: Unsupported, or InvalidSpec for a rank that leaves experts none
    """
    job, options, sharing = setting.job, setting.job.engine_options, setting.sharing
    whole = replace(job, plan=replace(job.plan, ep=1))
    recipe = recipe_of(whole, loss="eager" if job.plan.loss in (None, Loss.EAGER) else None)
    sizes, adapter = setting.sizes, recipe.sizes.adapter
    if adapter is not None:
        channels = (layer.channel for layer in job.model.main.layers)
        chosen = max((channel.top_k for channel in channels if isinstance(channel, MoE)), default=1)
        rank = max(1, adapter.rank // chosen) if options.get("scaled_rank") else adapter.rank
        adapter = replace(adapter, options=(*adapter.options, ("expert_rank", rank)))
    own = replace(
        recipe.sizes,
        norm=sizes.norm, activation=sizes.activation, rope=sizes.rope, grouped=sizes.grouped, dispatch=sizes.dispatch,
        attention=sizes.attention, expert_loop=False, expert_turns=1, caches_products=False, adapter=adapter,
    )
    recipe = replace(recipe, sizes=own, reentrant=False, keeps_router=setting.choices.keeps_router)
    dense, experts = sharing.dense, sharing.experts
    sharding = Sharding(
        "fsdp2", dense.ranks, experts.ranks if job.plan.ep > 1 else None, split_root=True,
        reshard=setting.reshard != "never", defers=options.get("defers_sync") is True, reduced=dense.reduce_width,
        offload=job.plan.offload_parameters == "cpu", frozen_in_root=options.get("frozen_towers") == "root",
    )
    return sharded_role(job, recipe, sharding)
