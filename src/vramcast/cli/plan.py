"""`vramcast plan train`, `plan serve` and `plan rl`: the best plans for a goal or a load, and inverse questions."""

from __future__ import annotations

from datetime import date
from pathlib import Path
from typing import Any, Final

import click

from vramcast import api, report
from vramcast.cli.main import LazyGroup
from vramcast.cli.question_command import asking
from vramcast.cli.shared import (
    EXIT_DOES_NOT_FIT,
    Reporting,
    Writing,
    answer_text,
    coloured,
    file_option,
    given_options,
    picture_option,
    report_option,
    script_options,
    waiting,
    with_cards_here,
    write_options,
    write_script,
)
from vramcast.domain.planning import PlanAnswer
from vramcast.errors import InvalidSpec
from vramcast.question.plan_serving import PLAN_SERVE_OPTIONS
from vramcast.question.tables import PLAN_OPTIONS, POST_TRAINING_OPTIONS
from vramcast.report.messages import words_here

COMMANDS: Final[dict[str, tuple[str, str]]] = {
    "train": ("plan:train", "the best training plans for a goal, and what a box can train"),
    "serve": ("plan:serve", "the best deployments for a load: cheapest per token, fastest, fewest GPUs"),
    "rl": ("plan:rl", "the fastest step of post-training: placement, parallelism, offloads, micro-batches, engine"),
}


@click.group("plan", cls=LazyGroup, commands_of=COMMANDS)
def command() -> None:
    """Find what to run, and on what."""


EXPLAIN: Final = click.option(
    "--explain", is_flag=True, help="every technique with when to use it and what it needs"
)


@asking("train", PLAN_OPTIONS, file_option, picture_option, EXPLAIN, report_option, write_options)
def train(
    job_file: Path | None, picture: Path | None, explain: bool, report_file: Path | None, directory: Path | None,
    formats: tuple[str, ...], force: bool, as_json: bool, lang: str | None, **values: Any,
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
    given = with_cards_here(given_options(values), option="on")
    writing = Writing(directory, formats, force).checked()
    reporting = Reporting(report_file, "plan train").checked()
    if picture is not None:
        report.picture.check_picture(picture)  # before any work
    with waiting(words_here(lang)) as progress:
        result, job = api.planned_training(given, file=job_file, progress=progress, before=writing.possible)
    if isinstance(result, PlanAnswer):
        text = _searched(result, picture, as_json=as_json, explain=explain, lang=lang)
        fits = bool(result.plans) or not result.num_plans
    else:
        if picture is not None:
            raise InvalidSpec("--picture shows a search, not the answer of --find; leave out one of them")
        text = answer_text(result, as_json=as_json, lang=lang, explain=explain)
        fits = result.found is not None and result.found.what is not None
    click.echo(text, nl=as_json)
    reporting.write(result, words_here(lang), as_json=as_json, asked=given, file=job_file)
    if job is not None:
        best = result.plans[0] if isinstance(result, PlanAnswer) else result
        writing.write(job, best, words_here(lang), as_json=as_json)
    return 0 if fits else EXIT_DOES_NOT_FIT


@asking("serve", PLAN_SERVE_OPTIONS, file_option, picture_option, report_option, write_options)
def serve(
    job_file: Path | None, picture: Path | None, report_file: Path | None, directory: Path | None,
    formats: tuple[str, ...], force: bool, as_json: bool, lang: str | None, **values: Any,
) -> int:
    """The best deployments of MODEL on what --on names: cheapest per token, fastest, fewest GPUs or least memory.

    --concurrency is how many users there are at once, over all replicas; --ttft and --per-user are what each of them
    gets at least. --rate is how many requests arrive in a second, --slo what 90 % of them are promised.

    \b
    vramcast plan serve llama-3.1-8b --on aws --concurrency 64 --input-len 2000 --output-len 300 --per-user 20
    vramcast plan serve llama-3.1-70b --on 8xh100-sxm-80gb --goal fastest --engine vllm,sglang --weights stored,fp8
    vramcast plan serve llama-3.1-8b --on aws --rate 20 --input 2k --output 300 --slo "ttft<2s,tpot<50ms"
    vramcast plan serve --from serve.sh --on any --concurrency 32
    """
    given = with_cards_here(given_options(values), option="on")
    writing = Writing(directory, formats, force).checked()
    reporting = Reporting(report_file, "plan serve").checked()
    if picture is not None:
        report.picture.check_picture(picture)  # before any work
    with waiting(words_here(lang)) as progress:
        result, job = api.planned_serving(given, file=job_file, progress=progress)
    click.echo(_searched(result, picture, as_json=as_json, explain=False, lang=lang), nl=as_json)
    reporting.write(result, words_here(lang), as_json=as_json, asked=given, file=job_file)
    if job is not None:
        writing.write(job, result.plans[0], words_here(lang), as_json=as_json)
    return 0 if result.plans else EXIT_DOES_NOT_FIT


@asking(
    "rl", {name: option for name, option in POST_TRAINING_OPTIONS.items() if name != "find"}, file_option,
    script_options, report_option, gpus="8xh100-sxm-80gb, 4x8xa100-sxm-80gb",
)
def rl(
    job_file: Path | None, directory: Path | None, force: bool, report_file: Path | None, as_json: bool,
    lang: str | None, **values: Any,
) -> int:
    """The fastest step of post-training that fits: what `vramcast rl` answers, searched.

    Options of `vramcast rl` are fixed by naming them here; the engine's tensor parallelism and share of the card, what
    is offloaded and computed again, micro-batches and what splits the trainer are searched otherwise, and with --ahead
    also the cards of the engine's own. What a file says of them is where the search begins, and is searched, too.

    \b
    vramcast plan rl qwen2.5-7b --gpus 8xh100-sxm-80gb --samples 5 --reference
    vramcast plan rl --gpus 8xh100-sxm-80gb --from run_grpo.sh --rollout-tp 2
    """
    given = with_cards_here(given_options(values))
    reporting = Reporting(report_file, "rl").checked()
    result = api.post_training_answer(given | {"find": "fastest-step"}, file=job_file)
    click.echo(answer_text(result, as_json=as_json, lang=lang), nl=as_json)
    reporting.write(result, words_here(lang), as_json=as_json, asked=given, file=job_file)
    if directory is not None and result.found is not None and result.found.what is not None:
        job = api.post_training_job_of(given, file=job_file, found=result.found)
        write_script(job, directory, words_here(lang), force=force, as_json=as_json)
    return 0 if result.found is not None and result.found.what is not None else EXIT_DOES_NOT_FIT


def _searched(result: PlanAnswer, picture: Path | None, *, as_json: bool, explain: bool, lang: str | None) -> str:
    """The answer of a search as text or JSON, its picture written."""
    words, today = words_here(lang), date.today()
    if picture is not None:
        report.picture.write_picture(picture, result.front, words)
    if as_json:
        return report.document.plan_json(result, today=today)

    return coloured(report.plan.render(result, words, explain=explain, today=today), report.sentences.tone_of(result))
