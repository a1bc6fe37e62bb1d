"""`vramcast plan serve`: the best deployments for a load."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from vramcast.cli.shared import (
    EXIT_DOES_NOT_FIT,
    Reporting,
    Writing,
    check_picture,
    coloured,
    given_options,
    json_option,
    language_option,
    question_options,
    report_option,
    searched,
    write_options,
)
from vramcast.question.plan_serving import PLAN_SERVE_OPTIONS
from vramcast.report.messages import words_here


@click.command("serve")
@click.argument("model", required=False)
@question_options(PLAN_SERVE_OPTIONS)
@click.option(
    "--file", "job_file", type=click.Path(path_type=Path), help="a job file (TOML or YAML); options win over it"
)
@click.option(
    "--picture", type=click.Path(path_type=Path), help="write cost against speed as a picture: FILE.svg or FILE.html"
)
@report_option
@write_options
@json_option
@language_option
def command(
    model: str | None,
    job_file: Path | None,
    picture: Path | None,
    report: Path | None,
    directory: Path | None,
    formats: tuple[str, ...],
    force: bool,
    as_json: bool,
    lang: str | None,
    **values: Any,
) -> int:
    """The best deployments of MODEL on what --on names: cheapest per token, fastest, fewest GPUs or least memory.

    --concurrency is how many users there are at once, over all replicas; --ttft and --per-user are what each of them
    gets at least.

    \b
    vramcast plan serve llama-3.1-8b --on aws --concurrency 64 --input-len 2000 --output-len 300 --per-user 20
    vramcast plan serve llama-3.1-70b --on 8xh100-sxm-80gb --goal fastest --engine vllm,sglang --weights stored,fp8
    vramcast plan serve --from serve.sh --on any --concurrency 32
    """
    from vramcast.api import planned_serving

    given = {"model": model} | given_options(values)
    writing = Writing(directory, formats, force).checked()
    reporting = Reporting(report, "plan serve").checked()
    check_picture(picture)
    result, job = planned_serving(given, file=job_file)
    text = searched(result, picture, as_json=as_json, explain=False, lang=lang)
    from vramcast.report.verdicts import tone_of

    click.echo(text if as_json else coloured(text, tone_of(result)), nl=as_json)
    reporting.write(result, words_here(lang), as_json=as_json, asked=given, file=job_file)
    if job is not None:
        writing.write(job, result.plans[0], words_here(lang), as_json=as_json)
    return 0 if result.plans else EXIT_DOES_NOT_FIT
