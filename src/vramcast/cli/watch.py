"""`vramcast watch`: what GPUs and the processes on them do, now and over time."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import click

from vramcast import watch
from vramcast.cli.options import WithHelp, plain_option
from vramcast.cli.shared import FILE, file_option, language_option
from vramcast.errors import VramcastError
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


@click.command(
    "run", cls=WithHelp, context_settings={"ignore_unknown_options": False, "allow_interspersed_args": False},
)
@click.argument("words", metavar="-- CMD...", nargs=-1, required=True, type=click.UNPROCESSED)
@file_option
@plain_option("--gpus", default="", metavar="[COUNTx]GPU", help="judge for these cards instead of those here")
@plain_option("--fix", is_flag=True, help="where it does not fit, start it with the least change that does")
@plain_option("--anyway", is_flag=True, help="start what does not fit, too")
@plain_option("--check", is_flag=True, help="only judge: exit code 0, or 125 where it would be refused")
@plain_option("--record", type=FILE, metavar="FILE", help="append readings of the cards to this SQLite file")
@plain_option("--learn", type=FILE, metavar="FILE", help="a calibration: used where it is there, written by this run")
@language_option
def run(
    words: tuple[str, ...], job_file: Path | None, gpus: str, fix: bool, anyway: bool, check: bool,
    record: Path | None, learn: Path | None, lang: str | None,
) -> int:
    """Start CMD if it fits the GPUs as they are now; watch it, and explain its end.

    CMD is any command: servers and trainings that `serve`, `train` and `rl` read are computed, other scripts of
    PyTorch traced on a simulated card where torch is installed, anything else starts with a warning, unless --file
    says what it does. What others hold of the cards, MIG and CUDA_VISIBLE_DEVICES count. Exit code: that of CMD; 125
    where it was refused, 126 or 127 where it cannot be started.

    \b
    vramcast run -- vllm serve Qwen/Qwen3-8B --max-model-len 32768
    vramcast run --fix -- torchrun --nproc_per_node 2 train.py --model_name_or_path Qwen/Qwen3-8B ...
    vramcast run --record run.sqlite -- python train.py
    """
    said, begun = words_here(lang), time.monotonic()
    job = watch.guard.Job.of(words, os.environ)
    if not job.words:
        raise click.UsageError("nothing stands behind --: give a command, as in -- vllm serve MODEL")
    calibration = str(learn) if learn is not None and learn.is_file() else ""
    found = watch.guard.judged(job, file=job_file, gpus=gpus, calibration=calibration, in_haste=not check)
    if found.refuses:
        found = watch.guard.judged(job, file=job_file, gpus=gpus, calibration=calibration, with_changes=True)
    took = time.monotonic() - begun
    _said(watch.guard.verdict(found, said))
    if found.refuses and fix and not check:
        job, change = watch.guard.fixed(job, found)
        _said(said("run.fixed", change=change))
    elif found.refuses and not anyway:
        changes = [one.change for one in found.answer.changes if one.fits][:3] if found.answer else []
        _said(said("run.refused", changes=", ".join(changes)) if changes else said("run.refused.nothing"))
        return watch.guard.EXIT_REFUSED
    if check:
        return 0
    if took > watch.guard.UNNOTICED_S and found.command:
        _said(said("run.took", seconds=f"{took:.1f}", what=found.command))
    ended = watch.guard.started(job, record)
    try:
        if text := watch.guard.summed_up(found, ended, said, record=record, learn=learn):
            _said(text)
    except VramcastError as error:  # the command's own end counts
        _said(said.said(str(error)))
    return ended.status


def _said(text: str) -> None:
    click.echo(f"vramcast: {text}", err=True)
