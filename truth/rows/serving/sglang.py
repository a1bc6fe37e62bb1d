"""Start-up logs of SGLang: weights, both halves of the cache, tokens, states. Its "GB" are GiB."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Final

from msgspec.structs import replace

from truth.contract import Prediction, Refused
from truth.rows.names import model_of
from truth.rows.serving.common import cluster_of, noted, value_of, version_of
from truth.rows.serving.formats import weights_of
from vramcast.domain.answer import ServeAnswer
from vramcast.domain.model import Model
from vramcast.domain.serving import Draft, Requests, ServeJob, ServePlan
from vramcast.engines.sglang.deploy import communication, unused_draft_bytes
from vramcast.estimate.serving import answer
from vramcast.units import GIB

Row = dict[str, Any]

AVAILABLE: Final = re.compile(r"avail\w* (\d+\.\d+) ?GB", re.IGNORECASE)
BESIDE: Final = re.compile(r"/[A-Z]\d(?=\s)|\b[TP]P\d+\b|\?")
"""What a row's name has beside the network: a second network of the same sizes, degrees, doubts."""

TABLE: Final = re.compile(r"vocab\D{0,3}(\d+),? hidden\D{0,3}(\d+)")
DEFAULT_VERSION: Final = (0, 5, 23)
RELEASES: Final = (
    ("2024-09", (0, 3, 0)), ("2024-12", (0, 4, 0)), ("2025-02-14", (0, 4, 3)), ("2025-03-13", (0, 4, 4)),
    ("2025-04-07", (0, 4, 5)), ("2025-04-27", (0, 4, 6)), ("2025-06-11", (0, 4, 7)), ("2025-06-24", (0, 4, 8)),
    ("2025-07-10", (0, 4, 9)),
    ("2025-09-11", (0, 5, 2)), ("2025-10-06", (0, 5, 3)), ("2025-12-01", (0, 5, 6)), ("2026-04-06", (0, 5, 10)),
    ("2026-06", (0, 5, 13)), ("2026-08", (0, 5, 20)),
)
"""First day of a release -> version, for logs that say a day only."""

COUNTS: Final = {"kv_tokens": "tokens", "kv_swa_tokens": "tokens of sliding windows"}
PRINTED: Final = {
    "weights_gb": "weights", "kv_k_gb": "keys", "kv_v_gb": "values", "kv_swa_k_gb": "keys of windows",
    "kv_swa_v_gb": "values of windows", "mamba_conv_state_gb": "convolution states",
    "mamba_ssm_state_gb": "recurrent states",
}
"""Quantity of a row -> what the answer calls it."""


def predict(row: Row) -> Iterator[Prediction]:
    """The quantity the row names."""
    quantity = str(row["quantity"])
    if quantity == "draft_embed_lm_head_gib":
        measured = value_of(row)  # two tables of 2.54 "GiB" in a thread: their GB
        yield Prediction(quantity, _draft_tables(row) / GIB, measured, measured_alternative=measured * 1e9 / GIB)
        return
    if quantity not in COUNTS and quantity not in PRINTED:
        raise Refused(f"{quantity} is not predicted")
    yield Prediction(quantity, _read(answer(job_of(row)), quantity), value_of(row))


def _read(found: ServeAnswer, quantity: str) -> float:
    if found.capacity is None:
        raise Refused("nothing is cached")
    counts = found.capacity.tokens_by_count
    said = counts.get(COUNTS[quantity]) if quantity in COUNTS else found.startup.get(PRINTED[quantity])
    if said is None:
        raise Refused(f"{quantity}: this network keeps no such thing")
    return said if quantity in COUNTS else said / GIB


def job_of(row: Row) -> ServeJob:
    """The question behind a log."""
    job = ServeJob(
        model=model_of(_name(row)),
        requests=Requests(context=row.get("max_model_len")),
        plan=ServePlan(
            tp=int(row.get("tp") or 1),
            pp=int(row.get("pp") or 1),
            memory_fraction=row.get("gpu_memory_utilization") or _fraction_of_notes(row),
            batched_tokens=noted(row, "chunked_prefill"),
            block_tokens=noted(row, "page_size"),
            weights=weights_of(row),
            kv_dtype="fp8" if "fp8" in str(row.get("kv_dtype")) else "auto",
            draft=_draft(row),
        ),
        cluster=cluster_of(row),
        engine="sglang",
        version=version_of(row) or _version_of_date(row),
    )
    free = AVAILABLE.search(str(row.get("gpu")))
    return job if free is None else _with_free(job, round(float(free[1]) * GIB))


def _name(row: Row) -> str:
    """
    >>> _name({"model": "DeepSeek-V3/R1 (DeepseekV3ForCausalLM) NVFP4? TP4"}).split()
    ['DeepSeek-V3', '(DeepseekV3ForCausalLM)', 'NVFP4']
    """
    return BESIDE.sub("", str(row["model"]))


def _with_free(job: ServeJob, free: int) -> ServeJob:
    """The job on a card that shows so much free memory before the load, communicators set up."""
    taken = sum(tensor.num_bytes for tensor in communication(job))
    gpu = replace(job.cluster.gpu, visible_bytes=free + taken, context_bytes=0)
    return replace(job, cluster=replace(job.cluster, gpu=gpu))


def _fraction_of_notes(row: Row) -> float | None:
    found = re.search(r"mem[-_]fraction[-_]static\D{0,3}(0?\.\d+)", str(row.get("notes") or ""))
    return float(found[1]) if found else None


def _draft(row: Row) -> Draft | None:
    return Draft(kind="mtp") if "NEXTN" in str(row["model"]) else None


def _draft_tables(row: Row) -> int:
    """Of a network that the row names, or whose sizes it states [bytes]."""
    stated = TABLE.search(str(row["model"]))
    plan = ServePlan(tp=int(row.get("tp") or 1), draft=_draft(row) or Draft(kind="eagle"))
    model: Model = model_of("llama-2-7b" if stated else _name(row))
    if stated:
        main = replace(model.main, hidden=int(stated[2]))
        model = replace(model, vocab=int(stated[1]), stacks=(main,))
    return unused_draft_bytes(model, plan)


def _version_of_date(row: Row) -> tuple[int, ...]:
    text = str(row.get("engine_version") or "")
    found = re.search(r"20\d\d-\d\d(?:-\d\d)?", text)
    dated = [version for day, version in RELEASES if found and day <= found[0]]
    return dated[-1] if dated else DEFAULT_VERSION
