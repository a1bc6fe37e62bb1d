"""`vramcast tune`: what makes a training script faster, or lets it fit, as a patch of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from vramcast.cli.shared import (
    EXIT_DOES_NOT_FIT,
    FILE,
    given_options,
    json_option,
    language_option,
    question_options,
)
from vramcast.question.tuning import TUNE_OPTIONS
from vramcast.report.messages import words_here


@click.command("tune")
@click.argument("script")
@click.argument("script_arguments", metavar="[-- ARGS]", nargs=-1, type=click.UNPROCESSED)
@question_options(TUNE_OPTIONS)
@click.option("--write", "patch", type=FILE, metavar="FILE", help="write the patch there; by default it is printed")
@click.option("--force", is_flag=True, help="with --write: overwrite a file that is there")
@json_option
@language_option
def command(
    script: str, script_arguments: tuple[str, ...], patch: Path | None, force: bool, as_json: bool, lang: str | None,
    **values: Any,
) -> int:
    """The changes that make a training script faster on a card, or let it fit, as a patch that applies.

    SCRIPT is a file of Python, its arguments behind --. Tried are a fused optimizer, the kernel of attention,
    torch.compile, the micro-batch against accumulation, recomputation of the modules that repeat, activations on the
    host; with --allow also what changes the numbers. Every candidate is the changed source, traced, so what is said of
    the patch was seen of it. The script itself is not touched. Needs the extra `trace`.

    \b
    vramcast tune train.py --gpu rtx-4090
    vramcast tune train.py --gpu rtx-4090 --goal tokens/s --allow bf16,8bit --write tune.patch
    vramcast tune train.py --gpu t4 --goal memory -- --epochs 1
    """
    from vramcast.api.tuning import check_patch, tuned_script, write_patch

    check_patch(patch, force=force)
    words = words_here(lang)
    found = tuned_script(
        script, given_options(values), arguments=script_arguments,
        say=lambda text: click.echo(words.said(text), err=True),
    )
    found = write_patch(found, patch)
    click.echo(found.to_json() if as_json else found.text(words), nl=as_json)
    return 0 if found.fits else EXIT_DOES_NOT_FIT
