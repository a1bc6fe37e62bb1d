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
    """Models that vramcast knows by name; TEXT is part of a name, or a whole name for its details."""
    from vramcast.blocks.parameters import count_parameters
    from vramcast.catalogue.models import load_model, search_models
    from vramcast.errors import UnknownName
    from vramcast.report.text import table

    words = words_of(lang)
    names = [text] if text in search_models("") else list(search_models(text))
    if not names:
        raise UnknownName.of("model", text, search_models(""))
    rows = []
    for name in names:
        model = load_model(name)
        count = count_parameters(model)
        rows.append({
            "name": name, "family": model.family, "parameters": count.total, "active_parameters": count.active,
            "layers": model.num_layers, "hidden": model.hidden, "vocabulary": model.vocab, "context": model.context,
        })
    if as_json:
        click.echo(json.dumps({"schema": 1, "models": [_known(row) for row in rows]}, indent=1))
        return 0
    header = ("model", "family", words("parameters"), "layers", "hidden", "context")
    body = [
        (str(row["name"]), str(row["family"]), f"{row['parameters']:,}", str(row["layers"]), str(row["hidden"]),
         f"{row['context']:,}" if row["context"] else "")
        for row in rows
    ]
    click.echo(table([header, *body], right=frozenset({2, 3, 4, 5})), nl=False)
    return 0


def _known(row: dict[str, object]) -> dict[str, object]:
    return {name: value for name, value in row.items() if value is not None}
