"""How engines run a forward: which kernels they fuse, how they keep the cache, what a launch and a step cost.

Seconds are fitted on `truth/speeds.csv` and on the speeds that rows of Qwen's tables state (transformers); the
ranges are those of the runs named there. `python -m benchmarks.speed` prints what is left of the error.

[dynamic] transformers cache_utils.py `DynamicLayer.update`: keys and values are concatenated anew in every step.
[repeat] transformers models/qwen2/modeling_qwen2.py `repeat_kv` before the attention kernel.
[experts] transformers models/qwen3_moe/modeling_qwen3_moe.py (4.51) `Qwen3MoeSparseMoeBlock.forward`: a Python loop
over all experts. [vllm] vllm/model_executor/layers: fused QKV and gate/up projections, add + norm in one kernel.
"""

from __future__ import annotations

from typing import Final, NamedTuple


class Execution(NamedTuple):
    """One engine's way of running a forward."""

    eager: bool  # operators one by one from Python: `launch_s` each, whatever the card does meanwhile
    launch_s: float  # host time of one kernel where no CUDA graph replays it [s]
    kernel_s: float  # start and end of one kernel on the card, during which it moves nothing [s]
    step_s: float  # scheduling, sampling and copies between two steps [s]
    fused: bool = True  # q, k, v in one product, gate and up in one, residual added in the norm
    pipelined: bool = True  # stages work on different sequences at the same time
    copies_cache: bool = False  # [dynamic] [repeat]
    loops_experts: int = 0  # kernels of a loop over all experts, for each [experts]
    attention_share: float = 1.0  # of the achieved bandwidth, while a decode step reads keys and values
    format_kernels: tuple[tuple[str, float], ...] = ()  # format -> kernels of one product with such weights
    format_shares: tuple[tuple[str, float], ...] = ()  # format -> share of the achieved bandwidth its kernel reaches

    def kernels_of(self, stored: str) -> float:
        """Kernels of one product with weights of that format."""
        return dict(self.format_kernels).get(stored, 1.0)

    def share_of(self, stored: str) -> float:
        """Share of the achieved bandwidth that a product with weights of that format reaches."""
        return dict(self.format_shares).get(stored, 1.0)


SERVER: Final = Execution(eager=False, launch_s=6e-6, kernel_s=2.5e-6, step_s=0.8e-3)

EXECUTIONS: Final[dict[str, Execution]] = {
    "vllm": SERVER,
    "sglang": SERVER._replace(step_s=0.5e-3),
    "tensorrt-llm": SERVER._replace(step_s=0.5e-3),
    "llama.cpp": SERVER._replace(step_s=0.2e-3, pipelined=False),
    "transformers": Execution(
        eager=True, launch_s=17e-6, kernel_s=2.5e-6, step_s=1e-3, fused=False, pipelined=False, copies_cache=True,
        loops_experts=5, attention_share=0.35,
        format_kernels=(("awq-int4", 3.0), ("gptq-int8", 3.0), ("fp8", 7.0), ("fp8-block", 7.0)),
        format_shares=(("fp8-block", 0.2), ("fp8", 0.2)),
    ),
}
"""Engine -> how it runs. An engine that is not here has no speed."""
