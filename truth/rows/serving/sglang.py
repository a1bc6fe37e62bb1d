"""Start-up logs of SGLang: weights, both halves of the cache, tokens. Its "GB" are GiB."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any, Final

from msgspec.structs import replace

from truth.contract import Prediction, Refused
from truth.rows.names import model_of
from truth.rows.serving.common import cluster_of, noted, value_of, version_of
from truth.rows.serving.formats import weights_of
from vramcast.domain.answer import ServeAnswer
from vramcast.domain.device import Cluster
from vramcast.domain.model import Attention
from vramcast.domain.serving import Draft, Requests, ServeJob, ServePlan
from vramcast.engines.sglang.deploy import unused_draft_bytes
from vramcast.estimate.serving import answer
from vramcast.states.cache import cache_bytes, local_kv_heads
from vramcast.units import GIB

Row = dict[str, Any]

AVAILABLE: Final = re.compile(r"avail (\d+\.\d+) GB")
DEFAULT_VERSION: Final = (0, 5, 23)
RELEASES: Final = (("2024-09", (0, 3)), ("2024-12", (0, 4)), ("2025-07", (0, 4, 9)), ("2025-09", (0, 5)))


def predict(row: Row) -> Iterator[Prediction]:
    """The quantity the row names."""
    quantity, job = str(row["quantity"]), job_of(row)
    if quantity not in QUANTITIES:
        raise Refused(f"{quantity} is not predicted")
    yield Prediction(quantity, QUANTITIES[quantity](answer(job), job), value_of(row))


def job_of(row: Row) -> ServeJob:
    """The question behind a log."""
    draft = Draft(kind="mtp") if "NEXTN" in str(row["model"]) else None
    return ServeJob(
        model=model_of(str(row["model"])),
        requests=Requests(context=row.get("max_model_len")),
        plan=ServePlan(
            tp=int(row.get("tp") or 1),
            memory_fraction=row.get("gpu_memory_utilization"),
            batched_tokens=noted(row, "chunked_prefill"),
            weights=weights_of(row),
            draft=draft,
        ),
        cluster=_cluster(row),
        engine="sglang",
        version=version_of(row) or _version_of_date(row),
    )


def _cluster(row: Row) -> Cluster:
    """The cards, with the memory that the log says was free before the load."""
    cluster = cluster_of(row)
    free = AVAILABLE.search(str(row.get("gpu")))
    if free is None:
        return cluster
    return replace(cluster, gpu=replace(cluster.gpu, visible_bytes=round(float(free[1]) * GIB), context_bytes=0))


def _version_of_date(row: Row) -> tuple[int, ...]:
    text = str(row.get("engine_version") or "")
    dated = [version for month, version in RELEASES if text.startswith("202") and month <= text[:7]]
    return dated[-1] if dated else DEFAULT_VERSION


def _tokens(found: ServeAnswer, _: ServeJob) -> float:
    if found.capacity is None:
        raise Refused("nothing is cached")
    return found.capacity.kv_tokens


def _half(values: bool) -> Callable[[ServeAnswer, ServeJob], float]:
    """Keys or values of all layers with full attention [GiB]."""

    def measure(found: ServeAnswer, job: ServeJob) -> float:
        sizes = 0
        for layer in job.model.main.layers:
            if not isinstance(layer.mixer, Attention):
                raise Refused("keys and values are not kept apart")
            width = (layer.mixer.v_head_dim if values else None) or layer.mixer.head_dim
            sizes += cache_bytes(local_kv_heads(layer.mixer.num_kv_heads, job.plan.tp) * width, "bf16")
        return _tokens(found, job) * sizes / GIB

    return measure


QUANTITIES: Final[dict[str, Callable[[ServeAnswer, ServeJob], float]]] = {
    "weights_gb": lambda found, _: found.startup["weights"] / GIB,
    "kv_tokens": _tokens,
    "kv_k_gb": _half(values=False),
    "kv_v_gb": _half(values=True),
    "draft_embed_lm_head_gib": lambda _, job: unused_draft_bytes(job.model, job.plan) / GIB,
}
"""Quantity of a row -> the same of an answer."""
