"""`vramcast run`: another tool's command, judged by the cards as they are now before it is started."""

from __future__ import annotations

import os
import time
from pathlib import Path

import click

from vramcast.cli.options import WithHelp, plain_option
from vramcast.cli.shared import FILE, file_option, language_option
from vramcast.errors import VramcastError
from vramcast.report.messages import words_here
from vramcast.watch import guard


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
def command(
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
    job = guard.Job.of(words, os.environ)
    if not job.words:
        raise click.UsageError("nothing stands behind --: give a command, as in -- vllm serve MODEL")
    calibration = str(learn) if learn is not None and learn.is_file() else ""
    found = guard.judged(job, file=job_file, gpus=gpus, calibration=calibration, in_haste=not check)
    if found.refuses:
        found = guard.judged(job, file=job_file, gpus=gpus, calibration=calibration, with_changes=True)
    took = time.monotonic() - begun
    _say(guard.verdict(found, said))
    if found.refuses and fix and not check:
        job, change = guard.fixed(job, found)
        _say(said("run.fixed", change=change))
    elif found.refuses and not anyway:
        changes = [one.change for one in found.answer.changes if one.fits][:3] if found.answer else []
        _say(said("run.refused", changes=", ".join(changes)) if changes else said("run.refused.nothing"))
        return guard.EXIT_REFUSED
    if check:
        return 0
    if took > guard.UNNOTICED_S and found.command:
        _say(said("run.took", seconds=f"{took:.1f}", what=found.command))
    ended = guard.started(job, record)
    try:
        if text := guard.summed_up(found, ended, said, record=record, learn=learn):
            _say(text)
    except VramcastError as error:  # the command's own end counts
        _say(said.said(str(error)))
    return ended.status


def _say(text: str) -> None:
    click.echo(f"vramcast: {text}", err=True)
