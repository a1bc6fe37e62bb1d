"""How engines run a forward: which kernels they fuse, how they keep the cache, what a launch and a step cost.

Seconds and shares are fitted: those of `transformers` on the speeds that Qwen2, Qwen2.5 and Qwen3 publish (134 runs on
A100 and H20, 0.5B to 72B, batch 1), the others on `truth/speeds.csv`. `python -m benchmarks.speed` prints what is left
of the error.

[dynamic] transformers cache_utils.py `DynamicLayer.update`: keys and values are concatenated anew in every step.
[repeat] transformers models/qwen2/modeling_qwen2.py `repeat_kv` before the attention kernel.
[experts] transformers models/qwen3_moe/modeling_qwen3_moe.py (4.51) `Qwen3MoeSparseMoeBlock.forward`: a Python loop
over all experts, those without a token included.
[vllm] vllm/model_executor/layers: QKV and gate/up projections are one product, the residual is added in the norm.
[mmq] ggml-org/llama.cpp ggml/src/ggml-cuda/mmq.cu: quantised weights times activations in 8 bits.
"""

from __future__ import annotations

from typing import Final

from msgspec import Struct
from msgspec.structs import replace

Version = tuple[int, ...]


class Execution(Struct, frozen=True):
    """One engine's way of running a forward."""

    eager: bool = False  # operators one by one from Python, whatever the card does meanwhile
    launch_s: float = 6e-6  # host time of one kernel that no CUDA graph replays, where LAUNCH_S does not say [s]
    kernel_s: float = 2.5e-6  # start and end of one kernel on the card, during which it moves nothing [s]
    step_s: float = 0.5e-3  # scheduling, sampling and copies between two steps [s]
    fused: bool = True  # [vllm]
    pipelined: bool = True  # stages work on different sequences at the same time
    copies_cache: bool = False  # [dynamic] [repeat]
    loops_experts: int = 0  # kernels beside the products in a loop over all experts, for each [experts]
    meets_experts: bool = False  # that loop leaves out experts without a token
    sequence_bytes_per_s: float | None = None  # one sequence's cache is read no faster, however fast the memory
    integer_share: float = 1.0  # of the 8-bit rate, with weights that are unpacked on the way [mmq]
    format_kernels: tuple[tuple[str, float], ...] = ()  # format -> kernels of one product with such weights
    format_shares: tuple[tuple[str, float], ...] = ()  # format -> share of the achieved bandwidth at one row

    def kernels_of(self, stored: str) -> float:
        """Kernels of one product with weights of that format."""
        return dict(self.format_kernels).get(stored, 1.0)

    def share_of(self, stored: str) -> float:
        """Share of the achieved bandwidth that a product with weights of that format reaches."""
        return dict(self.format_shares).get(stored, 1.0)


EAGER_FORMATS: Final = (("awq-int4", 3.0), ("gptq-int8", 2.5), ("fp8", 10.0), ("fp8-block", 10.0))

EAGER_SHARES: Final = (
    ("bf16", 0.66), ("fp16", 0.66), ("awq-int4", 0.28), ("gptq-int4", 0.28), ("gptq-int8", 0.37), ("fp8", 0.06),
    ("fp8-block", 0.06),
)

EAGER: Final = Execution(
    eager=True, launch_s=15e-6, step_s=1e-3, fused=False, pipelined=False, copies_cache=True, loops_experts=5,
    sequence_bytes_per_s=0.48e12, format_kernels=EAGER_FORMATS, format_shares=EAGER_SHARES,
)

GGML: Final = Execution(step_s=0.2e-3, pipelined=False, integer_share=0.33)

EXECUTIONS: Final[dict[str, tuple[tuple[Version, Execution], ...]]] = {
    "vllm": (((0, 8), Execution(step_s=0.8e-3)), ((0,), Execution(step_s=1.5e-3))),
    "sglang": (((0,), Execution()),),
    "tensorrt-llm": (((0,), Execution()),),
    "llama.cpp": (((0,), GGML),),
    "ik_llama.cpp": (((0,), GGML),),  # on cards the fork starts the same kernels
    "transformers": (
        ((4, 50), replace(EAGER, format_kernels=EAGER_FORMATS[1:])),
        ((0,), EAGER),
    ),
}
"""Engine -> first version -> how it runs, newest first. An engine that is not here has no speed."""

LAUNCH_S: Final[dict[str, float]] = {"Ampere": 19e-6, "Hopper": 11e-6}
"""Host time of one eager operator by the card's generation, which stands for that of its host: the A100 servers of
Qwen2 and Qwen2.5, the H20 servers of Qwen3 [s]."""


def execution_of(engine: str, version: Version, *, arch: str) -> Execution | None:
    """How a version of an engine runs on a host of a card's generation; None for an engine without speeds."""
    found = next((run for since, run in EXECUTIONS.get(engine, ()) if version >= since), None)
    if found is None or not found.eager:
        return found
    return replace(found, launch_s=LAUNCH_S.get(arch, found.launch_s))
