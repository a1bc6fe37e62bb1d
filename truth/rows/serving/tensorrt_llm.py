"""TensorRT-LLM: most sequences at once, and what builds and start-ups print."""

from __future__ import annotations

from collections.abc import Iterator
from math import floor
from typing import Any

from truth.contract import Prediction, Refused
from truth.rows.names import model_of
from truth.rows.serving.common import cluster_of, value_of, version_of
from truth.rows.serving.formats import weights_of
from vramcast.domain.serving import Requests, ServeJob, ServePlan
from vramcast.estimate.serving import answer

Row = dict[str, Any]

TOKENS_PER_STEP = 2
"""max_num_tokens of the measured runs, as a multiple of the prompt."""


def predict(row: Row) -> Iterator[Prediction]:
    """Sequences of the longest length that the cache holds."""
    quantity = str(row["quantity"])
    if quantity != "max_concurrent_sequences":
        raise Refused(f"{quantity}: the model and its build are not all stated")
    found = answer(job_of(row)).capacity
    if found is None:
        raise Refused("nothing is cached")
    yield Prediction(quantity, floor(found.concurrency), value_of(row))


def job_of(row: Row) -> ServeJob:
    """The question behind a row."""
    return ServeJob(
        model=model_of(str(row["model"])),
        requests=Requests(context=int(row["max_model_len"])),
        plan=ServePlan(
            tp=int(row["tp"]),
            memory_fraction=float(row["gpu_memory_utilization"]),
            batched_tokens=TOKENS_PER_STEP * int(row["input_len"]),
            weights=weights_of(row),
            kv_dtype="fp8" if "fp8" in str(row.get("kv_dtype")) else "auto",
        ),
        cluster=cluster_of(row),
        engine="tensorrt-llm",
        version=version_of(row) or (1, 1),
    )
