"""Models and pipelines of the catalogue as JSON."""

from __future__ import annotations

from typing import Any

from vramcast.blocks.parameters import count_parameters
from vramcast.catalogue.models import known_names, load_model, model_names, search_models
from vramcast.catalogue.pipelines import load_pipeline, search_pipelines
from vramcast.report.plain import known


def find_models(text: str) -> tuple[str, ...]:
    """Names of models, then of pipelines: the one whose whole name the text is, else all that hold its words."""
    if text in model_names() or text in search_pipelines(""):
        return (text,)
    return (*search_models(text), *search_pipelines(text))


def model_document(name: str) -> dict[str, Any]:
    return known(_model(name) if name in known_names() else _pipeline(name))


def _model(name: str) -> dict[str, Any]:
    model = load_model(name)
    count = count_parameters(model)
    return {
        "name": name, "family": model.family, "parameters": count.total, "active_parameters": count.active,
        "layers": model.num_layers, "hidden": model.hidden, "vocabulary": model.vocab, "context": model.context,
    }


def _pipeline(name: str) -> dict[str, Any]:
    from vramcast.engines.diffusers import elements_of  # a list of models alone needs no engine

    pipeline = load_pipeline(name)
    parts = {component.name: elements_of(component.network) for component in pipeline.components}
    return {"name": name, "family": pipeline.family, "parameters": sum(parts.values()), "components": parts}
