"""Start-up logs of vLLM: each quantity the log prints beside the deployment's own."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any, Final

from truth.contract import Prediction, Refused
from truth.rows.names import model_of
from truth.rows.serving.arguments import arguments_of
from truth.rows.serving.common import cluster_of, value_of, version_of
from truth.rows.serving.formats import weights_of
from vramcast.domain.answer import ServeAnswer
from vramcast.domain.model import Model
from vramcast.domain.serving import Draft, Requests, ServeJob, ServePlan
from vramcast.engines.serving.weights import CHECKPOINT_FORMATS
from vramcast.estimate.interval import serving_traits
from vramcast.estimate.serving import answer, deploy
from vramcast.units import GIB, MIB

Row = dict[str, Any]
Measure = Callable[[ServeAnswer], float]


def predict(row: Row) -> Iterator[Prediction]:
    """The quantity the row names."""
    quantity = str(row["quantity"])
    needed = NEEDED.fullmatch(quantity)
    if quantity not in QUANTITIES and needed is None:
        raise Refused(f"{quantity} is not predicted")
    if quantity in OF_THE_BUDGET and row.get("gpu_memory_utilization") is None and not states_defaults(row):
        raise Refused("the memory fraction is not stated")
    if "cpu_offload_gb" in arguments_of(row):
        raise Refused("weights kept on the host are not modelled for vLLM")
    if quantity in OF_THE_PROCESS and re.search(r"co-tenant|other process", str(row.get("notes"))):
        raise Refused("what other processes took of the card is in the figure")
    if row.get("quant_dtype") == "unstated":
        raise Refused("how the weights were stored is not stated")
    job = job_of(row)
    if needed is not None:
        yield Prediction(quantity, _sequence_gib(job, int(needed[1])), value_of(row))
        return
    yield Prediction(quantity, QUANTITIES[quantity](answer(job)), value_of(row), traits=serving_traits(job))


def _sequence_gib(job: ServeJob, tokens: int) -> float:
    """What one sequence takes of the cache [GiB]."""
    caches = [rank.cache for rank in deploy(job).ranks if rank.cache is not None]
    if not caches:
        raise Refused("nothing is cached")
    return max(cache.sequence_bytes(tokens) for cache in caches) / GIB


def job_of(row: Row) -> ServeJob:
    """The question behind a log."""
    version = version_of(row) or version_of_date(row) or unstated_version(row)
    model, given = model_of(str(row["model"])), arguments_of(row)
    kv_dtype = str(row.get("kv_dtype") or given.get("kv_cache_dtype") or "auto").split(" ")[0]
    weights = weights_of(row)
    slots, rank = adapters_of(row)
    return ServeJob(
        model=model,
        requests=Requests(context=row.get("max_model_len")),
        plan=ServePlan(
            tp=int(row.get("tp") or 1),
            pp=int(row.get("pp") or 1),
            dcp=int(given.get("decode_context_parallel_size", 1)),
            dtype=DTYPES.get(str(given.get("dtype"))) or DTYPES.get(str(row.get("quant_dtype")).lower()),
            kv_dtype="fp8" if "fp8" in kv_dtype else "auto",
            memory_fraction=row.get("gpu_memory_utilization"),
            max_sequences=_number(given, "max_num_seqs"),
            batched_tokens=_number(given, "max_num_batched_tokens"),
            weights=None if weights == own_format(model) else weights,
            graphs="enforce_eager" not in given,
            prefix_caching=prefix_caching_of(row),
            expert_parallel="enable_expert_parallel" in given,
            lora_slots=slots,
            lora_rank=rank,
            draft=draft_of(row, model),
        ),
        cluster=cluster_of(row),
        engine="vllm",
        version=version,
        engine_options=engine_options(row),
    )


def _number(given: dict[str, str], name: str) -> int | None:
    text = given.get(name, "")
    return int(text) if text.isdecimal() else None


def adapters_of(row: Row) -> tuple[int, int]:
    """Slots for adapters and their rank, where the notes say that there are any."""
    given = arguments_of(row)
    if "enable_lora" not in given and not re.search(r"lora enabled", str(row.get("notes")), re.IGNORECASE):
        return 0, VLLM_RANK
    rank = _number(given, "max_lora_rank") or (UNSLOTH_RANK if by_unsloth(row) else VLLM_RANK)
    return _number(given, "max_loras") or 1, rank


def draft_of(row: Row, model: Model) -> Draft | None:
    """What proposes tokens, by the row's words."""
    text = f"{row['model']} {row.get('notes')}"
    tokens = re.search(r"MTP (\d+)", text)
    if re.search(r"MTP head|MTP \d|method.{0,6}mtp", text) and model.mtp_layers:
        return Draft(kind="mtp", tokens=int(tokens[1]) if tokens else 1)
    if re.search(r"EAGLE-?3", text, re.IGNORECASE):
        return Draft(kind="eagle3")
    return Draft(kind="eagle") if re.search("EAGLE", text) else None


def prefix_caching_of(row: Row) -> bool | None:
    """Whether finished sequences are kept, where the row says so."""
    given, notes = arguments_of(row), str(row.get("notes"))
    if "enable_prefix_caching" in given:
        return given["enable_prefix_caching"] != "False"
    found = re.search(r"prefix caching (on|off)", notes)
    return found[1] == "on" if found else None


def own_format(model: Model) -> str | None:
    """The format that the checkpoint names itself, with what goes with it."""
    return CHECKPOINT_FORMATS.get(model.quantisation or "")


def states_defaults(row: Row) -> bool:
    """Whether the row says that the fraction was the default."""
    return "default" in str(row.get("notes") or "")


def version_of_date(row: Row) -> tuple[int, ...] | None:
    """The newest version at a date such as 2025-10."""
    found = re.search(r"20\d\d-\d\d", str(row.get("engine_version") or ""))
    if not found:
        return None
    return max((version for month, version in RELEASES if month <= found[0]), default=RELEASES[0][1])


def unstated_version(row: Row) -> tuple[int, ...]:
    """The version of a row that names none: late in the life of the first engine, or of both."""
    return LAST_V0 if "V0" in str(row.get("engine_version")) else UNSTATED_VERSION


def engine_options(row: Row) -> dict[str, str | int | float | bool]:
    """Which of the two engines ran, what was switched off, and which sampler drew."""
    text, given = str(row.get("engine_version") or ""), arguments_of(row)
    found: dict[str, str | int | float | bool] = {}
    if re.search(r"V[01]\b", text):
        found["v1"] = "V0" not in text
    if "language_model_only" in given:
        found["language-model-only"] = True
    sampler = re.search(r"VLLM_USE_FLASHINFER_SAMPLER=([01])", str(row.get("notes")))
    if sampler:
        found["flashinfer-sampler"] = sampler[1] == "1"
    elif by_unsloth(row) and (cluster_of(row).gpu.sm or 0) >= FLASHINFER_FROM:
        found["flashinfer-sampler"] = True
    return found


def by_unsloth(row: Row) -> bool:
    """Whether Unsloth started the engine."""
    return bool(re.search("unsloth", str(row.get("notes")), re.IGNORECASE))


def _startup(*names: str) -> Measure:
    """Figures of the first worker's log, added up [GiB]."""
    return lambda found: sum(found.startup[name] for name in names) / GIB


def _capacity(name: str) -> Measure:
    def measure(found: ServeAnswer) -> float:
        if found.capacity is None:
            raise Refused("nothing is cached")
        return float(getattr(found.capacity, name))

    return measure


def _blocks(found: ServeAnswer) -> float:
    """Blocks of 16 tokens, as the first engine counts them."""
    if found.capacity is None:
        raise Refused("nothing is cached")
    return found.capacity.tokens_by_count["blocks per group"] / 16


DTYPES: Final = {"float32": "fp32", "fp32": "fp32", "float16": "fp16", "half": "fp16", "bfloat16": "bf16"}
"""dtype of activations as vLLM writes it -> as the plan does."""

VLLM_RANK: Final = 16
UNSLOTH_RANK: Final = 32
"""Largest rank of an adapter: vLLM's default, and what Unsloth's examples of reinforcement learning set most."""

FLASHINFER_FROM: Final = 80
"""Unsloth switches FlashInfer's sampler on from this compute capability [unsloth_zoo/vllm_utils.py `load_vllm`]."""

NEEDED: Final = re.compile(r"kv_needed_gib_for_(\d+)")

UNSTATED_VERSION: Final = (0, 27)
"""Rows without a version are of networks that came out with 0.26, and keep two states a sequence, as since then."""

LAST_V0: Final = (0, 9)
"""The last version whose first engine was in use; most rows of it come from its last year."""

OF_THE_PROCESS: Final = ("non_torch_gib", "total_non_kv_gib", "kv_gib", "kv_tokens", "gpu_blocks", "nvidia_smi_mib")
"""Quantities that hold what the driver says is in use."""

OF_THE_BUDGET: Final = ("kv_gib", "kv_tokens", "gpu_blocks", "max_concurrency_x", "nvidia_smi_mib")
"""Quantities that the memory fraction decides."""

RELEASES: Final[tuple[tuple[str, tuple[int, ...]], ...]] = (
    ("2023-10", (0, 2)), ("2024-04", (0, 4)), ("2024-07", (0, 5)), ("2024-09", (0, 6)), ("2025-01", (0, 7)),
    ("2025-03", (0, 8)), ("2025-05", (0, 9)), ("2025-07", (0, 10)), ("2025-10", (0, 11, 0)),
    ("2025-11", (0, 11, 2)), ("2025-12", (0, 12)), ("2026-01", (0, 14)), ("2026-02", (0, 16)), ("2026-03", (0, 17)),
    ("2026-04", (0, 19)), ("2026-05", (0, 21)), ("2026-06", (0, 23)), ("2026-07", (0, 25)),
)
"""Month -> version released by then [github.com/vllm-project/vllm releases; from 2026-05 on by their pace]."""

QUANTITIES: Final[dict[str, Measure]] = {
    "weights_gib": _startup("weights"),
    "activation_peak_gib": _startup("activation peak"),
    "non_torch_gib": _startup("non-torch"),
    "weights_plus_non_torch_gib": _startup("weights", "non-torch"),
    "total_non_kv_gib": _startup("weights", "activation peak", "non-torch"),
    "kv_gib": _startup("KV cache"),
    "cudagraph_actual_gib": _startup("CUDA graphs"),
    "cudagraph_estimated_gib": _startup("CUDA graphs, estimated"),
    "cudagraph_gib": _startup("CUDA graphs"),
    "cudagraph_delta_gib": _startup("CUDA graphs"),
    "kv_tokens": _capacity("kv_tokens"),
    "max_concurrency_x": _capacity("concurrency"),
    "gpu_blocks": _blocks,
    "process_used_at_oom_gib": lambda found: min(found.fullest.peak.device_bytes, found.capacity_bytes) / GIB,
    "nvidia_smi_mib": lambda found: found.fullest.peak.device_bytes / MIB,
    "startup_fits": lambda found: float(found.fits),
}
"""Quantity of a row -> the same of an answer."""
