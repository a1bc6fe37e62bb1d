"""The phases of a run whose weights, gradients and optimizer states are fully sharded."""

from __future__ import annotations

from collections.abc import Mapping

from vramcast.domain.job import Phase
from vramcast.domain.program import Loop, Node, Program
from vramcast.engines.eager.fsdp1 import Flat
from vramcast.engines.eager.fsdp2 import PerWeight
from vramcast.engines.eager.graphs import blocks
from vramcast.engines.eager.passes import inference, passes
from vramcast.engines.eager.phases import Stepping, stepped
from vramcast.engines.eager.recipe import Recipe
from vramcast.engines.eager.sharding import Sharding, parts, whole
from vramcast.states.steps import state_program, weight_program


def sharded_phases(recipe: Recipe, stepping: Stepping, sharding: Sharding) -> Mapping[Phase, Program]:
    """Load, first step, step, evaluation of one rank under FSDP.

    Micro-batches before the last are not synchronised: their gradients add up unsharded.

    Args:
        recipe: the model
        stepping: optimizer and accumulation
        sharding: who shards
    """
    built, flat = blocks(recipe), sharding.by == "fsdp1"
    found = parts(recipe, leaves=flat and sharding.leaves)
    around = Flat(found, sharding) if flat else PerWeight(found, sharding, tied=recipe.model.tied)
    held = tuple(around.shards())
    around.synchronises = stepping.grad_accum == 1
    micro_batches: list[Node] = []
    for around.first, times in ((True, 1), (False, stepping.grad_accum - 1)):
        if times:
            body = passes(recipe, built=built, around=around).micro_batch
            micro_batches += body if times == 1 else (Loop(times, body, label="micro-batches"),)
    micro_batches += () if around.synchronises else around.scatter()
    on_host = sharding.offload
    made = () if on_host else state_program(held, stepping.optimizer)
    end = (*(() if on_host else stepped(held, stepping)), *around.zero())
    return {
        Phase.LOAD: (*around.load(), *weight_program(whole(found))),
        Phase.FIRST_STEP: (*stepping.workspaces, *micro_batches, *made, *end),
        Phase.STEP: (*micro_batches, *end),
        Phase.EVALUATION: inference(recipe, built, around),
        Phase.CHECKPOINT: (),
    }
