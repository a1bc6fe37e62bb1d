"""`vramcast calibrate`: a recorded run beside its prediction, and what later answers learn from it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from vramcast.cli.shared import given_options, json_option, language_option, question_options
from vramcast.question.options import OPTIONS
from vramcast.report.messages import words_here

ASKED = {name: option for name, option in OPTIONS.items() if name != "calibration"}


@click.command("calibrate")
@click.argument("recordings", metavar="RUN...", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("--model", metavar="MODEL", help="that was trained: a name, path or hub id as in `vramcast train`")
@click.option("--gpus", metavar="[NODESx]COUNTxGPU", help="that it ran on: 8xh100-sxm-80gb, t4")
@click.option(
    "--file", "job_file", type=click.Path(path_type=Path),
    help="a job file of `train`, or of `serve`; options win over it",
)
@question_options(ASKED)
@click.option(
    "--save", type=click.Path(path_type=Path), metavar="FILE",
    help="write what `vramcast train --calibration` reads",
)
@json_option
@language_option
def command(
    recordings: tuple[Path, ...], model: str | None, gpus: str | None, job_file: Path | None, save: Path | None,
    as_json: bool, lang: str | None, **values: Any,
) -> int:
    """What a run measured beside what was predicted for it, entry by entry, underestimates first.

    RUN is a recording of `vramcast.record_memory` or of `vramcast watch --record`; of several ranks, all their files.

    \b
    vramcast calibrate run.sqlite --file job.toml
    vramcast calibrate run.sqlite --model qwen3-8b --gpus h100 --seq-len 4k --save calibration.toml
    vramcast train qwen3-8b --gpus h100 --seq-len 4k --calibration calibration.toml
    """
    from vramcast.report.measured import render_run, run_json
    from vramcast.watch.calibrate import calibration_of

    given = {"model": model, "gpus": gpus} | given_options(values)
    found = calibration_of(recordings, given, file=job_file, save=save)
    if as_json:
        click.echo(run_json(found))
    else:
        click.echo(render_run(found, words_here(lang), saved=None if save is None else str(save)), nl=False)
    return 0
