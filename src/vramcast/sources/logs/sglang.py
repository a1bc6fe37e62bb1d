"""Start-up logs of SGLang 0.3 to 0.5. What it calls GB are GiB.

[runner] sgl-project/sglang python/sglang/srt/model_executor/model_runner.py `load_model`, `init_memory_pool`,
         `init_device_graphs`; eagle_worker.py for drafts
[pool] python/sglang/srt/mem_cache/memory_pool.py, swa_memory_pool.py
[scheduler] python/sglang/srt/managers/scheduler.py, the line of max_total_num_tokens
"""

from __future__ import annotations

import re
from typing import Any, Final

from vramcast.domain.program import Category
from vramcast.sources.logs import options
from vramcast.sources.logs.options import MESSAGES, out_of_memory, split_arguments
from vramcast.sources.logs.wording import MeasuredRank, Reader, ServingLog, Startup, stated

LABEL: Final = re.compile(r"\[[^\[\]]{0,40}?((?: (?:DP|PP|TP|EP|CP|ATTN_TP|ATTN_DP|MOE_EP)\d{1,4}){1,6})\]")
STAGE: Final = re.compile(r"\bPP(\d{1,4})")

MARKERS, WORDINGS = stated("sglang")
MEASURES: Final = frozenset(("load_end", "weights", "keys", "latent", "tokens", "graphs"))

GIVEN: Final[dict[str, options.Target]] = {
    "model_path": ("model", str),
    "tp_size": ("tp", int),
    "pp_size": ("pp", int),
    "context_length": ("context", int),
    "mem_fraction_static": ("memory-fraction", float),
    "max_running_requests": ("max-sequences", int),
    "chunked_prefill_size": ("batched-tokens", int),
    "page_size": ("block-tokens", int),
    "dtype": ("dtype", options.dtype),
    "kv_cache_dtype": ("kv-dtype", options.cache_dtype),
    "disable_cuda_graph": ("graphs", options.negated),
    "disable_radix_cache": ("prefix-caching", options.negated),
    "max_lora_rank": ("lora-rank", int),
    "quantization": ("quantisation", str),
}
"""Argument of SGLang -> option of a question, and how its value is read."""

DRAFTS: Final = {"EAGLE": "eagle", "EAGLE3": "eagle3", "NEXTN": "mtp", "NGRAM": "ngram", "MEDUSA": "medusa"}


def label(text: str) -> str:
    """The rank of a line: "TP0", "DP1 TP0"; "" where there is only one.

    >>> label("[2025-01-01 00:00:00 DP1 TP0] Load weight begin."), label("[2025-01-01 00:00:00] Load weight begin.")
    ('DP1 TP0', '')
    """
    match = LABEL.search(text, 0, 200)
    return match[1].strip() if match else ""


def interpreted(startup: Startup, name: str) -> ServingLog:
    """What a start-up of SGLang says; it does not print its version."""
    given = _given(startup)
    model, quantisation = given.pop("model", None), given.pop("quantisation", None)
    drafting = "draft" in given
    ranks = tuple(
        _rank(startup, rank, drafting=drafting) for rank in startup.labels("load_end", "weights", "keys", "latent")
    )
    tokens = startup.values("tokens")
    return ServingLog(
        name=name,
        engine="sglang",
        options=given,
        models=(model,) if model else (),
        quantisation=quantisation or "",
        cards=options.cards(startup),
        ranks=ranks,
        counts={"tokens": min(tokens)} if tokens else {},
        out_of_memory=out_of_memory(startup, stage=_stage(startup)),
        refusal=startup.last("refusal") or "",
    )


def _given(startup: Startup) -> dict[str, Any]:
    arguments = split_arguments(startup.last("args") or "")
    found = options.translated(arguments, GIVEN)
    if not arguments.get("enable_dp_attention"):
        found |= options.translated(arguments, {"dp_size": ("dp", int)})
    if arguments.get("enable_lora") or arguments.get("lora_paths"):
        found |= options.translated(arguments, {"max_loras_per_batch": ("lora-slots", int)})
    elif "lora-rank" in found:
        del found["lora-rank"]
    draft = DRAFTS.get(str(arguments.get("speculative_algorithm")).upper())
    if draft is not None:
        found["draft"] = draft
        tokens = options.translated(arguments, {"speculative_num_draft_tokens": ("draft-tokens", int)})
        found |= tokens
    for fact, option in (("context", "context"), ("running", "max-sequences"), ("chunk", "batched-tokens")):
        value = startup.last(fact)
        if value is not None and value > 0:
            found[option] = value
    return found


def _rank(startup: Startup, rank: str, *, drafting: bool) -> MeasuredRank:
    """One rank's figures; a draft loads its weights and takes its cache after the target, by the same words."""

    def said(fact: str) -> list[int]:
        return startup.values(fact, rank)

    usage = said("weights") or [
        begin - end for begin, end in zip(said("load_begin"), said("load_end"), strict=False) if begin >= end
    ]
    graphs = said("graphs")
    if not graphs and said("pool_end") and said("graph_end"):
        graphs = [max(0, said("pool_end")[0] - said("graph_end")[-1])]
    kept = usage if drafting else usage[-1:]
    found = {
        Category.WEIGHTS: kept[0] if kept else None,
        Category.DRAFT: sum(kept[1:]) or None,
        Category.CACHE: _cache(startup, rank),
        Category.GRAPHS: sum(graphs) if graphs else None,
        Category.COMMUNICATION: next(reversed(said("beside")), None),
    }
    stage = STAGE.search(rank)
    return MeasuredRank(
        label=rank,
        num_bytes={str(category): size for category, size in found.items() if size is not None},
        stage=int(stage[1]) if stage else None,
    )


def _cache(startup: Startup, rank: str) -> int | None:
    """All pools of a rank: keys, values, latents and states; a sum line replaces the pools it sums."""
    pools: list[int] = []
    for record in startup.records:
        if record.label != rank:
            continue
        facts = record.facts
        if "hybrid" in facts:
            pools = [*pools[:-2], facts["hybrid"]]
        elif "keys" in facts:
            pools.append(facts["keys"] + facts["values"])
        elif "latent" in facts:
            pools.append(facts["latent"])
        elif "state_a" in facts:
            pools.append(sum(size for fact, size in facts.items() if fact.startswith("state_")))
    return sum(pools) if pools else None


def _stage(startup: Startup) -> str:
    """How far it got."""
    if startup.values("tokens"):
        return "serve"
    if startup.values("pool_end") or startup.values("keys") or startup.values("latent"):
        return "capture"
    return "profile" if startup.values("load_end") else "load"


READER: Final = Reader(
    engine="sglang", markers=MARKERS, wordings=(*MESSAGES, *WORDINGS, *options.CARDS), label=label,
    measures=MEASURES,
)
