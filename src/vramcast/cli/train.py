"""`vramcast train`: memory of one training plan."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import click

from vramcast import api, emit, estimate, question
from vramcast.cli.options import plain_option
from vramcast.cli.question_command import asking
from vramcast.cli.shared import (
    FILE,
    Reporting,
    Writing,
    answer_options,
    answer_text,
    exit_of,
    fix_option,
    given_options,
    report_option,
    which_cards,
    with_cards_here,
    write_options,
)
from vramcast.domain.job import Job
from vramcast.question.options import OPTIONS
from vramcast.report.messages import words_here

SNAPSHOT: Final = plain_option(
    "--snapshot", type=FILE, metavar="FILE",
    help="write the run of the fullest rank as a memory snapshot, which memory_viz and `vramcast replay` open",
)


@asking(
    "train", OPTIONS, answer_options, SNAPSHOT, report_option, write_options, fix_option,
    gpus="8xh100-sxm-80gb, 4x8xa100-sxm-80gb, t4, aws:p5.48xlarge, 4xaws:p5.48xlarge",
)
def command(
    job_file: Path | None, save: Path | None, all_ranks: bool, explain: bool, snapshot: Path | None,
    report_file: Path | None, directory: Path | None, formats: tuple[str, ...], force: bool, fix: bool, as_json: bool,
    lang: str | None, **values: Any,
) -> int:
    """Memory of one training plan on every rank: allocated, reserved, device.

    MODEL is a catalogue name (see `vramcast models`), a path to a config.json, directory, safetensors or GGUF file, or
    a hub id; leave it out and give --params, --layers and --hidden for plain numbers.
    Behind -- stands the command that starts the training, as it is typed; it is read, not run.

    \b
    vramcast train llama-3.1-8b --gpus 8xh100-sxm-80gb --engine torchtitan --seq-len 8k
    vramcast train qwen3-8b --gpus 8xa100-sxm4-80gb --engine deepspeed --zero 3 --write configs
    vramcast train qwen3-8b --gpus 8xa100-sxm4-80gb --seq-len 4k --from ds_config.json
    vramcast train --gpus h100 -- torchrun --nproc_per_node 8 pretrain_gpt.py --tensor-model-parallel-size 2 ...
    """
    given = with_cards_here(given_options(values))
    writing = Writing(directory, formats, force, fix).checked()
    reporting = Reporting(report_file, "train").checked()
    files = any((save, snapshot, report_file, directory))
    code = which_cards("train", given, job_file, lang=lang, as_json=as_json, files=files)
    if code is not None:
        return code
    job, result = api.train_answer(given, file=job_file)
    if save is not None:
        question.files.save_job(save, given, file=job_file, table=OPTIONS)
    text = answer_text(result, as_json=as_json, lang=lang, all_ranks=all_ranks, explain=explain)
    click.echo(text, nl=as_json)
    if snapshot is not None:
        answering = estimate.training if isinstance(job, Job) else estimate.diffusion
        emit.memory_snapshot.save_snapshot(answering.recorded(job), snapshot)
    reporting.write(result, words_here(lang), as_json=as_json, asked=given, file=job_file)
    writing.write(job, result, words_here(lang), as_json=as_json)
    writing.fixed("train", given, result, words_here(lang), as_json=as_json)
    return exit_of(result)
