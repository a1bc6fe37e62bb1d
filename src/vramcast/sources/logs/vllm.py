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
from vramcast.sources.logs.wording import MeasuredRank, Reader, ServingLog, Startup, rest_of_line, wording

LABEL: Final = re.compile(r"\(((?:Engine_?Core|VllmWorker|Worker|ApiServer|APIServer|RayWorker)[^()]{0,80})\)")
PROCESS: Final = re.compile(r" ?,? ?(?:pid|ip)=[\w.:]{1,60}")
STAGE: Final = re.compile(r"PP(\d{1,4})")

TOOK: Final = r"(?:Loading model weights took|Model loading took) (?P<weights__gib>NUMBER) (?:GiB|GB)"
V0_ENTRIES: Final = (
    r"model weights take (?P<weights__gib>NUMBER)GiB; non_torch_memory takes (?P<beside__gib>NUMBER)GiB; "
    r"PyTorch activation peak memory takes (?P<activations__gib>NUMBER)GiB; the rest of the memory reserved for "
    r"KV Cache is (?P<cache__gib>NUMBER)GiB"
)
V0_RESULTS: Final = (
    r"total_gpu_memory=(?P<total__gib>NUMBER)GiB initial_memory_usage=NUMBERGiB "
    r"peak_torch_memory=(?P<torch_peak__gib>NUMBER)GiB memory_usage_post_profile=NUMBERGi[Bb] "
    r"non_torch_memory=(?P<beside__gib>NUMBER)GiB kv_cache_size=(?P<cache__gib>NUMBER)GiB "
    r"gpu_memory_utilization=(?P<fraction__x>NUMBER)"
)
ACTUAL: Final = (
    r"Actual usage is (?P<weights__gib>NUMBER) GiB for weight, (?P<peak__gib>NUMBER) GiB for peak activation, "
    r"(?P<beside__gib>NUMBER) GiB for non-torch memory, and (?P<graphs__gib>NUMBER) GiB for CUDAGraph memory"
)
CONSUMED: Final = (
    r"Actual usage is (?P<consumed__gib>NUMBER) GiB for consumed memory \(weights \+ non-torch\), "
    r"(?P<peak__gib>NUMBER) GiB for peak activation, and (?P<graphs__gib>NUMBER) GiB for CUDAGraph memory"
)
PROFILE: Final = (
    r"torch peak memory increase: (?P<activations__gib>NUMBER)GiB; "
    r"(?:non-torch forward increase memory: (?P<beside__gib>NUMBER)GiB"
    r"|total consumed \(from mem_get_info\): (?P<consumed__gib>NUMBER)GiB); "
    r"weights memory: (?P<weights__gib>NUMBER)GiB"
)
TOO_LONG: Final = (
    r"(?P<refusal__t>[Mm]ax seq len \((?P<context__n>NUMBER)\),? \(?(?P<needed__gib>NUMBER) GiB KV cache is needed, "
    r"which is larger than the available KV cache memory \((?P<cache__gib>NUMBER) GiB\))"
)

WORDINGS: Final = (
    *MESSAGES,
    wording("oading", TOOK),
    wording("model weights take", V0_ENTRIES),
    wording("Memory profiling results", V0_RESULTS),
    wording("vLLM instance can use", r"total_gpu_memory \((?P<total__gib>NUMBER)GiB\) x gpu_memory_utilization "
            r"\((?P<fraction__x>NUMBER)\)"),
    wording("Actual usage is", ACTUAL),
    wording("Actual usage is", CONSUMED),
    wording("torch peak memory increase", PROFILE),
    wording("vailable KV cache memory", r"[Aa]vailable KV cache memory: (?P<cache__gib>NUMBER) ?GiB"),
    wording("memory for KV Cache as", r"Initial free memory (?P<free__gib>NUMBER) ?GiB, reserved "
            r"(?P<fixed__gib>NUMBER) ?GiB memory for KV Cache"),
    wording("Initial free memory:", r"Initial free memory: (?P<free__gib>NUMBER) GiB"),
    wording("KV cache size:", r"GPU KV cache size: (?P<tokens__n>NUMBER) tokens"),
    wording("Maximum concurrency for", r"Maximum concurrency for (?P<context__n>NUMBER) tokens per request: "
            r"(?P<concurrency__x>NUMBER)x"),
    wording(" blocks: ", r"# (?:GPU|cuda|CUDA|rocm|ROCM|hip) blocks: (?P<blocks__n>NUMBER)"),
    wording("Graph capturing finished", r"Graph capturing finished in NUMBER secs?, took (?P<graphs__gib>NUMBER) GiB"),
    wording("Graph capturing finished", r"Graph capturing (?P<captured__t>finished)"),
    wording("Estimated CUDA graph", r"Estimated CUDA graph memory: (?P<graphs_estimated__gib>NUMBER) GiB"),
    wording("CUDA graph pool memory", r"CUDA graph pool memory: (?P<graphs__gib>NUMBER) GiB \(actual\), "
            r"(?P<graphs_estimated__gib>NUMBER) GiB"),
    wording("graph memory profiling is en", r"CUDA graph memory profiling is (?P<graphs_in_budget__t>enabled)"),
    wording("Free memory on device", r"Free memory on device(?: \S{1,20})? \((?P<free__gib>NUMBER)/"
            r"(?P<total__gib>NUMBER) GiB\) on startup"),
    wording("esired GPU memory utilization", r"[Dd]esired GPU memory utilization (?:is )?\((?P<fraction__x>NUMBER)"),
    wording("on startup is less than", r"(?P<refusal__t>Free memory on device.{0,120}is less than desired GPU memory "
            r"utilization \(NUMBER, NUMBER GiB\))"),
    wording("KV cache is needed", TOO_LONG),
    wording("for the cache blocks", r"(?P<refusal__t>No available memory for the cache blocks)"),
    wording("max_num_batched_tokens=", r"prefill is enabled with max_num_batched_tokens=(?P<batched__n>NUMBER)"),
    wording("sing max model len", r"Using max model len (?P<context__n>NUMBER)"),
    wording("attention block size to", r"Setting attention block size to (?P<block_tokens__n>NUMBER) tokens"),
    rest_of_line("non-default args: {", "given"),
    rest_of_line("args: Namespace(", "given"),
    rest_of_line(" with config: ", "config"),
    *options.CARDS,
)

MARKERS: Final = (
    wording("vLLM API server version", r"vLLM API server version (?P<version__t>\d[\w.+-]{0,60})"),
    wording("LLM engine (v", r"Initializing an? (?:V1 )?LLM engine \(v(?P<version__t>\d[\w.+-]{0,60})\)"),
    wording("  version ", r"█.{0,60}  version (?P<version__t>\d[\w.+-]{0,60})"),
)

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


READER: Final = Reader(engine="vllm", markers=MARKERS, wordings=WORDINGS, label=label, measures=MEASURES)
