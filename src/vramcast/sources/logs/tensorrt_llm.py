"""Start-up logs of TensorRT-LLM: built engines through the C++ runtime, and the PyTorch backend.

[runtime] NVIDIA/TensorRT-LLM cpp/tensorrt_llm/batch_manager/kvCacheManager.cpp, runtime/tllmRuntime.cpp,
          runtime/memoryCounters.cpp (its "GB" are GiB)
[pytorch] tensorrt_llm/_torch/pyexecutor/_util.py `KvCacheCreator`
"""

from __future__ import annotations

import re
from typing import Any, Final

from vramcast.domain.program import Category
from vramcast.sources.logs import options
from vramcast.sources.logs.options import MESSAGES, argument, out_of_memory
from vramcast.sources.logs.wording import MeasuredRank, Reader, ServingLog, Startup, stated

LABEL: Final = re.compile(r"\[RANK (\d{1,5})\]|\[INFO\] Rank (\d{1,5})\b")

MARKERS, WORDINGS = stated("tensorrt-llm")
MEASURES: Final = frozenset(("weights", "cache", "activations", "peak", "available"))

ARGUMENTS: Final[dict[str, options.Target]] = {
    "model": ("model", str),
    "tensor_parallel_size": ("tp", int),
    "pipeline_parallel_size": ("pp", int),
    "max_batch_size": ("max-sequences", int),
    "max_num_tokens": ("batched-tokens", int),
    "max_seq_len": ("context", int),
    "free_gpu_memory_fraction": ("memory-fraction", float),
    "tokens_per_block": ("block-tokens", int),
    "dtype": ("dtype", options.dtype),
}
"""Argument of the PyTorch backend -> option of a question, and how its value is read."""

LIMITS: Final = {"maxBatchSize": "max-sequences", "maxSequenceLen": "context", "maxNumTokens": "batched-tokens"}
"""Limit of a built engine -> option of a question."""


def label(text: str) -> str:
    """The rank of a line; "" where it names none.

    >>> label("[10/12/2025-10:00:00] [TRT-LLM] [RANK 1] [I] Peak memory"), label("[TensorRT-LLM][INFO] MPI size: 2")
    ('RANK 1', '')
    """
    match = LABEL.search(text, 0, 200)
    return f"RANK {match[1] or match[2]}" if match else ""


def interpreted(startup: Startup, name: str) -> ServingLog:
    """What a start-up of TensorRT-LLM says."""
    given = _given(startup)
    model = given.pop("model", None)
    ranks = tuple(
        _rank(startup, rank) for rank in startup.labels("weights", "activations", "peak")
    ) or (_rank(startup, ""),)
    tokens = startup.values("tokens")
    return ServingLog(
        name=name,
        engine="tensorrt-llm",
        version=startup.last("version") or startup.last("built") or "",
        options=given,
        models=(model,) if model else (),
        cards=options.cards(startup),
        card_bytes=startup.last("total"),
        ranks=tuple(rank for rank in ranks if rank.num_bytes),
        counts={"tokens": tokens[-1]} if tokens else {},
        out_of_memory=out_of_memory(startup, stage="serve" if tokens else "profile"),
    )


def _given(startup: Startup) -> dict[str, Any]:
    text = startup.last("args") or ""
    found = options.translated({key: argument(text, key) for key in ARGUMENTS}, ARGUMENTS)
    limits = startup.last("limits") or ""
    found |= options.translated({key: argument(limits, key) for key in ARGUMENTS}, ARGUMENTS)
    for record in startup.records:
        if record.facts.get("limit") in LIMITS:
            found[LIMITS[record.facts["limit"]]] = record.facts["value"]
    for fact, option in (("fraction", "memory-fraction"), ("block_tokens", "block-tokens")):
        value = startup.last(fact)
        if value is not None:
            found.setdefault(option, value)
    if "tp" not in found and startup.last("world"):
        found["tp"] = startup.last("world") // found.get("pp", 1)
    return found


def _rank(startup: Startup, rank: str) -> MeasuredRank:
    """One rank's figures; the cache is made twice, small for the profile and then for good."""

    def said(fact: str) -> Any:
        own = startup.last(fact, rank)
        return startup.last(fact) if own is None else own  # the C++ runtime does not name ranks

    buffers = [size for size in (said("runtime"), said("decoder")) if size is not None]
    found = {
        Category.WEIGHTS: said("weights"),
        Category.ACTIVATIONS: said("activations"),
        Category.WORKSPACES: said("beside") if said("beside") is not None else said("outside"),  # context included
        Category.INPUTS: sum(buffers) if buffers else None,
        Category.CACHE: said("cache"),
    }
    return MeasuredRank(
        label=rank, num_bytes={str(category): size for category, size in found.items() if size is not None}
    )


READER: Final = Reader(
    engine="tensorrt-llm", markers=MARKERS, wordings=(*MESSAGES, *WORDINGS, *options.CARDS), label=label,
    measures=MEASURES,
)
