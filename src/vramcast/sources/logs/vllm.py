"""Start-up logs of vLLM: V0 of 0.6 to 0.10, V1 since 0.7.

[V0] vllm-project/vllm vllm/worker/worker.py `determine_num_available_blocks`, vllm/executor/executor_base.py
[V1] vllm/v1/worker/gpu_worker.py `determine_available_memory`, `compile_or_warm_up_model`;
     vllm/v1/core/kv_cache_utils.py; vllm/v1/worker/gpu_model_runner.py `load_model`, `capture_model`
[args] vllm/entrypoints/openai/api_server.py, vllm/entrypoints/utils.py `log_non_default_args`
"""

from __future__ import annotations

import re
from typing import Any, Final

from vramcast.domain.program import Category
from vramcast.sources.logs import options
from vramcast.sources.logs.options import MESSAGES, out_of_memory, split_arguments
from vramcast.sources.logs.wording import MeasuredRank, Reader, ServingLog, Startup, stated

LABEL: Final = re.compile(r"\(((?:Engine_?Core|VllmWorker|Worker|ApiServer|APIServer|RayWorker)[^()]{0,80})\)")
PROCESS: Final = re.compile(r" ?,? ?(?:pid|ip)=[\w.:]{1,60}")
STAGE: Final = re.compile(r"PP(\d{1,4})")

MARKERS, WORDINGS = stated("vllm")
MEASURES: Final = frozenset(("weights", "cache", "tokens", "blocks", "graphs", "torch_peak", "peak"))

GIVEN: Final[dict[str, options.Target]] = {
    "model": ("model", str),
    "tensor_parallel_size": ("tp", int),
    "pipeline_parallel_size": ("pp", int),
    "data_parallel_size": ("dp", int),
    "decode_context_parallel_size": ("dcp", int),
    "enable_expert_parallel": ("expert-parallel", bool),
    "max_model_len": ("context", int),
    "max_seq_len": ("context", int),
    "max_num_seqs": ("max-sequences", int),
    "max_num_batched_tokens": ("batched-tokens", int),
    "gpu_memory_utilization": ("memory-fraction", float),
    "kv_cache_memory_bytes": ("cache-bytes", int),
    "block_size": ("block-tokens", int),
    "dtype": ("dtype", options.dtype),
    "kv_cache_dtype": ("kv-dtype", options.cache_dtype),
    "enforce_eager": ("graphs", options.negated),
    "enable_prefix_caching": ("prefix-caching", bool),
    "max_loras": ("lora-slots", int),
    "max_lora_rank": ("lora-rank", int),
    "quantization": ("quantisation", str),
}
"""Argument of vLLM -> option of a question, and how its value is read."""

DRAFTS: Final = {"eagle": "eagle", "eagle3": "eagle3", "medusa": "medusa", "ngram": "ngram", "mtp": "mtp"}


def label(text: str) -> str:
    """The process of a line: "Worker_TP0", "EngineCore_DP0"; "" where there is only one.

    >>> label("(Worker_TP1 pid=57) INFO 06-21"), label("(VllmWorkerProcess pid=9) INFO"), label("INFO 06-21")
    ('Worker_TP1', 'VllmWorkerProcess pid=9', '')
    """
    match = LABEL.search(text, 0, 300)
    if match is None:
        return ""
    name = PROCESS.sub("", match[1]).strip()
    if name.startswith(("Engine", "Api", "API")) or any(character.isdigit() for character in name):
        return name
    return match[1]


def interpreted(startup: Startup, name: str) -> ServingLog:
    """What a start-up of vLLM says."""
    given = _given(startup)
    model = given.pop("model", None)
    quantisation = given.pop("quantisation", None)
    ranks = tuple(_rank(startup, process) for process in startup.labels("weights", "torch_peak"))
    total, free = startup.last("total"), next(iter(startup.values("free")), None)
    return ServingLog(
        name=name,
        engine="vllm",
        version=startup.last("version") or "",
        options=given,
        models=(model,) if model else (),
        quantisation=quantisation or "",
        cards=options.cards(startup),
        card_bytes=total,
        held_bytes=total - free if total is not None and free is not None else None,
        ranks=ranks or (MeasuredRank(label="", num_bytes=_cache_only(startup)),),
        counts=_counts(startup),
        out_of_memory=out_of_memory(startup, stage=_stage(startup)),
        refusal=startup.last("refusal") or "",
        pool_is_rest="cache-bytes" not in given,
    )


def _given(startup: Startup) -> dict[str, Any]:
    """Options of the question; what the engine settled on wins over what it was told."""
    found: dict[str, Any] = {}
    for fact in ("given", "config"):
        for text in startup.values(fact):
            arguments = split_arguments(text)
            found |= options.translated(arguments, GIVEN)
            found |= _draft(arguments.get("speculative_config"))
            if not arguments.get("enable_lora", fact == "config"):
                found.pop("lora-slots", None)
                found.pop("lora-rank", None)
    facts = {"fraction": "memory-fraction", "batched": "batched-tokens", "block_tokens": "block-tokens"}
    for fact, option in facts.items():
        value = startup.last(fact)
        if value is not None:
            found.setdefault(option, value)
    context = startup.last("context")
    if context is not None and not found.get("context", 0) > 0:
        found["context"] = context
    return found


def _draft(text: Any) -> dict[str, Any]:
    if not isinstance(text, str):
        return {}
    arguments = split_arguments(text.strip("{").partition("SpeculativeConfig(")[2] or text.strip("{"))
    method = str(arguments.get("method"))
    kind = next((kind for word, kind in DRAFTS.items() if word == method or method.endswith("_mtp")), None)
    tokens = arguments.get("num_speculative_tokens") or arguments.get("num_spec_tokens")
    if kind is None:
        return {}
    return {"draft": "mtp" if method.endswith("mtp") else kind, "draft-tokens": tokens} if tokens else {"draft": kind}


def _rank(startup: Startup, process: str) -> MeasuredRank:
    """One worker's figures; those that only one process logs stand for all."""

    def said(fact: str) -> Any:
        found = startup.last(fact, process)
        return startup.last(fact) if found is None and fact not in ("weights", "torch_peak") else found

    weights = next(iter(startup.values("weights", process)), None)  # later lines round it
    graphs, estimated = said("graphs"), said("graphs_estimated")
    activations, beside = said("activations"), said("beside")
    if said("torch_peak") is not None and weights is not None:
        activations = said("torch_peak") - weights
    if said("peak") is not None:  # it counts the estimate of the graphs where the budget does
        activations = said("peak") - (estimated or 0 if startup.last("graphs_in_budget") else 0)
    if beside is None and said("consumed") is not None and weights is not None:
        beside = said("consumed") - weights
    found = {
        Category.WEIGHTS: weights,
        Category.ACTIVATIONS: activations,
        Category.COMMUNICATION: beside,
        Category.GRAPHS: graphs if graphs is not None else estimated,
        Category.CACHE: said("fixed") or said("cache"),
    }
    stage = STAGE.search(process)
    return MeasuredRank(
        label=process,
        num_bytes={str(category): size for category, size in found.items() if size is not None},
        stage=int(stage[1]) if stage else None,
    )


def _cache_only(startup: Startup) -> dict[str, int]:
    cache = startup.last("fixed") or startup.last("cache")
    return {} if cache is None else {str(Category.CACHE): cache}


def _counts(startup: Startup) -> dict[str, float]:
    """The tightest figures: engine cores of data-parallel copies log theirs one by one."""
    found = {name: startup.values(name) for name in ("tokens", "concurrency", "blocks")}
    return {name: min(values) for name, values in found.items() if values}


def _stage(startup: Startup) -> str:
    """How far it got."""
    if startup.values("captured"):
        return "serve"
    if startup.values("tokens") or startup.values("blocks"):
        return "capture"
    return "profile" if startup.values("weights") else "load"


READER: Final = Reader(
    engine="vllm", markers=MARKERS, wordings=(*MESSAGES, *WORDINGS, *options.CARDS), label=label,
    measures=MEASURES,
)
