"""`vramcast models`: search the catalogue, or show one model."""

from __future__ import annotations

import json

import click

from vramcast.cli.shared import json_option, language_option, words_of


@click.command("models")
@click.argument("text", required=False, default="")
@json_option
@language_option
def command(text: str, as_json: bool, lang: str | None) -> int:
    """Models and diffusion pipelines that vramcast knows by name; TEXT is part of a name, or a whole name."""
    from vramcast.catalogue.models import search_models
    from vramcast.catalogue.pipelines import search_pipelines
    from vramcast.errors import UnknownName
    from vramcast.report.text import table

    words = words_of(lang)
    models, pipelines = search_models(""), search_pipelines("")
    names = [text] if text in models else [] if text in pipelines else list(search_models(text))
    chosen = [text] if text in pipelines else [] if text in models else list(search_pipelines(text))
    if not names and not chosen:
        raise UnknownName.of("model", text, (*models, *pipelines))
    rows = [_model_row(name) for name in names] + [_pipeline_row(name) for name in chosen]
    if as_json:
        click.echo(json.dumps({"schema": 1, "models": [_known(row) for row in rows]}, indent=1))
        return 0
    header = ("model", "family", words("parameters"), "layers", "hidden", "context")
    body = [
        (str(row["name"]), str(row["family"]), f"{row['parameters']:,}", str(row.get("layers", "")),
         str(row.get("hidden", "")), f"{row['context']:,}" if row.get("context") else "")
        for row in rows
    ]
    click.echo(table([header, *body], right=frozenset({2, 3, 4, 5})), nl=False)
    return 0


def _model_row(name: str) -> dict[str, object]:
    from vramcast.blocks.parameters import count_parameters
    from vramcast.catalogue.models import load_model

    model = load_model(name)
    count = count_parameters(model)
    return {
        "name": name, "family": model.family, "parameters": count.total, "active_parameters": count.active,
        "layers": model.num_layers, "hidden": model.hidden, "vocabulary": model.vocab, "context": model.context,
    }


def _pipeline_row(name: str) -> dict[str, object]:
    from vramcast.catalogue.pipelines import load_pipeline
    from vramcast.engines.diffusers.deploy import elements_of

    pipeline = load_pipeline(name)
    parts = {component.name: elements_of(component.network) for component in pipeline.components}
    return {"name": name, "family": pipeline.family, "parameters": sum(parts.values()), "components": parts}


def _known(row: dict[str, object]) -> dict[str, object]:
    return {name: value for name, value in row.items() if value is not None}
