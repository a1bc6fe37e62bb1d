"""`vramcast models`: search the catalogue, or show one model."""

from __future__ import annotations

import json

import click

from vramcast.cli.shared import json_option, language_option
from vramcast.report.messages import words_here


@click.command("models")
@click.argument("text", required=False, default="")
@json_option
@language_option
def command(text: str, as_json: bool, lang: str | None) -> int:
    """Models and diffusion pipelines that vramcast knows by name; TEXT is part of a name, or a whole name."""
    from vramcast.errors import UnknownName
    from vramcast.report.catalogue import find_models, model_document
    from vramcast.report.text import table

    words = words_here(lang)
    rows = [model_document(name) for name in find_models(text)]
    if not rows:
        raise UnknownName.of("model", text, find_models(""))
    if as_json:
        click.echo(json.dumps({"schema": 1, "models": rows}, indent=1))
        return 0
    header = ("model", "family", words("parameters"), "layers", "hidden", "context")
    body = [
        (str(row["name"]), str(row["family"]), f"{row['parameters']:,}", str(row.get("layers", "")),
         str(row.get("hidden", "")), f"{row['context']:,}" if row.get("context") else "")
        for row in rows
    ]
    click.echo(table([header, *body], right=frozenset({2, 3, 4, 5})), nl=False)
    return 0

