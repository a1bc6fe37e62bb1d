"""`vramcast layers`: parameters and memory of a model, layer by layer."""

from __future__ import annotations

import json
from typing import Any

import click

from vramcast.cli.shared import json_option, language_option, words_of
from vramcast.domain.job import AttentionKernel
from vramcast.question.options import parse_count
from vramcast.units import format_bytes


@click.command("layers")
@click.argument("model")
@click.option("--seq-len", default="1024", show_default=True, metavar="COUNT", help="positions per sample")
@click.option("--batch", default="1", show_default=True, metavar="COUNT", help="samples")
@click.option(
    "--dtype-bytes", type=click.Choice(["2", "4"]), default="2", show_default=True, help="width of an element"
)
@click.option("--attention", type=click.Choice([str(kernel) for kernel in AttentionKernel]), default="flash")
@json_option
@language_option
def command(
    model: str, seq_len: str, batch: str, dtype_bytes: str, attention: str, as_json: bool, lang: str | None
) -> int:
    """Each module's parameters, output shape, bytes saved for backward and FLOPs (forward, one micro-batch)."""
    from vramcast.blocks.parameters import count_parameters
    from vramcast.domain.job import require_count
    from vramcast.estimate.layers import layer_rows
    from vramcast.report.text import table
    from vramcast.sources.resolve import resolve_model

    network = resolve_model(model)
    rows = layer_rows(
        network,
        batch=require_count("batch", parse_count("batch", batch)),
        seq_len=require_count("seq-len", parse_count("seq-len", seq_len)),
        dtype_bytes=int(dtype_bytes),
        attention=AttentionKernel(attention),
    )
    total = count_parameters(network).total
    if as_json:
        click.echo(json.dumps({"schema": 1, "parameters": total, "layers": [_plain(row) for row in rows]}, indent=1))
        return 0
    words = words_of(lang)
    header = (
        words("layer"),
        words("kind"),
        words("parameters"),
        words("output_shape"),
        words("saved"),
        words("flops"),
        "x",
    )
    body = [
        (
            row.path,
            row.kind,
            f"{row.parameters:,}" if row.parameters else "-",
            " x ".join(map(str, row.output_shape)) or "-",
            format_bytes(row.saved_bytes) if row.saved_bytes else "-",
            f"{row.flops:.3g}" if row.flops else "-",
            str(row.repeats),
        )
        for row in rows
    ]
    click.echo(table([header, *body], right=frozenset({2, 4, 5, 6})), nl=False)
    click.echo(f"{words('parameters')}: {total:,}")
    return 0


def _plain(row: Any) -> dict[str, Any]:
    return {
        "path": row.path,
        "kind": row.kind,
        "repeats": row.repeats,
        "parameters": row.parameters,
        "output_shape": list(row.output_shape),
        "saved_bytes": row.saved_bytes,
        "flops": row.flops,
    }
