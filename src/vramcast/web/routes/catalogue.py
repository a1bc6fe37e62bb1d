"""`/api/models`, `/api/gpus`, `/api/instances`, `/api/version`: what there is to ask about."""

from __future__ import annotations

from datetime import date
from functools import cache
from typing import Any

from vramcast.version import __version__
from vramcast.web.exchange import Asked


def models(asked: Asked) -> dict[str, Any]:
    """Models and diffusion pipelines whose name or alias holds every word of the query."""
    from vramcast.report.catalogue import find_models

    found = find_models(asked.query.get("query", ""))
    return {"schema": 1, "models": [_model(name) for name in found]}


@cache
def _model(name: str) -> dict[str, Any]:
    """One row; counting the weights of all models takes a third of a second."""
    from vramcast.report.catalogue import model_document

    return model_document(name)


def gpus(asked: Asked) -> dict[str, Any]:
    """The cards, as `vramcast gpus --json` prints them."""
    from vramcast.catalogue.gpus import search_gpus
    from vramcast.report.catalogue import gpu_document

    return {"schema": 1, "gpus": [gpu_document(card) for card in search_gpus(asked.query.get("query", ""))]}


def instances(asked: Asked) -> dict[str, Any]:
    """The machines, as `vramcast instances --json` prints them."""
    from vramcast.catalogue.clusters import Market
    from vramcast.catalogue.machines import Filter, listed
    from vramcast.report.catalogue import machine_documents

    names = tuple(asked.query.get("query", "").split())
    found = machine_documents(listed(names, Filter(), Market()))
    said = [row | {"note": asked.words.said(row["note"])} if "note" in row else row for row in found]
    return {"schema": 1, "instances": said}


def version(asked: Asked) -> dict[str, Any]:
    """What answers, and what it may be asked about."""
    return {
        "schema": 1, "version": __version__, "hubs": sorted(asked.sources.hubs), "today": date.today().isoformat(),
    }
