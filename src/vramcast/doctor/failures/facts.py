"""What surrounds a failure, in the words of the rules."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from vramcast.doctor.failures.case import TABLES, Facts
from vramcast.domain.failure import Statement
from vramcast.sources.failures import Failures

PHASES: Final[dict[str, str]] = {
    "backward": "backward", "optimizer_step": "optimizer", "optimizer_state": "optimizer", "model_to_device": "load",
    "loading": "load", "generate": "generate", "data_loader": "loader", "pin_memory": "loader",
    "attention": "attention", "attention_eager": "attention", "cross_entropy": "loss", "graph_capture": "capture",
    "checkpointing": "checkpoint", "profile_run": "profile", "kv_cache": "cache", "validation": "evaluate",
    "compiled": "compile", "context": "context",
}
"""What a traceback passes through -> the phase that rules ask for."""

WORDS: Final[dict[str, tuple[str, ...]]] = {
    "leak": (
        "memory leak", "leaks memory", "leaking memory", "memory keeps growing", "memory keeps increasing",
        "memory usage keeps", "memory grows", "显存泄漏", "内存泄漏", "显存不断增", "显存一直增",
    ),
    "context": ("cuctxcreate", "cudeviceprimaryctxretain"),
    "vllm": ("/vllm/", "vllm/v1/", "vllm/worker/", "vllmworker", "enginecore", "vllm.entrypoints", "vllm serve"),
    "sglang": ("/sglang/", "sglang.launch_server", "--mem-fraction-static", "sgl-project/sglang", "sgl_kernel"),
    "gpu_memory_utilization": ("gpu_memory_utilization", "gpu-memory-utilization"),
    "gradient_checkpointing": ("gradient_checkpointing", "use_reentrant", "checkpointerror", "torch.utils.checkpoint"),
    "deepspeed": (
        "reduce_bucket_size", "allgather_bucket_size", "overlap_comm", "deepspeedengine", "deepspeed/runtime",
    ),
    "fsdp": ("fullyshardeddataparallel", "fully_shard", "flat_param", "torch/distributed/fsdp"),
    "offload_optimizer": ("offload_optimizer", "deepspeedcpuadam", "offload_param"),
}
"""A word of the rules -> what stands for it in a text, in lower case."""

USED: Final = ("used_bytes", "total_bytes")
BUSY: Final = 0.5
"""Share of a card from which on it counts as taken."""

VERSION: Final = re.compile(r"(\d{1,3})\.(\d{1,3})")


def facts_of(found: Failures, words: frozenset[str], number: int | None = None) -> Facts:
    """The facts of one statement, or of the whole text.

    Args:
        found: what was read
        words: of the rules that stand in the text: `words_of`
        number: of the statement; None: the text at large and all statements
    """
    versions = [VERSION.match(str(value)) for value in found.facts("torch", number)]
    version = next((match for match in versions if match), None)
    fractions = [_share(value) for value in found.facts("memory_utilization", number)]
    return Facts(
        phases=frozenset(phase for name, phase in PHASES.items() if found.facts(name, number)),
        alloc_conf=str(next(iter(found.facts("alloc_conf", number)), "")),
        torch=(int(version[1]), int(version[2])) if version else (),
        cards=tuple(str(value) for value in found.facts("gpu", number)),
        frame=str(next(iter(found.facts("user_frame", number)), "")),
        steps=tuple(value for value in found.facts("step", number) if isinstance(value, int)),
        nan=bool(found.facts("loss_not_finite", number)),
        overflow=bool(found.facts("loss_scale", number)),
        windows=bool(found.facts("windows", number) or found.facts("wsl", number)),
        words=words,
        fraction=next((value for value in fractions if value is not None), None),
        busy=_busy(found.statements, found.statements[number].numbers.get("device", 0) if number is not None else 0),
    )


def _busy(statements: Sequence[Statement], device: int | float | str) -> float | None:
    """What a table beside a failure shows as used of its card, or of the first card it lists."""
    tables = [item.numbers for item in statements if item.family in TABLES and {*USED} <= set(item.numbers)]
    numbers = next((item for item in tables if item.get("device") == device), tables[0] if tables else None)
    used, total = (numbers.get(name) for name in USED) if numbers else (None, None)
    if not isinstance(used, int) or not isinstance(total, int) or not BUSY * total <= used <= total or not total:
        return None
    return used / total


def words_of(text: str) -> frozenset[str]:
    """The words of the rules that stand in a text."""
    lowered = text.lower()
    return frozenset(word for word, phrases in WORDS.items() if any(phrase in lowered for phrase in phrases))


def _share(value: object) -> float | None:
    try:
        share = float(str(value))
    except ValueError:
        return None
    return share if 0 < share <= 1 else None
