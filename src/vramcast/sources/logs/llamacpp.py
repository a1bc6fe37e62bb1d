"""Start-up logs of llama.cpp since b1000, of ik_llama.cpp, of bindings, and of ollama's runners.

[model] ggml-org/llama.cpp src/llama-model.cpp `load_tensors` (formerly llama.cpp `llm_load_tensors`)
[context] src/llama-context.cpp, src/llama-kv-cache.cpp, src/llama-memory-recurrent.cpp
[breakdown] common/fit.cpp `common_memory_breakdown_print`
[ollama] ollama/ollama llm/llama_server.go `bufferSizeRegex`; before 0.12: llm/memory.go, ml/device.go
"""

from __future__ import annotations

import re
from typing import Any, Final, NamedTuple

from vramcast.domain.program import Category
from vramcast.sources.logs import options
from vramcast.sources.logs.options import MESSAGES, out_of_memory
from vramcast.sources.logs.wording import MeasuredRank, Reader, ServingLog, Startup, stated

MARKERS, WORDINGS = stated("llama.cpp")
MEASURES: Final = frozenset(("size", "old_cache", "old_compute", "estimated_cache"))

JOINS: Final = ("loading draft model", "draft model '", "loading speculative")

HOST: Final = re.compile(r"CPU|Host|BLAS|AMX")
"""Buffers that take no memory of a card."""

OF_IMAGES: Final = ("alloc_compute", "clip", "load_hparams", "warmup")
"""Functions of the image encoder's own context."""

KINDS: Final[dict[str, str]] = {
    "model": Category.WEIGHTS, "model weights": Category.WEIGHTS,
    "KV": Category.CACHE, "RS": Category.CACHE, "kv cache": Category.CACHE,
    "compute": Category.ACTIVATIONS, "compute graph": Category.ACTIVATIONS,
    "output": Category.INPUTS,
}
"""What llama.cpp calls a buffer -> ledger category."""

SETTINGS: Final = ("n_ctx", "n_ctx_per_seq", "n_ctx_seq", "n_batch", "n_ubatch", "n_seq_max", "n_parallel", "n_slots")


class Buffer(NamedTuple):
    """One buffer line."""

    category: str
    device: str
    num_bytes: int
    model: int  # which model of the start-up, counted from 0: the target, then a draft


def label(text: str) -> str:
    """llama.cpp is one process."""
    return ""


def interpreted(startup: Startup, name: str) -> ServingLog:
    """What a start-up of llama.cpp says."""
    build = startup.last("build")
    total = startup.last("total")
    return ServingLog(
        name=name,
        engine="ik_llama.cpp" if startup.values("amb") or startup.values("fmoe") else "llama.cpp",
        version=str(build) if build is not None else "",
        options=_given(startup),
        models=_models(startup),
        quantisation=str(startup.last("storage") or ""),
        cards=_cards(startup),
        card_bytes=total,
        ranks=_ranks(startup),
        out_of_memory=out_of_memory(startup, stage="load" if not startup.values("size") else "profile"),
        pool_is_rest=False,
        over_devices=True,
    )


def _given(startup: Startup) -> dict[str, Any]:
    said: dict[str, int] = {}
    for record in startup.records:
        if record.facts.get("setting") in SETTINGS:
            said.setdefault(record.facts["setting"], record.facts["value"])
    slots = said.get("n_seq_max") or said.get("n_parallel") or said.get("n_slots") or startup.last("slots") or 1
    context = said.get("n_ctx") or startup.last("ctx_size")
    per_slot = said.get("n_ctx_per_seq") or said.get("n_ctx_seq") or (context // slots if context else None)
    flash = startup.last("flash")
    found: dict[str, Any] = {
        "context": per_slot,
        "concurrency": slots if context else None,
        "micro-batch": said.get("n_ubatch"),
        "kv-dtype": options.cache_dtype(startup.last("k_dtype")),
        "v-dtype": options.cache_dtype(startup.last("v_dtype")),
        "gpu-layers": startup.last("gpu_layers"),
        "attention": {"0": "eager", "disabled": "eager", "1": "flash", "enabled": "flash"}.get(str(flash)),
    }
    pairs = tuple(f"{key}={value}" for key, value in _engine_options(startup, said).items())
    return {option: value for option, value in found.items() if value is not None} | (
        {"engine-option": pairs} if pairs else {}
    )


def _engine_options(startup: Startup, said: dict[str, int]) -> dict[str, Any]:
    """What only llama.cpp and its fork know."""
    fused = startup.last("fmoe")
    moved = sorted(set(startup.values("moved")))
    found: dict[str, Any] = {
        "batch": said.get("n_batch"),
        "kv-unified": startup.last("unified"),
        "swa-full": "true" if startup.values("swa_full") else None,
        "mla": startup.last("mla"),
        "amb": startup.last("amb") or None,
        "fmoe": None if fused is None else "true" if fused else "false",
    }
    if moved == list(range(len(moved))):
        found["n-cpu-moe"] = len(moved) or None
    else:
        found["override-tensor"] = rf"blk\.({'|'.join(map(str, moved))})\.ffn_.*_exps\.=CPU"
    return {key: value for key, value in found.items() if value is not None}


def _models(startup: Startup) -> tuple[str, ...]:
    """Names of the first model that was loaded."""
    files, names, bases = (startup.values(fact) for fact in ("file", "model_name", "base_name"))
    found = [*files[:1], *bases[:3], *names[:1]]
    return tuple(dict.fromkeys(str(text).strip() for text in found if str(text).strip()))


def _cards(startup: Startup) -> tuple[str, ...]:
    """The cards in use; all that were found where it does not say which."""
    stating = (record.facts for record in startup.records if "using" in record.facts)
    using = {facts["free_device"]: facts["using"] for facts in stating}
    return tuple(using.values()) if using else tuple(startup.values("card"))


def _ranks(startup: Startup) -> tuple[MeasuredRank, ...]:
    """One "rank" per device that holds buffers."""
    sums: dict[str, dict[str, int]] = {}
    for buffer in _buffers(startup):
        if not HOST.search(buffer.device):
            device = sums.setdefault(buffer.device, {})
            device[buffer.category] = device.get(buffer.category, 0) + buffer.num_bytes
    if not sums:
        sums = _old(startup)
    for record in startup.records:
        if record.facts.get("broken_device") in sums:
            sums[record.facts["broken_device"]][str(Category.WORKSPACES)] = record.facts["unaccounted"]
    return tuple(MeasuredRank(label=device, num_bytes=found) for device, found in sums.items() if any(found.values()))


def _buffers(startup: Startup) -> list[Buffer]:
    """The buffers of the last time each model was loaded.

    A load that only measures (`--fit`), and one that is tried again, print the same lines; a draft is another model.
    """
    kept: list[Buffer] = []
    model = files = 0
    past_weights = False
    for record in startup.records:
        facts = record.facts
        if "file" in facts:
            model, files, past_weights = files, files + 1, False
        if "device" not in facts or facts.get("function", "").startswith(OF_IMAGES):
            continue
        category = str(KINDS[facts.get("kind", "model")])
        if category == Category.WEIGHTS and past_weights:
            kept = [buffer for buffer in kept if buffer.model != model]
            past_weights = False
        past_weights = past_weights or category != Category.WEIGHTS
        buffer = Buffer(category, facts["device"], facts["size"], model)
        if category == Category.ACTIVATIONS:  # reserved anew, not beside
            kept = [old for old in kept if (old.category, old.device, old.model) != (category, buffer.device, model)]
        kept.append(buffer)
    return kept


def _old(startup: Startup) -> dict[str, dict[str, int]]:
    """Before buffers were listed by device, and as ollama estimated: one card."""
    found = {
        Category.WEIGHTS: _either(startup, "old_weights", "estimated_weights"),
        Category.CACHE: _either(startup, "old_cache", "estimated_cache"),
        Category.ACTIVATIONS: _either(startup, "old_compute", "estimated_graph"),
    }
    sizes = {str(category): size for category, size in found.items() if size is not None}
    return {"": sizes} if sizes else {}


def _either(startup: Startup, first: str, second: str) -> int | None:
    value: int | None = startup.last(first)
    return startup.last(second) if value is None else value


READER: Final = Reader(
    engine="llama.cpp", markers=MARKERS, wordings=(*MESSAGES, *WORDINGS), label=label, measures=MEASURES,
    joins=JOINS,
)
