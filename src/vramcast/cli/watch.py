"""`vramcast watch`: what GPUs and the processes on them do, now and over time."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from vramcast import watch
from vramcast.cli.shared import language_option
from vramcast.report.messages import words_here

VENDORS = ("nvidia", "amd", "huawei", "mthreads")


@click.command("watch")
@click.option("--gpu", "gpus", metavar="NAME", multiple=True, help="only this card: index or uuid (repeatable)")
@click.option("--vendor", "vendors", type=click.Choice(VENDORS), multiple=True, help="only cards of this vendor")
@click.option("--interval", default="1s", show_default=True, metavar="TIME", help="between two readings: 500ms, 2s ...")
@click.option("--duration", metavar="TIME", help="how long: 30s, 10m, 8h; by default until interrupted")
@click.option("--count", type=click.IntRange(min=1), metavar="N", help="end after so many readings")
@click.option("--once", is_flag=True, help="one reading as a picture or document, and end")
@click.option("--json", "as_json", is_flag=True, help="one JSON document per reading, each on a line")
@click.option("--csv", "csv_file", metavar="FILE", help="one row per card and reading; - for standard output")
@click.option(
    "--record", type=click.Path(path_type=Path, dir_okay=False), metavar="FILE",
    help="append every reading to this SQLite file",
)
@click.option("--prometheus", metavar="[HOST]:PORT", help="serve metrics; without HOST to this machine alone")
@click.option(
    "--predict", type=click.Path(path_type=Path), metavar="JOB",
    help="job file whose prediction is drawn beside reality",
)
@click.option("--alert-headroom", metavar="SIZE", help="alert when less of a card is free, for example 2GiB")
@click.option(
    "--alert-leak", metavar="SIZE", default="1GiB", show_default=True,
    help="alert when a process grows steadily by so much an hour; 0: never",
)
@click.option("--window", default="10m", show_default=True, metavar="TIME", help="over which growth is judged")
@click.option("--exit-on-alert", is_flag=True, help="end with exit code 1 at the first alert or lost card")
@click.option("--grafana", is_flag=True, help="print a Grafana dashboard for these metrics, and end")
@click.option("--rules", is_flag=True, help="print alert rules for Prometheus, and end")
@language_option
def command(lang: str | None, grafana: bool, rules: bool, **options: Any) -> int:
    """Watch GPUs and the processes on them: memory, load, power, traffic, and who holds what.

    On a terminal a live screen, elsewhere plain lines. NVIDIA cards are read through their driver's library, AMD,
    Ascend and Moore Threads cards through amd-smi, npu-smi and mthreads-gmi.

    \b
    vramcast watch
    vramcast watch --record run.sqlite --predict job.toml
    vramcast watch --prometheus :9400 --alert-headroom 2GiB
    vramcast watch --once --json
    """
    if grafana or rules:
        from vramcast.watch import prometheus

        click.echo(prometheus.dashboard() if grafana else prometheus.rules(), nl=grafana)
        return 0

    return watch.session.watched(words_here(lang), **options)
