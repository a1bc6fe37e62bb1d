"""`vramcast trace`: a module or script as it is, on a simulated card."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
from msgspec.structs import replace

from vramcast.cli.shared import (
    Reporting,
    coloured,
    exit_of,
    given_options,
    json_option,
    language_option,
    question_options,
    report_option,
)
from vramcast.errors import InvalidSpec, SourceError
from vramcast.question.tracing import TRACE_OPTIONS, is_script
from vramcast.report.messages import words_here

FILE = click.Path(path_type=Path)
VIEWS = ("category", "module", "line", "operator")


@click.command("trace")
@click.argument("target")
@click.argument("script_arguments", metavar="[-- ARGS]", nargs=-1, type=click.UNPROCESSED)
@question_options(TRACE_OPTIONS)
@click.option("--arg", "arguments", metavar="NAME=VALUE", multiple=True, help="of the factory (repeatable): depth=12")
@click.option(
    "--by", "views", type=click.Choice(VIEWS), multiple=True,
    help="how to cut the peak (repeatable); by default category, module and line",
)
@click.option("--explain", is_flag=True, help="basis and source of every entry of the ledger")
@click.option("--html", type=FILE, metavar="FILE", help="write the run as one page with a timeline to look into")
@click.option(
    "--snapshot", type=FILE, metavar="FILE",
    help="write the run as a memory snapshot, which memory_viz and `vramcast replay` open",
)
@report_option
@json_option
@language_option
def command(
    target: str, script_arguments: tuple[str, ...], arguments: tuple[str, ...], views: tuple[str, ...], explain: bool,
    html: Path | None, snapshot: Path | None, report: Path | None, as_json: bool, lang: str | None, **values: Any,
) -> int:
    """The memory of any PyTorch code, unmodified: it runs on tensors without data that answer as those of a card.

    TARGET is module:factory (also a class or a module), timm:NAME, transformers:MODEL (catalogue name, config.json,
    folder or hub id), diffusers:CONFIG, or a script.py with its arguments behind --. Needs the extra `trace`.

    \b
    vramcast trace torchvision.models:resnet50 --input 32x3x224x224 --optimizer adam --amp bf16
    vramcast trace transformers:llama-3.2-1b --seq-len 4k --batch 2 --amp bf16 --gpu rtx-4090
    vramcast trace timm:vit_base_patch16_224 --amp bf16 --find batch
    vramcast trace train.py --gpu a100-sxm4-80gb -- --epochs 1
    """
    from vramcast.api.trace_result import trace_result
    from vramcast.api.tracing import traced_target

    for path in (html, snapshot):
        _check_folder(path)
    reporting = Reporting(report, "trace").checked()
    if script_arguments and not is_script(target):
        raise InvalidSpec(f"{target} is no script, so nothing may stand behind it; for a factory give --arg")
    if arguments and is_script(target):
        raise InvalidSpec("--arg is for factories; what a script takes stands behind --")
    traced = traced_target(target, given_options(values), arguments=script_arguments or arguments)
    if snapshot is not None:
        answer = replace(traced.answer, timeline=str(snapshot))
        traced = replace(traced, answer=answer)
    found, words = trace_result(traced), words_here(lang)
    if as_json:
        click.echo(found.to_json())
    else:
        from vramcast.report.verdicts import tone_of

        text = found.text(words, views=views, explain=explain)
        click.echo(coloured(text, tone_of(found)), nl=False)
    if html is not None:
        found.write_html(html, words.language)
    if snapshot is not None:
        found.save(snapshot)
    given = {"model": target} | given_options(values) | {"arg": arguments}
    reporting.write(found, words, as_json=as_json, asked=given, behind=script_arguments)
    for path in (html, snapshot):
        if path is not None:
            click.echo(words("replay.written", path=path), err=as_json)
    return exit_of(found)


def _check_folder(path: Path | None) -> None:
    """Refuse before any work a path that cannot be written to after it."""
    if path is not None and not path.parent.is_dir():
        raise SourceError(f"{path}: No such file or directory; name a folder that is there")
    if path is not None and path.is_dir():
        raise SourceError(f"{path}: is a folder; name a file in it")
