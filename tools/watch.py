"""Tables of docs/watch.md: the metrics that are exported, the columns of a recording."""

from __future__ import annotations


def metrics_table() -> str:
    """One line per metric of a card."""
    from vramcast.watch.prometheus import METRICS

    lines = ["| metric of a card | what | labels beside gpu and uuid |", "|---|---|---|"]
    for metric in METRICS:
        name = f"{metric.name}_total" if metric.counts else metric.name
        lines.append(f"| `{name}` | {metric.help} | {', '.join(metric.labels)} |")
    return "\n".join(lines) + "\n"


def schema_table() -> str:
    """One line per table of a recording."""
    from vramcast.watch.recording import TABLES

    lines = ["| table | columns |", "|---|---|"]
    for table in TABLES:
        columns = ", ".join(f"`{name}`" for name in ("id", *table.owners, *table.fields))
        lines.append(f"| `{table.name}` | {columns} |")
    return "\n".join(lines) + "\n"
