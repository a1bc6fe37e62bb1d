"""`vramcast serve`: memory, KV capacity and concurrency of one serving plan."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import click

from vramcast import api, question, report
from vramcast.cli.options import plain_option
from vramcast.cli.question_command import asking
from vramcast.cli.shared import (
    FILE,
    Reporting,
    Writing,
    answer_options,
    answer_text,
    coloured,
    exit_of,
    fix_option,
    given_options,
    report_option,
    which_cards,
    with_cards_here,
    write_options,
)
from vramcast.errors import InvalidSpec
from vramcast.question.tables import SERVE_OPTIONS
from vramcast.report.messages import words_here

RECONCILE: Final = plain_option(
    "--reconcile", "log", type=FILE,
    help="a start-up log of vLLM, SGLang, TensorRT-LLM or llama.cpp: measured beside predicted, entry by entry",
)
SAVE: Final = plain_option("--save-calibration", type=FILE, help="with --reconcile: write what --calibration reads")


@asking(
    "serve", SERVE_OPTIONS, answer_options, RECONCILE, SAVE, report_option, write_options, fix_option,
    gpus="2xl40s, 8xh100-sxm-80gb, t4, aws:g6e.12xlarge",
)
def command(
    job_file: Path | None, save: Path | None, all_ranks: bool, explain: bool, log: Path | None,
    save_calibration: Path | None, report_file: Path | None, directory: Path | None, formats: tuple[str, ...],
    force: bool, fix: bool, as_json: bool, lang: str | None, **values: Any,
) -> int:
    """Memory of one serving plan: weights, KV cache, activations, graphs; how much context and how many users.

    MODEL is a catalogue name (see `vramcast models`), a path to a config.json, directory, safetensors or GGUF file, or
    a hub id; leave it out and give --params, --layers and --hidden for plain numbers.
    A diffusion pipeline is run by diffusers or, with --engine, by stable-diffusion.cpp.
    Behind -- stands the command of a server as it is typed, variables before it included; it is read, not run.

    \b
    vramcast serve --gpus h100 -- vllm serve Qwen/Qwen3-32B -tp 2 --max-model-len 32768
    vramcast serve llama-3.1-8b --gpus 2xl40s --context 32k --concurrency 16 --engine vllm@0.19
    vramcast serve llama-3.1-70b --gpus l40s --context 32k --concurrency 4 --find fewest-gpus
    vramcast serve flux.1-dev --gpus rtx-4090 --height 1024 --width 1024 --offload model --weights nf4
    vramcast serve --reconcile vllm.log --gpus h100-sxm-80gb
    """
    given = with_cards_here(given_options(values))
    writing = Writing(directory, formats, force, fix).checked()
    reporting = Reporting(report_file, "serve").checked()
    if directory is not None and (log is not None or "find" in given):
        raise InvalidSpec("--write writes the plan that the options say; give it without --find and --reconcile")
    if report_file is not None and log is not None:
        raise InvalidSpec("--report writes the answer to a question, not a comparison; give it without --reconcile")
    if log is not None:
        if "find" in given:
            raise InvalidSpec("--find looks for a plan, --reconcile compares the one of a log; give one of them")
        return _reconciled(log, given, job_file, save_calibration, as_json=as_json, lang=lang)
    if save_calibration is not None:
        raise InvalidSpec("--save-calibration needs --reconcile LOG: it saves what a log teaches")
    files = any((save, report_file, directory))
    code = which_cards("serve", given, job_file, lang=lang, as_json=as_json, files=files)
    if code is not None:
        return code
    result = api.serve_answer(given, file=job_file)
    if save is not None:
        question.files.save_job(save, given, file=job_file, table=SERVE_OPTIONS)
    text = answer_text(result, as_json=as_json, lang=lang, all_ranks=all_ranks, explain=explain)
    click.echo(text, nl=as_json)
    reporting.write(result, words_here(lang), as_json=as_json, asked=given, file=job_file)
    if directory is not None:
        writing.write(api.serve_job_of(given, file=job_file), result, words_here(lang), as_json=as_json)
    writing.fixed("serve", given, result, words_here(lang), as_json=as_json)
    return exit_of(result)


def _reconciled(
    log: Path, given: dict[str, Any], job_file: Path | None, saved: Path | None, *, as_json: bool, lang: str | None
) -> int:
    """`--reconcile`: the log beside its prediction."""
    found = api.reconcile(log, **given, file=job_file, save_calibration=saved)
    if as_json:
        click.echo(report.measured.log_json(found))
    else:
        text = report.measured.render_log(found, words_here(lang), saved=str(saved) if saved is not None else None)
        click.echo(coloured(text, "good" if found.largest is None else "bad"), nl=False)
    return exit_of(found.answer)
