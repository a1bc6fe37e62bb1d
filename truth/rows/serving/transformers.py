"""Tables of transformers runs: a batch of prompts and answers, measured over all its GPUs or on the fullest one."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any, Final

from truth.contract import Prediction, Refused
from truth.rows.names import UNSTATED_CARD, model_of
from truth.rows.serving.common import cluster_of, value_of
from vramcast.catalogue.gpus import load_gpu
from vramcast.catalogue.models import load_model
from vramcast.domain.device import Cluster
from vramcast.domain.job import Phase, RankProgram
from vramcast.domain.model import Model
from vramcast.domain.program import extent
from vramcast.domain.serving import Requests, ServeJob, ServePlan, Version
from vramcast.errors import VramcastError
from vramcast.estimate.interval import serving_traits
from vramcast.estimate.ranks import context_tensor
from vramcast.estimate.serving import deploy
from vramcast.estimate.timeline import Simulated, simulate
from vramcast.units import GIB, MIB

Row = dict[str, Any]

FORMATS: Final[tuple[tuple[str, str | None], ...]] = (
    (r"gptq.?int8|int8 ?\(gptq|gptq 8", "gptq-int8"),
    (r"gptq|int4 \(gptq|^int4$", "gptq-int4"),
    (r"awq", "awq-int4"),
    (r"8bits? \(bnb|bnb\.int8", "int8-bnb"),
    (r"nf4-dq", "nf4-dq"),
    (r"4bits? \(bnb|nf4|fp4", "nf4"),
    (r"fp8", "fp8-block"),
    (r"int8", "int8"),
    (r"^(bf16|fp16)", None),
)
"""Pattern of a row's words -> storage format; the first that fits."""

OTHERS: Final[tuple[tuple[str, str], ...]] = (
    ("autoawq", "AutoAWQ's fused modules changed with every release, and the row states none"),
    ("exllama v1", "exllama's own generator is not modelled: its buffers and group sizes are its own"),
    ("litgpt", "litgpt's generation scripts are not modelled"),
    ("lmdeploy", "TurboMind's workspaces are not modelled"),
)
"""Engines of other generators -> why their rows are refused."""

WITHOUT_LOAD: Final = ("gpu_mem_gb_loaded",)
"""Quantities that are measured before the first request."""

CHUNKED: Final[dict[str, dict[str, str | int | float | bool]]] = {"qwen3_table": {"prefill_chunk": 512}}
"""Tables whose peaks are weights and the whole cache at every length: prompts were read in pieces."""

RELEASES: Final[tuple[tuple[str, str, Version], ...]] = (
    ("glm4_table", "0414", (4, 51)),
    ("glm4_table", "", (4, 40)),
    ("deepseek_llm_table", "", (4, 35)),
    ("qwen1_table", "", (4, 32)),
    ("qwenvl_table", "", (4, 32)),
    ("vendor_readme", "", (4, 34)),
    ("whisper_table", "", (4, 48)),
)
"""Group, word of the model, release of transformers at the time, where a table does not state it."""


def predict(row: Row) -> Iterator[Prediction]:
    """The row's quantity at the level it was measured at."""
    quantity = str(row["quantity"])
    if quantity not in QUANTITIES:
        raise Refused(f"{quantity} is not predicted")
    engine = str(row.get("engine") or "").lower()
    beside = next((reason for word, reason in OTHERS if word in engine), None)
    if beside is not None:
        raise Refused(beside)
    lengths = ("max_model_len", "input_len", "output_len")
    if quantity not in WITHOUT_LOAD and "whisper" not in str(row["model"]) and all(row.get(n) is None for n in lengths):
        raise Refused("the row states neither prompt nor answer")
    job = job_of(row)
    found = QUANTITIES[quantity](job)
    unit, measured = str(row.get("unit") or ""), value_of(row)
    factor = MIB if unit.startswith("M") else GIB
    decimal = measured * (10**6 if factor == MIB else 10**9) / factor
    binary = "1024" in unit or unit.startswith(("GiB", "MiB"))
    yield Prediction(quantity, found / factor, measured, None if binary else decimal, serving_traits(job))


def job_of(row: Row) -> ServeJob:
    """The question behind a row."""
    gpus = max(int(row.get("tp") or 1) * int(row.get("pp") or 1), 1)
    version = release_of(row)
    text = f"{row.get('engine_version')} {row.get('notes')}".lower()
    return ServeJob(
        model=network_of(row),
        requests=Requests(
            concurrency=int(row.get("batch") or 1),
            input_len=int(row.get("input_len") or 1),
            output_len=row.get("output_len"),
        ),
        plan=ServePlan(
            pp=gpus,
            weights=format_of(row),
            dtype="fp16" if str(row.get("quant_dtype")) == "fp16" else None,
            attention="flash" if "flash" in text or " fa " in text else None,
            kv_dtype="int8" if "int8" in str(row.get("kv_dtype")) else "auto",
        ),
        cluster=cluster_of(row) if row.get("gpu") else Cluster(gpu=load_gpu(UNSTATED_CARD), gpus_per_node=gpus),
        engine="transformers",
        version=version,
        engine_options=CHUNKED.get(str(row.get("source_class")), {}) | beams_of(row),
    )


def network_of(row: Row) -> Model:
    """The exact checkpoint where the catalogue has it, else what the name means."""
    name = str(row["model"])
    try:
        return load_model(name)
    except VramcastError:
        return model_of(name)


def format_of(row: Row) -> str | None:
    """The storage format that a row's words name; None: 16 bits."""
    text = str(row.get("quant_dtype") or "bf16").lower()
    if text == "int4" and "glm" in str(row["model"]).lower():
        return "nf4"  # THUDM/GLM-4 basic_demo: load_in_4bit; Qwen's Int4 are GPTQ checkpoints
    for pattern, name in FORMATS:
        if re.search(pattern, text):
            return name
    raise Refused(f"weights stored as {text[:40]!r} are not modelled")


def beams_of(row: Row) -> dict[str, str | int | float | bool]:
    """Beams that the notes state."""
    found = re.search(r"beam (\d+)", str(row.get("notes") or ""))
    return {"beams": int(found[1])} if found else {}


def release_of(row: Row) -> Version:
    """The release that the row states, else that of its table's time."""
    stated = re.match(r"(\d+)\.(\d+)(?:\.(\d+))?", str(row.get("engine_version") or ""))
    if stated:
        return tuple(int(part) for part in stated.groups() if part)
    group, name = str(row.get("source_class")), str(row["model"])
    for table, word, version in RELEASES:
        if group == table and word in name:
            return version
    raise Refused("the row states no release of transformers")


def _marks(program: RankProgram, capacity: int | None) -> Simulated:
    """The highest marks over the whole process."""
    marks = simulate(program.phases, capacity_bytes=capacity).values()
    return Simulated(max(mark.allocated_bytes for mark in marks), max(mark.reserved_bytes for mark in marks))


def allocated_total(job: ServeJob) -> int:
    """max_memory_allocated, summed over GPUs."""
    return sum(_marks(rank.program, None).allocated_bytes for rank in deploy(job).ranks)


def loaded(job: ServeJob) -> int:
    """Memory allocated when the weights are there, summed over GPUs."""
    return sum(extent(rank.program.phases[Phase.LOAD]).net for rank in deploy(job).ranks)


def reserved_fullest(job: ServeJob) -> int:
    """max_memory_reserved of the fullest GPU, which gives back what it cached before it fails."""
    return max(_reserved(job, rank.program) for rank in deploy(job).ranks)


def device_fullest(job: ServeJob) -> int:
    """nvidia-smi of the fullest GPU."""
    return reserved_fullest(job) + context_tensor(job.cluster.gpu).num_bytes


def device_total(job: ServeJob) -> int:
    """nvidia-smi, summed over GPUs."""
    context = context_tensor(job.cluster.gpu).num_bytes
    return sum(_reserved(job, rank.program) + context for rank in deploy(job).ranks)


def _reserved(job: ServeJob, program: RankProgram) -> int:
    free = job.cluster.gpu.visible_bytes - context_tensor(job.cluster.gpu).num_bytes
    mark = _marks(program, None)
    if mark.allocated_bytes > free or mark.reserved_bytes <= free:
        return mark.reserved_bytes
    return _marks(program, free).reserved_bytes


QUANTITIES: Final[dict[str, Callable[[ServeJob], int]]] = {
    "peak_allocated_total_gib": allocated_total,
    "peak_allocated_total_mib": allocated_total,
    "peak_memory_gb_per_gpu": reserved_fullest,
    "gpu_memory_gb": device_total,
    "peak_gpu_memory_gb": device_total,
    "peak_gpu_memory": device_fullest,
    "max_single_gpu_memory_gb": device_fullest,
    "gpu_mem_gb": device_fullest,
    "gpu_mem_gb_loaded": loaded,
    "min_vram_gb": device_fullest,
    "vram_mb": device_fullest,
}
"""Quantity of a row -> the level it was measured at; tables that do not say how they measured are read as `nvidia-smi`.
DeepSeek's are max_memory_reserved: its table holds less than a context's size beside the weights."""
