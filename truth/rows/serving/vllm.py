"""Start-up logs of vLLM: each quantity the log prints beside the deployment's own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final

from truth.contract import Prediction, Refused
from truth.rows.names import model_of
from truth.rows.serving.common import cluster_of, noted, value_of, version_of
from vramcast.domain.answer import RankAnswer, ServeAnswer
from vramcast.domain.serving import Requests, ServeJob, ServePlan
from vramcast.estimate.serving import answer
from vramcast.units import GIB

Row = dict[str, Any]


def predict(row: Row) -> Iterator[Prediction]:
    """The quantity the row names."""
    quantity = str(row["quantity"])
    if quantity not in QUANTITIES:
        raise Refused(f"{quantity} is not predicted")
    found = answer(job_of(row))
    yield Prediction(quantity, QUANTITIES[quantity](found), value_of(row))


def job_of(row: Row) -> ServeJob:
    """The question behind a log."""
    version = version_of(row) or (0, 19)
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
            weights=weights_of(row),
        ),
        cluster=cluster_of(row),
        engine="vllm",
        version=version,
    )


def weights_of(row: Row) -> str | None:
    """The storage format that a row's words name; None: as the checkpoint says."""
    text = str(row.get("quant_dtype") or "").lower()
    return "fp8" if text.endswith("fp8") else None


def _sum(*categories: str) -> Callable[[ServeAnswer], float]:
    def measure(found: ServeAnswer) -> float:
        return _gib(found.fullest, *categories)

    return measure


def _gib(rank: RankAnswer, *categories: str) -> float:
    return sum(entry.num_bytes for entry in rank.ledger if entry.category in categories) / GIB


def _capacity(name: str) -> Callable[[ServeAnswer], float]:
    def measure(found: ServeAnswer) -> float:
        if found.capacity is None:
            raise Refused("nothing is cached")
        return float(getattr(found.capacity, name))

    return measure


QUANTITIES: Final[dict[str, Callable[[ServeAnswer], float]]] = {
    "weights_gib": _sum("weights"),
    "activation_peak_gib": _sum("activations"),
    "non_torch_gib": _sum("communication"),
    "kv_gib": _sum("kv cache"),
    "kv_tokens": _capacity("kv_tokens"),
    "max_concurrency_x": _capacity("concurrency"),
    "cudagraph_actual_gib": _sum("cuda graphs"),
    "startup_fits": lambda found: float(found.fits),
}
"""Quantity of a row -> the same of an answer."""
