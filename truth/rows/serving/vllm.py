"""Start-up logs of vLLM: each quantity the log prints beside the deployment's own."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any, Final

from truth.contract import Prediction, Refused
from truth.rows.names import model_of
from truth.rows.serving.common import cluster_of, noted, value_of, version_of
from truth.rows.serving.formats import weights_of
from vramcast.domain.answer import ServeAnswer
from vramcast.domain.model import Model
from vramcast.domain.serving import Requests, ServeJob, ServePlan
from vramcast.engines.serving.weights import CHECKPOINT_FORMATS
from vramcast.estimate.serving import answer
from vramcast.units import GIB, MIB

Row = dict[str, Any]
Measure = Callable[[ServeAnswer], float]


def predict(row: Row) -> Iterator[Prediction]:
    """The quantity the row names."""
    quantity = str(row["quantity"])
    if quantity not in QUANTITIES:
        raise Refused(f"{quantity} is not predicted")
    if quantity in OF_THE_BUDGET and row.get("gpu_memory_utilization") is None and not states_defaults(row):
        raise Refused("the memory fraction is not stated")
    if "--cpu-offload-gb" in str(row.get("notes")):
        raise Refused("weights kept on the host are not modelled for vLLM")
    if row.get("quant_dtype") == "unstated":
        raise Refused("how the weights were stored is not stated")
    found = answer(job_of(row))
    yield Prediction(quantity, QUANTITIES[quantity](found), value_of(row))


def job_of(row: Row) -> ServeJob:
    """The question behind a log."""
    version = version_of(row) or version_of_date(row) or UNSTATED_VERSION
    model = model_of(str(row["model"]))
    kv_dtype = str(row.get("kv_dtype") or "auto").split(" ")[0]
    return ServeJob(
        model=model,
        requests=Requests(context=row.get("max_model_len")),
        plan=ServePlan(
            tp=int(row.get("tp") or 1),
            pp=int(row.get("pp") or 1),
            kv_dtype="fp8" if "fp8" in kv_dtype else "auto",
            memory_fraction=row.get("gpu_memory_utilization"),
            max_sequences=noted(row, "max_num_seqs"),
            batched_tokens=noted(row, "max_num_batched_tokens"),
            weights=None if weights_of(row) == own_format(model) else weights_of(row),
            graphs="--enforce-eager" not in str(row.get("notes")),
        ),
        cluster=cluster_of(row),
        engine="vllm",
        version=version,
        engine_options=engine_options(row),
    )


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


def engine_options(row: Row) -> dict[str, str | int | float | bool]:
    """Which of the two engines ran, where the log says so."""
    text = str(row.get("engine_version") or "")
    return {"v1": "V0" not in text} if re.search(r"V[01]\b", text) else {}


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


UNSTATED_VERSION: Final = (0, 24)
"""Rows without a version are of networks that came out when this one was current."""

OF_THE_BUDGET: Final = ("kv_gib", "kv_tokens", "gpu_blocks", "max_concurrency_x", "nvidia_smi_mib")
"""Quantities that the memory fraction decides."""

RELEASES: Final[tuple[tuple[str, tuple[int, ...]], ...]] = (
    ("2023-10", (0, 2)), ("2024-04", (0, 4)), ("2024-07", (0, 5)), ("2024-09", (0, 6)), ("2025-01", (0, 7)),
    ("2025-03", (0, 8)), ("2025-05", (0, 9)), ("2025-07", (0, 10)), ("2025-10", (0, 11)), ("2025-12", (0, 12)),
    ("2026-01", (0, 14)), ("2026-02", (0, 16)), ("2026-03", (0, 17)), ("2026-04", (0, 19)), ("2026-05", (0, 21)),
    ("2026-06", (0, 23)), ("2026-07", (0, 25)),
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
    "cudagraph_estimated_gib": _startup("CUDA graphs"),
    "cudagraph_gib": _startup("CUDA graphs"),
    "cudagraph_delta_gib": _startup("CUDA graphs"),
    "kv_tokens": _capacity("kv_tokens"),
    "max_concurrency_x": _capacity("concurrency"),
    "gpu_blocks": _blocks,
    "process_used_at_oom_gib": lambda found: found.fullest.peak.device_bytes / GIB,
    "nvidia_smi_mib": lambda found: found.fullest.peak.device_bytes / MIB,
    "startup_fits": lambda found: float(found.fits),
}
"""Quantity of a row -> the same of an answer."""
