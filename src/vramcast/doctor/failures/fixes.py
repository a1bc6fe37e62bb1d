"""What to change, by cause, with what the message's own arithmetic gives; and fixes where not the job fills the card.

[torch] docs/source/notes/cuda.rst, `PYTORCH_CUDA_ALLOC_CONF`; [vllm] docs/configuration/conserving_memory.md
[sglang] docs/advanced_features/hyperparameter_tuning.md; [trtllm] `KvCacheConfig.free_gpu_memory_fraction`
[llama.cpp] common/arg.cpp; [tf] `TF_FORCE_GPU_ALLOW_GROWTH`; [jax] docs/gpu_memory_allocation.rst
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from vramcast.doctor.failures.card_rules import NEAR, enough_free, round_share
from vramcast.doctor.failures.case import HOST as HOST_FAMILIES
from vramcast.doctor.failures.case import LIBRARIES, LLAMA, SERVERS, TORCH, Case
from vramcast.doctor.failures.causes import Judged
from vramcast.doctor.failures.fixes_too_big import (
    TOO_BIG,
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
from vramcast.doctor.failures.text_rules import is_host, reserves_all
from vramcast.domain.failure import Cause, Fix
from vramcast.domain.reconciliation import Remark
from vramcast.units import ceil_div

OTHERS: Final = (Cause.OTHER_PROCESS,)
LIMIT: Final = (Cause.MEMORY_FRACTION,)
BESIDE: Final = (Cause.CONTEXT_AND_LIBRARIES,)
UNSAID: Final = (Cause.UNKNOWN,)
HOST: Final = (Cause.HOST_MEMORY,)

SHARED_MEMORY: Final = r"\bshm\b|shm[_-]|shared memory|bus error|No space left"
"""/dev/shm was full; a worker that was killed ran out of main memory itself."""

LOWER: Final = 0.85
"""A share of the card below what engines take by themselves, 0.9 or 0.92, where the text gives none."""

LISTING: Final[dict[str, str]] = {
    "torch-npu": "npu-smi info", "torch-hip": "rocm-smi --showpids", "torch-xpu": "xpu-smi ps",
}
"""Family -> what lists the processes of a card; others: nvidia-smi."""

VISIBLE: Final[dict[str, str]] = {
    "torch-npu": "ASCEND_RT_VISIBLE_DEVICES", "torch-hip": "HIP_VISIBLE_DEVICES", "torch-xpu": "ZE_AFFINITY_MASK",
}


def _listing(case: Case) -> str:
    return LISTING.get(case.family, "nvidia-smi --query-compute-apps=pid,used_memory --format=csv")


def _visible(case: Case) -> str:
    device = case.number("device")
    other = 1 if not device else 0
    return f"{VISIBLE.get(case.family, 'CUDA_VISIBLE_DEVICES')}={other}"


def _held(case: Case) -> int | None:
    """What others hold for certain; what lies outside the allocator is partly this process's own."""
    return case.figures.others


def _needed_fraction(case: Case) -> float | None:
    """The share of the card that what is held and the request take together, to the hundredth above."""
    figures = case.figures
    held = figures.reserved if figures.reserved is not None else figures.allocated
    if held is None or figures.tried is None or not figures.total:
        return None
    share = ceil_div(round(1e6 * (held + figures.tried) / figures.total), 10_000) / 100
    return share if share <= 1 else None


def _fraction(case: Case) -> str:
    share = _needed_fraction(case)
    device = case.number("device")
    number = "" if device is None else f", {int(device)}"
    return f"torch.cuda.set_per_process_memory_fraction({1.0 if share is None else share}{number})"


def _raised(case: Case) -> bool | None:
    """Whether the request fits once the limit is as high as that share: there must be that much free."""
    figures = case.figures
    if _needed_fraction(case) is None or figures.tried is None or figures.free is None:
        return None
    return figures.free >= figures.tried + NEAR


def _above(case: Case) -> int | None:
    """What the raised limit gives this process beyond the one it had [bytes]."""
    figures, share = case.figures, _needed_fraction(case)
    if figures.allowed is None or figures.total is None or share is None:
        return None
    return max(0, int(share * figures.total) - figures.allowed)


def _lower(case: Case) -> float | None:
    """A share of the card that leaves what was missing, to the hundredth below."""
    fraction, short, total = case.number("memory_fraction"), case.figures.short, case.figures.total
    if fraction is None or fraction > 1 or short is None or not total:
        return None
    lower = int(100 * (fraction - short / total) - 1e-9) / 100
    return lower if lower > 0 else None


def _lower_setting(case: Case) -> str:
    option = "--mem-fraction-static" if is_server("sglang")(case) else "--gpu-memory-utilization"
    return f"{option} {_lower(case) or LOWER:.2f}"


def _lower_saves(case: Case) -> int | None:
    lower, fraction, total = _lower(case), case.number("memory_fraction"), case.figures.total
    return None if lower is None or fraction is None or total is None else int((fraction - lower) * total)


def _loads(case: Case) -> bool:
    """Data is loaded by Python: no server of its own."""
    return case.family not in (*LLAMA, *SERVERS)


def _unsaid(case: Case) -> bool:
    """Nothing speaks of main memory: no room is given to fixes of it."""
    return case.family not in HOST_FAMILIES and not _host_may(case) and not is_host(case)


def _host_may(case: Case) -> bool:
    """Main memory may have run out although the message is about the card."""
    return enough_free(case) or case.during("loader")


def _what_is_free(case: Case) -> str:
    """The share of the card that was free when the engine began, to the hundredth below."""
    total, free = case.figures.total, case.figures.free
    return "" if not total or free is None else f"--gpu-memory-utilization {int(100 * free / total) / 100:.2f}"


def _filled(case: Case) -> bool:
    return (is_server("vllm")(case) or "vllm" in case.facts.words) and case.figures.allowed is None


def _limited(case: Case) -> bool:
    return is_torch(case) and (case.figures.allowed is not None or round_share(case) is not None)


def _static_pool(case: Case) -> bool:
    return is_server("sglang")(case) or "sglang" in case.facts.words


def _fills(case: Case) -> bool:
    """An engine's share is so large that what comes beside it fails."""
    return _filled(case) or (is_server("sglang")(case) and case.family in TORCH)


ELSEWHERE: Final[tuple[Remedy, ...]] = (
    # others on the card
    Remedy("fix.stop_others", OTHERS, _listing, saves=_held, enough=freed_enough("others")),
    Remedy(
        "fix.what_is_free", OTHERS, _what_is_free,
        lambda case: case.number("desired_bytes") is not None and bool(_what_is_free(case)),
    ),
    Remedy("fix.watch", UNSAID, "nvidia-smi -l 1"),
    Remedy("fix.other_card", OTHERS, _visible),
    Remedy("fix.own_ranks", OTHERS, "torch.cuda.set_device(local_rank)", is_torch),
    Remedy("fix.zombies", OTHERS, "fuser -v /dev/nvidia*", lambda case: case.family not in LISTING),
    # a limit
    Remedy(
        "fix.raise_fraction", LIMIT, _fraction, _limited, _above, _raised,
    ),
    Remedy(
        "fix.lower_fraction", LIMIT, _lower_setting, _fills, _lower_saves,
        lambda case: True if _lower(case) else None,
    ),
    Remedy("fix.fewer_sequences", LIMIT, "--max-num-seqs 64", lambda case: case.number("sequences") is not None),
    Remedy("fix.fewer_graphs", LIMIT, "--enforce-eager", _filled),
    Remedy("fix.raise_static", LIMIT, "--mem-fraction-static 0.9", lambda case: case.family == "sglang"),
    Remedy("fix.fewer_requests", LIMIT, "--max-running-requests 32 --cuda-graph-max-bs 32", _static_pool),
    Remedy("fix.trt_fraction", LIMIT, "free_gpu_memory_fraction: 0.8", lambda case: case.family == "tensorrt-llm"),
    Remedy("fix.tf_growth", LIMIT, "TF_FORCE_GPU_ALLOW_GROWTH=true", reserves_all),
    Remedy("fix.leave_room", LIMIT, "", reserves_all),
    # context and libraries
    Remedy("fix.metal_cache", BESIDE, "torch.mps.empty_cache()", details=("metal",)),
    Remedy("fix.metal_ratio", BESIDE, "PYTORCH_MPS_HIGH_WATERMARK_RATIO=0.0", details=("metal",)),
    Remedy("fix.leave_room", BESIDE, "", lambda case: case.family in LIBRARIES),
    Remedy(
        "fix.tf_growth", BESIDE, "TF_FORCE_GPU_ALLOW_GROWTH=true",
        lambda case: case.family in ("cudnn", "tensorflow"),
    ),
    Remedy(
        "fix.jax_preallocate", BESIDE, "XLA_PYTHON_CLIENT_PREALLOCATE=false",
        lambda case: case.family in ("cudnn", "cusolver", "jax"),
    ),
    Remedy("fix.other_card", BESIDE, _visible, lambda case: case.family in LIBRARIES),
    Remedy("fix.lazy_modules", BESIDE, "CUDA_MODULE_LOADING=LAZY", is_torch),
    Remedy("fix.nccl_buffers", BESIDE, "NCCL_BUFFSIZE=1048576 NCCL_MAX_NCHANNELS=8", is_torch),
    Remedy(
        "fix.workspace", BESIDE, "CUBLAS_WORKSPACE_CONFIG=:16:8",
        lambda case: is_torch(case) or case.family == "cublas",
    ),
    Remedy("fix.second_allocator", BESIDE, "", is_torch, figure("beside")),
    # main memory
    Remedy("fix.pod_limit", HOST, "resources: {limits: {memory: 128Gi}}", lambda case: case.says("OOMKilled|evicted")),
    Remedy("fix.job_limit", HOST, "sbatch --mem=128G", lambda case: case.family == "slurm"),
    Remedy(
        "fix.shm", HOST, "docker run --shm-size=16g", lambda case: _loads(case) and case.says(SHARED_MEMORY),
        details=("loader",),
    ),
    Remedy(
        "fix.fewer_workers", (*HOST, *UNSAID), "num_workers=2, prefetch_factor=2",
        lambda case: _loads(case) and (_host_may(case) or not _unsaid(case)),
    ),
    Remedy("fix.unpinned", HOST, "pin_memory=False", _loads),
    Remedy("fix.low_cpu", HOST, "low_cpu_mem_usage=True", _loads),
    Remedy("fix.mmap", HOST, "--mmap", lambda case: case.family == "llama.cpp"),
    Remedy("fix.mmap", HOST, "PARAMETER use_mmap true", lambda case: case.family == "ollama"),
    Remedy("fix.more_host", (*HOST, *UNSAID), "free -h; dmesg -T | grep -i oom", lambda case: not _unsaid(case)),
)
"""In the order in which they should be tried."""


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
