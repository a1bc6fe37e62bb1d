"""Engine options of vLLM: what its command line has and the plan does not."""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from vramcast.domain.serving import ServeJob
from vramcast.engines.serving.choices import FLAG, Known, typed_options
from vramcast.engines.serving.requests import ALLOW_LONG


class Options(NamedTuple):
    """Options beside the plan's; None leaves the choice to the version."""

    v1: bool | None = None  # VLLM_USE_V1: which of the two engines, 0.7 to 0.10
    offline: bool = False  # the `LLM` class instead of an API server: other default batches
    hybrid_manager: bool | None = None  # False: --disable-hybrid-kv-cache-manager
    language_model_only: bool = False  # towers are not loaded
    images: int | None = None  # --limit-mm-per-prompt image=N
    graph_sizes: int | None = None  # batch sizes captured, where the user lists them
    graphs_in_budget: bool | None = None  # VLLM_MEMORY_PROFILER_ESTIMATE_CUDAGRAPHS
    flashinfer_sampler: bool | None = None  # VLLM_USE_FLASHINFER_SAMPLER
    mamba_ssm_cache_dtype: str = "auto"  # --mamba-ssm-cache-dtype: of recurrent states
    allow_long: bool = False  # VLLM_ALLOW_LONG_MAX_MODEL_LEN


STATE_WIDTHS: Final = {"float32": 4, "float16": 2, "bfloat16": 2}
"""dtype of recurrent states, as vLLM names it -> bytes of an element."""

KNOWN: Final[dict[str, Known]] = {
    "v1": FLAG, "offline": FLAG, "hybrid-manager": FLAG,
    "language-model-only": Known(bool, about="towers"), "images": Known(int, least=0, most=1 << 16, about="towers"),
    "graph-sizes": Known(int, most=1 << 16), "graphs-in-budget": FLAG, "flashinfer-sampler": FLAG,
    "mamba-ssm-cache-dtype": Known(str, choices=("auto", *STATE_WIDTHS), about="states"), ALLOW_LONG: FLAG,
}
"""Option as users write it -> what its value may be."""


OF_TOWERS: Final = tuple(name for name, known in KNOWN.items() if known.about == "towers")


def options_of(job: ServeJob) -> Options:
    """The options of a job.

    Raises: UnknownName for an option that does not exist, InvalidSpec for a value that it cannot have
    """
    found: dict[str, Any] = {name.replace("-", "_"): value for name, value in typed_options(job, KNOWN).items()}
    return Options(**found)
