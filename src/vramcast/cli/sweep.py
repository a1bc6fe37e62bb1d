"""`vramcast sweep`: thousands of questions, resumable."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import click

from vramcast import sweeps
from vramcast.cli.shared import language_option
from vramcast.errors import InvalidSpec
from vramcast.report.messages import words_here


@click.command("sweep")
@click.argument("file", type=click.Path(path_type=Path))
@click.option(
    "--out", type=click.Path(path_type=Path), required=True,
    help="results.parquet, results.csv or results.jsonl; what is answered stands in a journal beside it at once",
)
@click.option("--set", "settings", metavar="NAME=VALUE", multiple=True, help="what every question says (repeatable)")
@click.option("--workers", type=click.IntRange(min=1), help="processes; by default one per core")
@click.option("--engine", type=click.Choice(["local", "ray"]), default="local", help="this machine, or a Ray cluster")
@click.option("--address", help="of the Ray cluster: auto, HOST:PORT; by default RAY_ADDRESS, else this machine")
@click.option("--limit", type=click.IntRange(min=1), help="most questions a product may have; by default 1,000,000")
@click.option("--restart", is_flag=True, help="ask everything again instead of going on from the journal")
@click.option("--quiet", is_flag=True, help="no progress")
@language_option
def command(
    file: Path, out: Path, settings: tuple[str, ...], quiet: bool, lang: str | None, limit: int | None, **how: Any
) -> int:
    """Answer every question of FILE: models x hardware x settings, train and serve.

    FILE is TOML or YAML with axes whose product is taken, or CSV or JSONL with one question per row. Questions that
    cannot be answered say why in their row and stop nothing. The same command goes on after a crash or an interrupt.

    \b
    [defaults]
    command = "train"
    gpus = "8xh100-sxm-80gb"
    [axes]
    model = ["llama-3.1-8b", "qwen3-32b"]
    micro-batch = [1, 2, 4]
    [[exclude]]
    model = "qwen3-32b"
    micro-batch = [2, 4]

    \b
    vramcast sweep questions.toml --out results.parquet
    vramcast sweep questions.csv --set command=serve --out results.csv --engine ray --address auto
    """
    words = words_here(lang)
    progress = None if quiet else (sweeps.run.BarProgress if sys.stderr.isatty() else sweeps.run.PlainProgress)(words)
    if limit is not None:
        how["limit"] = limit
    results = sweeps.run.sweep(file, out=out, defaults=_defaults(settings), progress=progress, **how)
    errors = ", ".join(f"{name} {count:,}" for name, count in results.errors.most_common())
    counts = {
        "total": len(results), "fitting": results.fitting, "failing": results.failing, "errors": results.errors.total()
    }
    verdict = words("sweep_result", **{name: f"{count:,}" for name, count in counts.items()})
    click.echo(f"{verdict}{f' ({errors})' if errors else ''}; {out}")
    return 0


def _defaults(settings: tuple[str, ...]) -> dict[str, Any]:
    """`--set NAME=VALUE`, truth values read as such."""
    found: dict[str, Any] = {}
    for setting in settings:
        name, equals, text = setting.partition("=")
        if not equals or not name.strip():
            raise InvalidSpec("--set {!r} must be written NAME=VALUE, for example --set command=train", setting[:80])
        found[name.strip()] = {"true": True, "false": False}.get(text.strip(), text.strip())
    return found
