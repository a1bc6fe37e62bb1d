"""`vramcast plan train`: the best training plans for a goal, and inverse questions."""

from __future__ import annotations

from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING, Any

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
from vramcast.cli.waiting import waiting
from vramcast.errors import InvalidSpec
from vramcast.question.plan_options import PLAN_OPTIONS
from vramcast.report.messages import words_here

if TYPE_CHECKING:
    from vramcast.domain.answer import Answer



@click.command("train")
@click.argument("model", required=False)
@question_options(PLAN_OPTIONS)
@click.option(
    "--file", "job_file", type=click.Path(path_type=Path), help="a job file (TOML or YAML); options win over it"
)
@click.option(
    "--picture", type=click.Path(path_type=Path), help="write cost against speed as a picture: FILE.svg or FILE.html"
)
@click.option("--explain", is_flag=True, help="every technique with when to use it and what it needs")
@report_option
@write_options
@json_option
@language_option
def command(
    model: str | None,
    job_file: Path | None,
    picture: Path | None,
    explain: bool,
    report: Path | None,
    directory: Path | None,
    formats: tuple[str, ...],
    force: bool,
    as_json: bool,
    lang: str | None,
    **values: Any,
) -> int:
    """The best plans to train MODEL on what --on names: fastest, cheapest, fewest GPUs or least memory.

    MODEL is what `vramcast train` takes. Options of `vramcast train` are fixed by naming them, and searched otherwise;
    several values, --tp 1,2,4, leave a choice.

    \b
    vramcast plan train llama-3.1-8b --on 8xh100-sxm-80gb --global-batch 512 --seq-len 8k
    vramcast plan train llama-3.1-70b --on 8x8xh100-sxm-80gb --on 16x8xa100-sxm4-80gb --goal cheapest --tokens 1T
    vramcast plan train llama-3.1-8b --on 8xa100-sxm4-40gb --find largest-batch --engine deepspeed --zero 3
    vramcast plan train --on 8xa100-sxm4-40gb --find largest-model --seq-len 2k
    vramcast plan train qwen3-8b --on 8xh100-sxm-80gb --engine deepspeed --write configs
    vramcast plan train --from pretrain_llama.sh --on aws --max-gpus 64 --goal cheapest
    """
    from vramcast.api import planned_training
    from vramcast.domain.planning import PlanAnswer

    given = {"model": model} | given_options(values)
    writing = Writing(directory, formats, force).checked()
    reporting = Reporting(report, "plan train").checked()
    check_picture(picture)
    with waiting(words_here(lang)) as progress:
        result, job = planned_training(
            given, file=job_file, progress=progress, before=writing.possible
        )
    if isinstance(result, PlanAnswer):
        text = searched(result, picture, as_json=as_json, explain=explain, lang=lang)
        fits = bool(result.plans) or not result.num_plans
    else:
        if picture is not None:
            raise InvalidSpec("--picture shows a search, not the answer of --find; leave out one of them")
        text, fits = _found(result, as_json=as_json, explain=explain, lang=lang), _is_found(result)
    from vramcast.report.verdicts import tone_of

    click.echo(text if as_json else coloured(text, tone_of(result)), nl=as_json)
    reporting.write(result, words_here(lang), as_json=as_json, asked=given, file=job_file)
    if job is not None:
        best = result.plans[0] if isinstance(result, PlanAnswer) else result
        writing.write(job, best, words_here(lang), as_json=as_json)
    return 0 if fits else EXIT_DOES_NOT_FIT


def _found(result: Answer, *, as_json: bool, explain: bool, lang: str | None) -> str:
    """The answer of an inverse question as text or JSON."""
    if as_json:
        from vramcast.report.document import to_json

        return to_json(result, today=date.today())
    from vramcast.report.text import render

    return render(result, words_here(lang), explain=explain, today=date.today())


def _is_found(result: Answer) -> bool:
    return result.found is not None and result.found.what is not None
