"""Models and diffusion pipelines of the catalogue as JSON: what is unknown is absent."""

from __future__ import annotations

from typing import Any


def find_models(text: str) -> tuple[str, ...]:
    """Names of models, then of pipelines: the one whose whole name the text is, else all that hold its words."""
    from vramcast.catalogue.models import search_models
    from vramcast.catalogue.pipelines import search_pipelines

    if text in search_models("") or text in search_pipelines(""):
        return (text,)
    return (*search_models(text), *search_pipelines(text))


def model_document(name: str) -> dict[str, Any]:
    """One model or pipeline."""
    from vramcast.catalogue.models import search_models

    row = _model(name) if name in search_models(name) else _pipeline(name)
    return {key: value for key, value in row.items() if value is not None}


def _model(name: str) -> dict[str, Any]:
    from vramcast.blocks.parameters import count_parameters
    from vramcast.catalogue.models import load_model

    model = load_model(name)
    count = count_parameters(model)
    return {
        "name": name, "family": model.family, "parameters": count.total, "active_parameters": count.active,
        "layers": model.num_layers, "hidden": model.hidden, "vocabulary": model.vocab, "context": model.context,
    }


def _pipeline(name: str) -> dict[str, Any]:
    from vramcast.catalogue.pipelines import load_pipeline
    from vramcast.engines.diffusers.deploy import elements_of

    pipeline = load_pipeline(name)
    parts = {component.name: elements_of(component.network) for component in pipeline.components}
    return {"name": name, "family": pipeline.family, "parameters": sum(parts.values()), "components": parts}
