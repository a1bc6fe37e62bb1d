"""Engine options of vLLM: what its command line has and the plan does not."""

from __future__ import annotations

from typing import Final, NamedTuple

from vramcast.domain.serving import ServeJob
from vramcast.errors import InvalidSpec, UnknownName


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


KINDS: Final[dict[str, type]] = {
    "v1": bool, "offline": bool, "hybrid-manager": bool, "language-model-only": bool, "images": int,
    "graph-sizes": int, "graphs-in-budget": bool, "flashinfer-sampler": bool,
}
"""Option as users write it -> what its value is."""


def options_of(job: ServeJob) -> Options:
    """The options of a job.

    Raises: UnknownName for an option that does not exist, InvalidSpec for a value of the wrong type
    """
    found: dict[str, object] = {}
    for name, value in job.engine_options.items():
        kind = KINDS.get(name)
        if kind is None:
            raise UnknownName.of("vLLM option", name, KINDS)
        if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
            wanted = "true or false" if kind is bool else "a number"
            raise InvalidSpec(f"engine-option {name}={str(value)[:40]} must be {wanted}")
        found[name.replace("-", "_")] = value
    return Options(**found)  # type: ignore[arg-type]
