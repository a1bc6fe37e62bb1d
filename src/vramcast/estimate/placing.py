"""How a serving plan lies on its ranks where it is timed: degrees, and the formats that products are looked up in."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from vramcast.domain.serving import ServeJob
from vramcast.engines.serving.rank import shares_experts
from vramcast.engines.serving.table import SERVING
from vramcast.engines.serving.weights import formats_of
from vramcast.states.storage import FORMATS
from vramcast.timing.work import Execution, Placement


def placement_of(job: ServeJob, execution: Execution) -> Placement:
    """Degrees and formats of one rank. Engines without tensor parallelism put layers on cards one after the other."""
    plan = job.plan
    formats = formats_of(job.model, weights=plan.weights, dtype=plan.dtype)
    tp = plan.tp if execution.pipelined else 1
    auto = "f16" if SERVING[job.engine].is_ggml else formats.whole
    return Placement(
        quantised=_timed_format(_in_headers(job) or formats.quantised),
        whole=formats.whole,
        k_dtype=auto if plan.kv_dtype == "auto" else plan.kv_dtype,
        v_dtype=plan.v_dtype,
        tp=tp,
        ep=tp * plan.dp if plan.expert_parallel or shares_experts(job) else 1,
        dcp=plan.dcp,
        left_whole=_left_whole(job),
        experts_by=getattr(import_module(SERVING[job.engine].module), "experts_by", lambda _: "")(job),
    )


def _left_whole(job: ServeJob) -> tuple[str, ...] | None:
    if job.engine != "transformers":
        return None
    left: tuple[str, ...] | None = releases().left_whole(job.model.family, job.version)
    return left


def releases() -> Any:
    """What releases of transformers do; other engines do not load it."""
    return import_module("vramcast.engines.transformers.versions")


def _in_headers(job: ServeJob) -> str | None:
    """The block type that most bytes of a GGUF file are in; other headers say less than the config does."""
    if job.plan.weights is not None or job.weights is None:
        return None
    most = next(iter(job.weights.bytes_by_dtype), "")
    return most if most in FORMATS else None


def _timed_format(name: str) -> str:
    """A format of the table: a GGUF mix is timed as its most frequent block type ("q4_k_m" as "q4_k")."""
    if name in FORMATS:
        return name
    block = name.rpartition("_")[0]
    return block if block in FORMATS else name
