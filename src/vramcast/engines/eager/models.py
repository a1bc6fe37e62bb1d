"""Runs with several models: preference optimisation and reinforcement learning, and generation between steps.

[DPO] Rafailov et al., arXiv:2305.18290: policy and frozen reference read chosen and rejected answers as one batch.
[PPO] Ouyang et al., arXiv:2203.02155: policy, reference, reward model and a critic that learns; the last two score.
[GRPO] Shao et al., arXiv:2402.03300: policy and reference, no critic.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from vramcast.domain.job import Job, Phase
from vramcast.domain.model import Attention, MultiLatentAttention, scorer
from vramcast.domain.program import Alloc, Category, Free, Loop, Program, Tensor
from vramcast.engines.eager.passes import inference
from vramcast.engines.eager.phases import Stepping, plain_phases
from vramcast.engines.eager.recipe import Recipe, weights
from vramcast.engines.eager.trl import beta_of
from vramcast.states.steps import weight_program

FROZEN_COPIES: Final[dict[str, tuple[str, ...]]] = {
    "dpo": ("reference",),
    "grpo": ("reference",),
    "ppo": ("reference", "reward model"),
}
"""Models of the policy's size that only run forward."""


def all_phases(job: Job, recipe: Recipe, stepping: Stepping) -> Mapping[Phase, Program]:
    """The phases of a run in which every rank keeps everything, with all its models."""
    objective = job.workload.objective
    generation = key_value_cache(recipe, job.workload.completion_len)
    phases = dict(plain_phases(recipe, stepping, generation=generation))
    if objective not in FROZEN_COPIES:
        return phases
    copies = FROZEN_COPIES[objective] if objective != "grpo" or beta_of(job) else ()
    if recipe.sizes.adapter is not None:
        # the reference is the policy with its adapter switched off
        copies = tuple(name for name in copies if name != "reference")
    frozen = recipe._replace(sizes=recipe.sizes._replace(frozen=True, adapter=None), learning=())
    load = list(phases[Phase.LOAD])
    before: Program = generation if objective in ("ppo", "grpo") else ()
    for name in copies:
        copied = frozen if name == "reference" else frozen._replace(model=scorer(frozen.model))
        load += weight_program(weight._replace(owner=f"{name}.{weight.owner}") for weight in weights(copied))
        before += inference(copied)
    if objective == "ppo":
        critic = plain_phases(recipe._replace(model=scorer(recipe.model)), stepping)
        load += critic[Phase.LOAD]
        phases[Phase.FIRST_STEP] += critic[Phase.FIRST_STEP]
        phases[Phase.STEP] += critic[Phase.STEP]
    phases[Phase.LOAD] = tuple(load)
    phases[Phase.FIRST_STEP] = before + phases[Phase.FIRST_STEP]
    phases[Phase.STEP] = before + phases[Phase.STEP]
    return phases


def key_value_cache(recipe: Recipe, completion_len: int) -> Program:
    """Keys and values of prompt and completion, grown by concatenation [transformers cache_utils.py `DynamicLayer`].

    While one layer's tensors grow, the old ones live beside the new.
    """
    if not completion_len:
        return ()
    sizes = recipe.sizes
    length = sizes.seq_len + completion_len
    nodes: list[Loop] = []
    freed: list[Loop] = []
    for run in recipe.model.main.runs:
        width = cache_width(run.layer.mixer)
        if not width:
            continue
        tensor = Tensor(
            name="keys or values", num_bytes=sizes.batch * length * width * sizes.numerics.compute // 2,
            category=Category.ACTIVATIONS, owner="generation.cache",
            formula=f"{sizes.batch} x {length} x {width // 2} x {sizes.numerics.compute} B",
        )
        nodes.append(Loop(2 * run.count, (Alloc(tensor),)))
        freed.append(Loop(2 * run.count, (Free(tensor),)))
        grown = (Alloc(tensor), Free(tensor))
    return (*nodes, *grown, *freed) if nodes else ()


def cache_width(mixer: object) -> int:
    """Elements one layer caches per token; 0 when it keeps a state of fixed size."""
    if isinstance(mixer, Attention):
        return mixer.num_kv_heads * (mixer.head_dim + (mixer.v_head_dim or mixer.head_dim))
    if isinstance(mixer, MultiLatentAttention):
        return mixer.num_heads * (mixer.qk_nope_dim + mixer.qk_rope_dim + mixer.v_head_dim)
    return 0
