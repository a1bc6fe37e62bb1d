"""`vramcast rl`: memory of reinforcement-learning post-training, stage by stage."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from vramcast import api, question
from vramcast.cli.question_command import asking
from vramcast.cli.shared import (
    Reporting,
    answer_options,
    answer_text,
    exit_of,
    given_options,
    report_option,
    script_options,
    with_cards_here,
    write_script,
)
from vramcast.question.tables import POST_TRAINING_OPTIONS
from vramcast.report.messages import words_here


@asking(
    "rl", POST_TRAINING_OPTIONS, answer_options, script_options, report_option,
    gpus="8xh100-sxm-80gb, 4x8xa100-sxm-80gb",
)
def command(
    job_file: Path | None, save: Path | None, all_ranks: bool, explain: bool, directory: Path | None, force: bool,
    report_file: Path | None, as_json: bool, lang: str | None, **values: Any,
) -> int:
    """Memory of PPO, GRPO and their kin: trainer and engine on the same cards, stage by stage.

    MODEL is a catalogue name (see `vramcast models`), a path to a config.json or directory, or a hub id.
    Behind -- stands the command that starts the training, as it is typed; it is read, not run.

    \b
    vramcast rl qwen2.5-7b --gpus 8xh100-sxm-80gb --algorithm grpo --samples 5 --micro-batch 8 --reference
    vramcast rl qwen2.5-7b --gpus 8xa100-sxm-80gb --framework verl@0.6 --rollout vllm --offload-parameters cpu
    vramcast rl --gpus 8xh100-sxm-80gb --from run_grpo.sh
    vramcast rl --gpus 8xh100-sxm-80gb -- python3 -m verl.trainer.main_ppo algorithm.adv_estimator=grpo ...
    """
    given = with_cards_here(given_options(values))
    reporting = Reporting(report_file, "rl").checked()
    result = api.post_training_answer(given, file=job_file)
    if save is not None:
        question.files.save_job(save, given, file=job_file, table=POST_TRAINING_OPTIONS)
    click.echo(answer_text(result, as_json=as_json, lang=lang, all_ranks=all_ranks, explain=explain), nl=as_json)
    if directory is not None:
        job = api.post_training_job_of(given, file=job_file, found=result.found)
        write_script(job, directory, words_here(lang), force=force, as_json=as_json)
    reporting.write(result, words_here(lang), as_json=as_json, asked=given, file=job_file)
    return exit_of(result)
