"""`vramcast gpus`: search the catalogue, or show one card."""

from __future__ import annotations

import json

import click
import msgspec

from vramcast.cli.shared import json_option
from vramcast.units import GB, format_bytes


@click.command("gpus")
@click.argument("text", required=False, default="")
@json_option
def command(text: str, as_json: bool) -> int:
    """Cards that vramcast knows; TEXT is part of a name, or a whole name for its details and sources."""
    from vramcast.catalogue.gpus import gpu_names, load_gpu, search_gpus
    from vramcast.errors import UnknownName
    from vramcast.report.text import table

    exact = text in gpu_names()
    cards = [load_gpu(text)] if exact else list(search_gpus(text))
    if not cards:
        raise UnknownName.of("GPU", text, gpu_names())
    if as_json:
        plain = [
            {name: value for name, value in msgspec.to_builtins(card).items() if value is not None} for card in cards
        ]
        click.echo(json.dumps({"schema": 1, "gpus": plain}, indent=1))
        return 0
    if exact:
        facts = msgspec.to_builtins(cards[0]).items()
        click.echo(table([(name, _fact(name, value)) for name, value in facts if value is not None]), nl=False)
        return 0
    header = ("gpu", "generation", "on the box", "usable", "GB/s", "link")
    rows = [
        (
            card.name,
            card.arch,
            card.memory_nameplate,
            format_bytes(card.visible_bytes),
            f"{card.bandwidth_bytes_per_s // GB:,}" if card.bandwidth_bytes_per_s else "",
            card.link or "PCIe",
        )
        for card in cards
    ]
    click.echo(table([header, *rows], right=frozenset({2, 3, 4})), nl=False)
    return 0


def _fact(name: str, value: object) -> str:
    if name.endswith("_bytes") and isinstance(value, int):
        return f"{value:,} ({format_bytes(value)})"
    return f"{value:,}" if isinstance(value, (int, float)) and not isinstance(value, bool) else str(value)
