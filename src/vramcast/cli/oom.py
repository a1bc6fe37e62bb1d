"""`vramcast oom`: why memory ran out, how sure that is, and what would help by how much."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from vramcast.cli.shared import Reporting, coloured, json_option, language_option, report_option
from vramcast.errors import InvalidSpec
from vramcast.report.messages import words_here

EXIT_NOTHING_FOUND = 1


@click.command("oom")
@click.argument("text", metavar="[FILE|-]", required=False, type=click.Path(path_type=Path, allow_dash=True))
@click.option(
    "--file", "job_file", type=click.Path(path_type=Path),
    help="the job that failed, a job file of train or serve: what it needs, and what every technique saves of it",
)
@click.option(
    "--snapshot", type=click.Path(path_type=Path),
    help="a torch.cuda.memory snapshot of the process that failed: allocator settings proved by replay",
)
@click.option("--checks", is_flag=True, help="all stability and compatibility checks, computed for the job where given")
@report_option
@json_option
@language_option
def command(
    text: Path | None, job_file: Path | None, snapshot: Path | None, checks: bool, report: Path | None, as_json: bool,
    lang: str | None,
) -> int:
    """Why memory ran out: the cause, how sure that is, what each number means, and what to change.

    FILE is any text: an error message, a traceback, a whole log; PyTorch on any device, TensorFlow, JAX, cuBLAS, NCCL,
    vLLM, SGLang, TensorRT-LLM, llama.cpp, DeepSpeed and others; or a memory snapshot. Without FILE, or with -, standard
    input is read; --checks alone reads nothing. Exit codes: 0 something was found, 1 the text tells of no such failure.

    \b
    vramcast oom train.log
    python train.py 2>&1 | vramcast oom
    vramcast oom train.log --file job.toml
    vramcast oom train.log --snapshot dump.pickle
    """
    from vramcast.api import diagnosis_of
    from vramcast.doctor.failures.diagnose import is_snapshot

    only_checks = checks and text is None and snapshot is None
    if text is None and not only_checks and snapshot is None and _nothing_piped():
        raise InvalidSpec("no text: give a FILE, or pipe one in: python train.py 2>&1 | vramcast oom")
    reporting = Reporting(report, "oom").checked()
    source = None if only_checks or (text is None and snapshot is not None) else text or Path("-")
    found = diagnosis_of(source, job_file=job_file, snapshot=snapshot, every_check=checks)
    words = words_here(lang)
    if as_json:
        from vramcast.report.failure import to_json

        click.echo(to_json(found))
    elif found.findings or found.checks:
        from vramcast.report.failure import render

        click.echo(coloured(render(found, words), "bad"), nl=False)
    if not found.findings and not as_json and not only_checks and (checks or not found.checks):
        recorded = snapshot is not None or (source is not None and is_snapshot(source))
        click.echo(words("failure.no_event" if recorded else "failure.none", name=found.name))
    given = {"model": None if text is None else str(text), "snapshot": snapshot, "checks": checks or None}
    reporting.write(found, words, as_json=as_json, asked=given, file=job_file)
    told = found.findings or only_checks or (found.checks and not checks)
    return 0 if told else EXIT_NOTHING_FOUND


def _nothing_piped() -> bool:
    """Whether standard input is a terminal."""
    return sys.stdin.isatty()
