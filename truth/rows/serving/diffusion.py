"""Rows of diffusers pipelines and of stable-diffusion.cpp: peaks, and the buffers the log prints."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any, Final, Literal

from truth.contract import Prediction, Refused
from truth.rows.names import UNSTATED_CARD
from truth.rows.serving.common import cluster_of, value_of
from vramcast.catalogue.pipelines import load_pipeline
from vramcast.domain.answer import ServeAnswer
from vramcast.domain.pipeline import Component, Pipeline
from vramcast.domain.serving import PipelineJob, Requests, ServePlan
from vramcast.engines.stable_diffusion_cpp.deploy import buffer, component_tensors
from vramcast.errors import InvalidSpec, UnknownName
from vramcast.estimate.serving import answer
from vramcast.units import GIB, MIB

Row = dict[str, Any]

SIZE: Final = re.compile(r"(\d{3,4})\s*x\s*(\d{3,4})(?:\s*x\s*(\d+)\s*f)?")
FRAMES: Final = re.compile(r"(\d+)\s*frames")
FORMATS: Final = (
    (r"nf4|4-bit|4bit", "nf4"), (r"int8|8-bit|8bit", "int8-bnb"), (r"\b(q\d_[0-9k](?:_[sml])?)\b", ""), (r"fp8", "fp8"),
)
"""Words of a row -> key of FORMATS; an empty key is the matched word itself."""

BUILD_WITHOUT_EXCEPTIONS: Final = (134,)
"""The build that added FLUX: its documents state buffers of files whose every matrix was converted."""

BUILD_OF_LOGS: Final = (211,)


def predict(row: Row) -> Iterator[Prediction]:
    """The quantity the row names."""
    quantity = str(row["quantity"])
    reader = next((reader for pattern, reader in QUANTITIES if re.fullmatch(pattern, quantity)), None)
    if reader is None:
        raise Refused(f"{quantity} is not predicted")
    try:
        yield Prediction(quantity, reader(row), value_of(row))
    except InvalidSpec as error:
        raise Refused(str(error)) from None


def pipeline_of(row: Row) -> Pipeline:
    """The pipeline a row names."""
    text = str(row.get("model") or "").lower()
    for name in (text, text.replace(" ", "-"), f"stable-diffusion-{text.removeprefix('sd').strip().replace(' ', '-')}"):
        try:
            return load_pipeline(name)
        except UnknownName:
            continue
    raise Refused(f"pipeline {text[:60]!r} is not in the catalogue")


def words_of(row: Row) -> str:
    """What the row says beside its fields, lower case."""
    return " ".join(str(row.get(name) or "") for name in ("notes", "quant_dtype", "params")).lower()


def requests_of(row: Row) -> Requests:
    """Sizes as the notes state them: pixels of an image are given as two numbers in either order."""
    words = words_of(row)
    size, frames = SIZE.search(words), FRAMES.search(words)
    fields: dict[str, int] = {"concurrency": int(row.get("batch") or 1)}
    if size:
        fields |= {"width": int(size[1]), "height": int(size[2])}
    if frames or (size and size[3]):
        fields["frames"] = int(frames[1] if frames else size[3] if size else 1)
    return Requests(**fields)


def format_of_row(row: Row) -> str | None:
    """The weight format that the row's words name."""
    words = str(row.get("quant_dtype") or "").lower()
    for pattern, name in FORMATS:
        found = re.search(pattern, words)
        if found:
            return name or found[1]
    return None


def plan_of(row: Row) -> ServePlan:
    """Offloading and how the autoencoder decodes. A step of a cumulative list keeps the steps before it."""
    words = words_of(row)
    # HunyuanVideo's own code always decodes in tiles
    tiling, slicing = "tiling" in words or row.get("engine") == "HunyuanVideo", "slicing" in words
    listed = "+" in words and (tiling or slicing)
    offload: Literal["none", "model", "sequential"] = "none"
    if "sequential" in words or listed:
        offload = "sequential"
    elif "cpu_offload" in words:
        offload = "model"
    return ServePlan(
        weights=format_of_row(row), offload=offload, tiling=tiling, slicing=slicing or (listed and tiling),
        attention="flash" if "flash_attn=true" in words else None,
    )


def job_of(row: Row, *, engine: str, version: tuple[int, ...]) -> PipelineJob:
    """The question behind a row."""
    # what PyTorch and ggml allocate does not depend on the card, so rows may leave it out
    cluster, words = cluster_of(row if row.get("gpu") else row | {"gpu": UNSTATED_CARD}), words_of(row)
    shared = cluster.count if re.search(r"ulysses|ring|context parallel", words) else 1
    return PipelineJob(
        pipeline=pipeline_of(row), requests=requests_of(row), plan=plan_of(row), cluster=cluster, engine=engine,
        version=version, engine_options={"context-parallel": shared},
    )


def _peak(level: str, unit: float) -> Callable[[Row], float]:
    def measure(row: Row) -> float:
        if re.search(r"input images?", words_of(row)):
            raise Refused("reference images beside the prompt are not modelled")
        found: ServeAnswer = answer(job_of(row, engine="diffusers", version=(0, 35)))
        return float(getattr(found.ranks[0].peak, f"{level}_bytes")) / unit

    return measure


def _compute_buffer(row: Row) -> float:
    job = job_of(row, engine="stable-diffusion.cpp", version=BUILD_OF_LOGS)
    return buffer(job, _component(job.pipeline, words_of(row).split(";")[0].strip())).num_bytes / MIB


ROLES: Final = {
    "unet": "denoiser", "mmdit": "denoiser", "flux": "denoiser", "diffusion_model": "denoiser", "vae": "autoencoder",
}
"""Component as a log calls it -> its role."""


def _component(pipeline: Pipeline, word: str) -> Component:
    if word in ("clip", "t5"):
        encoders = pipeline.of_role("encoder")
        chosen = [part for part in encoders if ("t5" in getattr(part.network, "name", "")) == (word == "t5")]
        if not chosen:
            raise Refused(f"{pipeline.name} has no {word} encoder")
        return chosen[0]
    found = pipeline.of_role(ROLES.get(word, ""))
    if not found:
        raise Refused(f"which component is {word!r}?")
    return found[0]


def _params(row: Row) -> float:
    """Weights of a component in the buffer the engine prints."""
    if "clip" in str(row["quantity"]):
        raise Refused("a file of all components packs its encoders in types of their own, which its header states")
    word = re.sub(r"^params_|_params_mb$|_mb$", "", str(row["quantity"]))
    # documents of the engine itself show its first build with FLUX; logs of others are later
    version = BUILD_WITHOUT_EXCEPTIONS if word == "diffusion_model" else BUILD_OF_LOGS
    pipeline, words = pipeline_of(row), str(row.get("quant_dtype") or "").lower()
    whole = re.search(r"\bb?fp?(16|32)\b", words)
    stored = format_of_row(row) or (f"f{whole[1]}" if whole else None)
    if stored is None:
        raise Refused("the row names no type of the weights")
    tensors = component_tensors(_component(pipeline, word), stored, version)
    return sum(tensor.num_bytes * count for tensor, count in tensors) / MIB


QUANTITIES: Final[tuple[tuple[str, Callable[[Row], float]], ...]] = (
    ("peak_allocated_gib", _peak("allocated", GIB)),
    ("peak_allocated_gb", _peak("allocated", 1e9)),
    ("peak_reserved_gb", _peak("reserved", 1e9)),
    ("peak_memory_gb|memory_gb", _peak("allocated", 1e9)),
    ("compute_buffer_mib", _compute_buffer),
    ("(params_(clip|unet|vae)|diffusion_model_params)_mb", _params),
)
"""Pattern of a row's quantity -> the same of an answer; a table's plain "memory" is PyTorch's allocated peak."""
