"""TensorRT-LLM: most sequences at once, and what builds and start-ups print."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from math import floor
from typing import Any, Final

from truth.contract import Prediction, Refused
from truth.rows.names import model_of
from truth.rows.serving.common import cluster_of, noted, value_of, version_of
from truth.rows.serving.formats import weights_of
from vramcast.domain.answer import Capacity, ServeAnswer
from vramcast.domain.serving import Requests, ServeJob, ServePlan
from vramcast.estimate.interval import serving_traits
from vramcast.estimate.serving import answer
from vramcast.units import MIB

Row = dict[str, Any]

TOKENS_PER_STEP = 2
"""max_num_tokens of the measured runs, as a multiple of the prompt."""

DEFAULT_VERSION: Final = (1, 1)
RELEASES: Final = (
    ("2023-10", (0, 5)), ("2024-02", (0, 8)), ("2024-04-16", (0, 9)), ("2024-07", (0, 11)), ("2024-12", (0, 16)),
    ("2025-06", (0, 20)), ("2025-09-24", (1, 0)), ("2025-12", (1, 1)),
)
"""First day of a release -> version, for reports that say a day only."""


def predict(row: Row) -> Iterator[Prediction]:
    """The quantity the row names."""
    quantity = str(row["quantity"])
    if quantity not in QUANTITIES:
        raise Refused(f"{quantity} is not predicted")
    job = job_of(row)
    yield Prediction(quantity, QUANTITIES[quantity](answer(job)), value_of(row), traits=serving_traits(job))


def job_of(row: Row) -> ServeJob:
    """The question behind a row."""
    prompt = row.get("input_len")
    return ServeJob(
        model=model_of(str(row["model"])),
        requests=Requests(context=row.get("max_model_len")),
        plan=ServePlan(
            tp=int(row.get("tp") or 1),
            pp=int(row.get("pp") or 1),
            memory_fraction=row.get("gpu_memory_utilization"),
            batched_tokens=noted(row, "max_num_tokens") if prompt is None else TOKENS_PER_STEP * int(prompt),
            max_sequences=noted(row, "max_batch_size"),
            weights=weights_of(row),
            kv_dtype="fp8" if "fp8" in str(row.get("kv_dtype")) else "auto",
        ),
        cluster=cluster_of(row),
        engine="tensorrt-llm",
        version=_version(row),
    )


def _version(row: Row) -> tuple[int, ...]:
    text = str(row.get("engine_version") or "")
    found = re.search(r"20\d\d-\d\d(?:-\d\d)?", text)
    if found is None:
        return version_of(row) or DEFAULT_VERSION
    return ([version for day, version in RELEASES if day <= found[0]] or [RELEASES[0][1]])[-1]


def _cached(found: ServeAnswer) -> Capacity:
    if found.capacity is None:
        raise Refused("nothing is cached")
    return found.capacity


QUANTITIES: Final[dict[str, Callable[[ServeAnswer], float]]] = {
    "max_concurrent_sequences": lambda found: floor(_cached(found).concurrency),
    "kv_tokens": lambda found: _cached(found).kv_tokens,
    "kv_bytes": lambda found: _cached(found).kv_bytes,
    "weights_bytes": lambda found: found.startup["weights"],
    "engine_mib": lambda found: found.startup["weights"] / MIB,
    "activation_bytes": lambda found: found.startup["activation peak"],
}
"""Quantity of a row -> the same of an answer. A build's scratch is that of TensorRT's own choice of kernels."""
