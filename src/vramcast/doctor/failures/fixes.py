"""What to change, by cause: the table, and the fixes of one failure with what the message's own arithmetic gives.

[torch] docs/source/notes/cuda.rst, `PYTORCH_CUDA_ALLOC_CONF`; [vllm] docs/configuration/conserving_memory.md
[sglang] docs/advanced_features/hyperparameter_tuning.md; [trtllm] `KvCacheConfig.free_gpu_memory_fraction`
[llama.cpp] common/arg.cpp; [tf] `TF_FORCE_GPU_ALLOW_GROWTH`; [jax] docs/gpu_memory_allocation.rst
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from vramcast.doctor.failures.case import LLAMA, TORCH, Case
from vramcast.doctor.failures.causes import Judged
from vramcast.doctor.failures.fixes_elsewhere import ELSEWHERE
from vramcast.doctor.failures.fixes_too_big import TOO_BIG
from vramcast.doctor.failures.remedy import (
    Remedy,
    expandable,
    figure,
    freed_enough,
    has_expandable,
    is_server,
    is_torch,
    joined_enough,
    max_split,
)
from vramcast.domain.failure import Cause, Fix
from vramcast.domain.reconciliation import Remark

OFFERED: Final = 8
"""The most fixes that are shown of one failure."""

ALSO: Final = 0.25
"""A cause this likely is treated as well, where it is not the likeliest."""

PIECES: Final[tuple[Remedy, ...]] = (
    Remedy(
        "fix.expandable", (Cause.FRAGMENTED, Cause.UNKNOWN), expandable,
        lambda case: is_torch(case) and has_expandable(case), figure("unallocated"), joined_enough,
    ),
    Remedy(
        "fix.newer_torch", (Cause.FRAGMENTED,), expandable, lambda case: is_torch(case) and not has_expandable(case),
        figure("unallocated"), joined_enough,
    ),
    Remedy("fix.max_split", (Cause.FRAGMENTED,), max_split, is_torch),
    Remedy("fix.shapes", (Cause.FRAGMENTED,), "pad_to_multiple_of=64", lambda case: case.family in TORCH),
    Remedy("fix.empty_cache", (Cause.FRAGMENTED,), "torch.cuda.empty_cache()", is_torch),
)

POOLS: Final[tuple[Remedy, ...]] = (
    Remedy(
        "fix.fewer_graphs", (Cause.PRIVATE_POOLS,), "--enforce-eager", is_server("vllm"), figure("pools"),
        freed_enough("pools"),
    ),
    Remedy(
        "fix.fewer_graphs", (Cause.PRIVATE_POOLS,), "--cuda-graph-max-bs 32", is_server("sglang"), figure("pools"),
        freed_enough("pools"),
    ),
    Remedy(
        "fix.no_reduce_overhead", (Cause.PRIVATE_POOLS,), 'torch.compile(model, mode="default")', is_torch,
        figure("pools"), freed_enough("pools"),
    ),
    Remedy("fix.share_pool", (Cause.PRIVATE_POOLS,), "torch.cuda.graph(graph, pool=first.pool())", is_torch),
)

GROWTH: Final[tuple[Remedy, ...]] = (
    Remedy("fix.detach", (Cause.LEAK,), "total += loss.item()", lambda case: case.family not in LLAMA),
    Remedy("fix.no_grad", (Cause.LEAK,), "with torch.no_grad():", is_torch),
    Remedy(
        "fix.record", (Cause.LEAK, Cause.UNKNOWN, Cause.FRAGMENTED),
        "torch.cuda.memory._record_memory_history(max_entries=1_000_000)", is_torch,
    ),
)

WRONG: Final[tuple[Remedy, ...]] = (
    Remedy("fix.first_error", (Cause.BUG,), details=("not_memory",)),
    Remedy("fix.synchronous", (Cause.BUG,), "CUDA_LAUNCH_BLOCKING=1", details=("other_error",)),
    Remedy("fix.newer_server", (Cause.BUG,), details=("not_memory",)),
    Remedy("fix.shape_overflow", (Cause.BUG,), "print(tensor.shape, tensor.dtype)", details=("overflow",)),
)

REMEDIES: Final[tuple[Remedy, ...]] = (*PIECES, *TOO_BIG, *ELSEWHERE, *POOLS, *GROWTH, *WRONG)
"""All of them; of one cause in the order in which they should be tried."""


def fixes_of(case: Case, judged: Judged) -> tuple[Fix, ...]:
    """The fixes of one failure: those of its cause, then those of another that is likely too; enough ones first."""
    also = (name for name in judged.likely if judged.likely[name] >= ALSO)
    causes = sorted(also, key=lambda name: -judged.likely[name])
    found: dict[tuple[str, str], Fix] = {}
    for cause in dict.fromkeys((judged.cause, *causes)):
        for fix in sorted(_of_cause(case, cause, judged.detail), key=lambda fix: _rank(fix.enough)):
            found.setdefault((fix.action.key, fix.setting), fix)
    return tuple(found.values())[:OFFERED]


def _of_cause(case: Case, cause: Cause, detail: str) -> Iterator[Fix]:
    for remedy in REMEDIES:
        if cause not in remedy.causes or (remedy.details and detail not in remedy.details) or not remedy.applies(case):
            continue
        saves = remedy.saves(case)
        yield Fix(
            action=Remark(key=remedy.key), setting=remedy.setting_for(case), saves_bytes=saves,
            shown_by="" if saves is None else "arithmetic", enough=remedy.enough(case),
        )


def _rank(enough: bool | None) -> int:
    """What is enough first, what is known not to be last."""
    return {True: 0, None: 1, False: 2}[enough]
