"""Norms, embeddings and heads of 32 bits beside layers of 16, all of which learn under autocast.

[ax] axolotl-ai-cloud/axolotl 0.18.0 src/axolotl/loaders/model.py `_configure_embedding_dtypes`,
`_convert_embedding_modules_dtype`: modules whose names hold "norm", and those that loaders/utils.py
`get_linear_embedding_layers` names
"""

from __future__ import annotations

from typing import Final

from msgspec.structs import replace

from vramcast.domain.job import Job
from vramcast.engines.eager.recipe import Recipe
from vramcast.engines.eager.releases import sharder
from vramcast.errors import Unsupported
from vramcast.units import FP32, HALF

NAMED_SO: Final = (
    "arcee", "ernie4_5", "exaone4", "gemma", "gemma2", "gemma3_text", "glm", "glm4", "gpt_neox", "granite", "helium",
    "llama", "ministral", "mistral", "olmo2", "olmo3", "phi3", "qwen2", "qwen3", "seed_oss", "smollm3",
)
"""Families whose modules are named as [ax] looks for them: norms with "norm", `embed_tokens` and `lm_head`, or
`embed_in` and `embed_out`."""

SAID: Final = "embedding, head and norms are fp32 beside layers of 16 bits, and so are hidden states"


def widened(recipe: Recipe, job: Job) -> tuple[Recipe, tuple[str, ...]]:
    """The recipe of a network whose ends and norms are so, and what is said of it.

    Raises: Unsupported where names of modules may be others, or somebody casts them back
    """
    if not job.engine_options.get("fp32_modules"):
        return recipe, ()
    numerics = recipe.sizes.numerics
    if recipe.model.family not in NAMED_SO or len(recipe.model.stacks) > 1:
        raise Unsupported("which modules of {} are fp32 beside layers of 16 bits is not modelled", job.model.name)
    if numerics.weight != HALF or job.plan.peft is not None or job.plan.compile or sharder(job) is not None:
        raise Unsupported("fp32 modules are modelled where every weight of 16 bits learns, on each rank whole")
    sizes = replace(recipe.sizes, numerics=replace(numerics, residual=FP32), norm_weights=FP32)
    return replace(recipe, sizes=sizes, wide_ends=True), (SAID,)
