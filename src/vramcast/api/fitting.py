""""My card, which models?": those of the catalogue that cards hold, in the most precise form that fits."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from vramcast import api
from vramcast.catalogue.clusters import cluster_of, taken
from vramcast.catalogue.index import PIPELINES, find_models, summary
from vramcast.domain.answer import Answer
from vramcast.domain.choices import Fitting, FittingModel
from vramcast.domain.device import Cluster
from vramcast.engines.serving.checks import is_ported, runs_on
from vramcast.engines.serving.table import SERVING
from vramcast.errors import UnknownName, VramcastError

Form = tuple[str, float, Mapping[str, Any]]
"""What a form is called, the least bytes a weight that it takes, and the options that ask for it."""

SERVED: Final[tuple[Form, ...]] = (
    ("as stored", 0.5, {}), ("fp8", 1.0, {"weights": "fp8"}), ("int4", 0.5, {"weights": "awq-int4"}),
)
PACKED: Final[tuple[Form, ...]] = (
    ("as stored", 0.5, {}), ("q8_0", 1.0, {"weights": "q8_0"}), ("q4_k_m", 0.5, {"weights": "q4_k_m"}),
)
TRAINED: Final[tuple[Form, ...]] = (
    ("all weights", 10.0, {}), ("LoRA", 2.0, {"peft": "lora"}), ("QLoRA", 0.5, {"peft": "lora", "base-weights": "nf4"}),
)
"""Most precise first."""
PURPOSES: Final = ("serve", "train")
LENGTHS: Final = {"serve": 8192, "train": 2048}
"""Tokens of a sequence where nobody says."""


def fitting_models(gpus: str, *, purpose: str = "serve", text: str = "", length: int | None = None) -> Fitting:
    """The models of the catalogue that cards hold, one sequence at a time.

    Args:
        gpus: as `--gpus` takes it
        purpose: "serve", or "train" with all layers recomputed
        text: part of the models' names
        length: tokens of the sequence

    Raises: as `cluster_of`, UnknownName for text that no model's name holds, or for another purpose
    """
    if purpose not in PURPOSES:
        raise UnknownName.of("purpose", purpose, PURPOSES)
    cluster, names = cluster_of(gpus), find_models(text)
    if not names:
        raise UnknownName.of("model", text, find_models(""))
    tokens = length or LENGTHS[purpose]
    engine, forms, common = _asked(cluster, purpose, tokens)
    room = cluster.count * cluster.gpu.visible_bytes
    found, reason = [], None
    for name in names:
        if purpose == "train" and name in PIPELINES.summaries:
            continue
        try:
            fit = next(_fits(name, cluster.name, purpose, forms, common, room), None)
        except VramcastError as error:
            reason = reason or error
            continue
        found += [fit] if fit is not None else []
    if not found and reason is not None and len(names) == 1:
        raise reason
    found.sort(key=lambda fit: (-fit.parameters, fit.name))
    return Fitting(
        gpus=cluster.name, purpose=purpose, length=tokens, engine=engine, looked_at=len(names), fits=tuple(found),
        said=(*cluster.cautions, *taken(gpus)),
    )


def _asked(cluster: Cluster, purpose: str, tokens: int) -> tuple[str, tuple[Form, ...], dict[str, Any]]:
    """Engine, forms and the options of every model."""
    if purpose == "train":
        return "huggingface", TRAINED, {"engine": "huggingface", "seq-len": tokens, "recompute": "full"}
    vllm = SERVING["vllm"]
    if runs_on("vllm", vllm.default, cluster.gpu) or is_ported("vllm", vllm.default, cluster.gpu):
        return "vllm", SERVED, {"engine": "vllm", "context": tokens}
    return "llama.cpp", PACKED, {"engine": "llama.cpp", "context": tokens}


def _fits(
    name: str, gpus: str, purpose: str, forms: tuple[Form, ...], common: Mapping[str, Any], room: int
) -> Iterator[FittingModel]:
    """The forms that fit, the most precise first; those whose weights alone are too much are not worked out."""
    size = int(summary(name)["parameters"])
    if name in PIPELINES.summaries:
        forms, common = (("as stored", 0.5, {}),), {}
    reason: VramcastError | None = None
    for form, least, options in forms:
        if least * size > room:
            continue
        asked = {**common, **options, "model": name, "gpus": gpus}
        if "context" in asked:
            asked["context"] = min(asked["context"], summary(name).get("context") or asked["context"])
        try:
            answer: Answer = (
                api.serve_answer(asked, with_changes=False) if purpose == "serve"
                else api.train_answer(asked, with_changes=False)[1]
            )
        except VramcastError as error:
            reason = reason or error
            continue
        if answer.fits:
            yield FittingModel(name=name, parameters=size, form=form, answer=answer)
    if reason is not None:
        raise reason

