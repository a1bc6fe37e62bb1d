"""`vramcast train`: memory of one training plan."""

from __future__ import annotations

from datetime import date
from pathlib import Path
from typing import Any

import click

from vramcast.cli.shared import (
    Reporting,
    Writing,
    coloured,
    exit_of,
    given_options,
    json_option,
    language_option,
    question_options,
    report_option,
    write_options,
)
from vramcast.question.options import OPTIONS
from vramcast.report.messages import words_here


@click.command("train")
@click.argument("model", required=False)
@click.option(
    "--gpus", metavar="[NODESx]COUNTxGPU|[COUNTx]INSTANCE",
    help="8xh100-sxm-80gb, 4x8xa100-sxm-80gb, t4, aws:p5.48xlarge, 4xaws:p5.48xlarge",
)
@question_options(OPTIONS)
@click.option(
    "--file", "job_file", type=click.Path(path_type=Path), help="a job file (TOML or YAML); options win over it"
)
@click.option("--save", type=click.Path(path_type=Path), help="write the question as a job file")
@click.option("--all-ranks", is_flag=True, help="the ledger of every rank role")
@click.option("--explain", is_flag=True, help="formula with the numbers put in, basis and source of every entry")
@click.option(
    "--snapshot", type=click.Path(path_type=Path), metavar="FILE",
    help="write the run of the fullest rank as a memory snapshot, which memory_viz and `vramcast replay` open",
)
@report_option
@write_options
@json_option
@language_option
def command(
    model: str | None,
    gpus: str | None,
    job_file: Path | None,
    save: Path | None,
    all_ranks: bool,
    explain: bool,
    snapshot: Path | None,
    report: Path | None,
    directory: Path | None,
    formats: tuple[str, ...],
    force: bool,
    as_json: bool,
    lang: str | None,
    **values: Any,
) -> int:
    """Memory of one training plan on every rank: allocated, reserved, device.

    MODEL is a catalogue name (see `vramcast models`), a path to a config.json, directory, safetensors or GGUF file, or
    a hub id; leave it out and give --params, --layers and --hidden for plain numbers.

    \b
    vramcast train llama-3.1-8b --gpus 8xh100-sxm-80gb --engine torchtitan --seq-len 8k
    vramcast train qwen3-8b --gpus 8xa100-sxm4-80gb --engine deepspeed --zero 3 --write configs
    vramcast train qwen3-8b --gpus 8xa100-sxm4-80gb --seq-len 4k --from ds_config.json
    """
    from vramcast.api import train_answer

    given = {"model": model, "gpus": gpus} | given_options(values)
    writing = Writing(directory, formats, force).checked()
    reporting = Reporting(report, "train").checked()
    job, result = train_answer(given, file=job_file)
    if save is not None:
        from vramcast.question.files import save_job
        from vramcast.question.options import OPTIONS

        save_job(save, given, file=job_file, table=OPTIONS)
    today = date.today()
    if as_json:
        from vramcast.report.document import to_json

        click.echo(to_json(result, today=today))
    else:
        from vramcast.report.text import render
        from vramcast.report.verdicts import tone_of

        text = render(result, words_here(lang), all_ranks=all_ranks, explain=explain, today=today)
        click.echo(coloured(text, tone_of(result)), nl=False)
    if snapshot is not None:
        from vramcast.emit.memory_snapshot import save_snapshot
        from vramcast.estimate.training import recorded

        save_snapshot(recorded(job), snapshot)
    reporting.write(result, words_here(lang), as_json=as_json, asked=given, file=job_file)
    writing.write(job, result, words_here(lang), as_json=as_json)
    return exit_of(result)
