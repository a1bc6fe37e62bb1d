"""`vramcast trace` and `layers`: a module or script as it is, on a simulated card; a model layer by layer."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click
from msgspec.structs import replace

from vramcast import blocks, estimate, report, sources
from vramcast.cli.options import OfScripts
from vramcast.cli.shared import (
    EXIT_DOES_NOT_FIT,
    FILE,
    Reporting,
    coloured,
    exit_of,
    given_options,
    json_option,
    language_option,
    question_options,
    report_option,
    say_written,
)
from vramcast.domain.job import AttentionKernel, require_count
from vramcast.errors import InvalidSpec
from vramcast.question.options import parse_count
from vramcast.question.tracing import TRACE_OPTIONS, TUNE_OPTIONS, build_trace, is_script
from vramcast.report.document import as_text
from vramcast.report.messages import words_here
from vramcast.sources.files import check_writable
from vramcast.units import format_bytes

if TYPE_CHECKING:
    from vramcast.estimate.layers import LayerRow
    from vramcast.report.messages import Words


VIEWS = ("category", "module", "line", "operator")

HUBS: Final = ("hf", "huggingface", "modelscope")
"""Schemes of hub ids."""

TRACED: Final = {"inputs": "input", "arguments": "arg", "amp": "amp", "dtype": "dtype"}
"""Options of models that are run, by their parameters."""


@click.command("trace", cls=OfScripts)
@click.argument("target")
@click.argument("script_arguments", metavar="[-- ARGS]", nargs=-1, type=click.UNPROCESSED)
@question_options(TRACE_OPTIONS)
@click.option("--arg", "arguments", metavar="NAME=VALUE", multiple=True, help="of the factory (repeatable): depth=12")
@click.option("-m", "--as-module", is_flag=True, help="TARGET is a module that is run, as with python -m")
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
def trace(
    target: str, script_arguments: tuple[str, ...], arguments: tuple[str, ...], as_module: bool, views: tuple[str, ...],
    explain: bool, html: Path | None, snapshot: Path | None, report_file: Path | None, as_json: bool, lang: str | None,
    **values: Any,
) -> int:
    """The memory of any PyTorch code, unmodified: it runs on tensors without data that answer as those of a card.

    TARGET is module:factory (also a class or a module), timm:NAME, transformers:MODEL (catalogue name, config.json,
    folder or hub id), diffusers:CONFIG, or a script.py with its arguments behind --: also a notebook.ipynb, - for
    standard input, behind -m a module, and the command line that starts one. Needs the extra `trace`.

    \b
    vramcast trace torchvision.models:resnet50 --input 32x3x224x224 --optimizer adam --amp bf16
    vramcast trace transformers:llama-3.2-1b --seq-len 4k --batch 2 --amp bf16 --gpu rtx-4090
    vramcast trace timm:vit_base_patch16_224 --amp bf16 --find batch
    vramcast trace train.py --gpu a100-sxm4-80gb -- --epochs 1
    vramcast trace train.py --gpu rtx-4090 --vary batch,seq
    vramcast trace --gpu h100-sxm-80gb -- torchrun --nproc_per_node 8 train.py --batch 4
    """
    from vramcast.api.tracing import trace_result, traced_target, varied_target

    check_writable(html, snapshot)
    reporting = Reporting(report_file, "trace").checked()
    runs = as_module or is_script(target)
    if script_arguments and not runs:
        raise InvalidSpec("{} is no script, so nothing may stand behind it; for a factory give --arg", target)
    if arguments and runs:
        raise InvalidSpec("--arg is for factories; what a script takes stands behind --")
    if values.get("vary"):
        for option, value in (("html", html), ("snapshot", snapshot), ("report", report_file), ("by", views)):
            if value:
                raise InvalidSpec("--{} is of one run, and --vary tells of many; leave one of them out", option)
        function = varied_target(
            target, given_options(values), arguments=script_arguments or arguments, is_module=as_module
        )
        click.echo(function.to_json() if as_json else function.text(words_here(lang)), nl=as_json)
        return 0 if function.fits else EXIT_DOES_NOT_FIT
    traced = traced_target(target, given_options(values), arguments=script_arguments or arguments, is_module=as_module)
    if snapshot is not None:
        answer = replace(traced.answer, timeline=str(snapshot))
        traced = replace(traced, answer=answer)
    found, words = trace_result(traced), words_here(lang)
    if as_json:
        click.echo(found.to_json())
    else:
        text = found.text(words, views=views, explain=explain)
        click.echo(coloured(text, report.sentences.tone_of(found)), nl=False)
    if html is not None:
        found.write_html(html, words.language)
    if snapshot is not None:
        found.save(snapshot)
    given = {"model": target} | given_options(values) | {"arg": arguments}
    reporting.write(found, words, as_json=as_json, asked=given, behind=script_arguments)
    say_written(words, html, snapshot, as_json=as_json)
    return exit_of(found)


@click.command("layers")
@click.argument("model")
@click.option("--seq-len", metavar="COUNT", help="positions per sample; by default 1024")
@click.option("--batch", metavar="COUNT", help="samples; by default 1")
@click.option(
    "--dtype-bytes", type=click.Choice(["2", "4"]), help="computed: width of an element; by default 2"
)
@click.option(
    "--attention", type=click.Choice([str(kernel) for kernel in AttentionKernel]), help="computed: by default flash"
)
@click.option("--input", "inputs", metavar="SHAPE", multiple=True, help="traced: 32x3x224x224, ids=BxS:int64")
@click.option("--arg", "arguments", metavar="NAME=VALUE", multiple=True, help="traced: of the factory (repeatable)")
@click.option("--amp", type=click.Choice(["bf16", "fp16"]), help="traced: autocast")
@click.option("--dtype", type=click.Choice(["fp32", "bf16", "fp16"]), help="traced: dtype of the weights")
@json_option
@language_option
def layers(
    model: str, seq_len: str | None, batch: str | None, dtype_bytes: str | None, attention: str | None, as_json: bool,
    lang: str | None, **traced: Any,
) -> int:
    """Each module's parameters, output shape, bytes saved for backward and FLOPs (forward, one micro-batch).

    MODEL is a model of the catalogue, a config.json, a hub id; or anything that `vramcast trace` takes, which is run
    once without data and has temporaries as well: torchvision.models:resnet50, timm:NAME, transformers:MODEL.

    \b
    vramcast layers llama-3.1-8b --seq-len 8k
    vramcast layers torchvision.models:resnet50 --batch 32 --amp bf16
    """
    computed = {"dtype-bytes": dtype_bytes, "attention": attention}
    of_others = computed if _is_traced(model) else {TRACED[name]: value for name, value in traced.items()}
    for name, value in of_others.items():
        if value:
            raise InvalidSpec("--{} says nothing of {}; leave it out", name, model)
    if _is_traced(model):
        rows, total = _traced(model, seq_len, batch, traced)
    else:
        kernel = AttentionKernel(attention or "flash")
        rows, total = _computed(model, seq_len or "1024", batch or "1", int(dtype_bytes or 2), kernel)
    if as_json:
        click.echo(as_text({"schema": 1, "parameters": total, "layers": rows}))
        return 0
    _print(rows, words_here(lang))
    click.echo(f"{words_here(lang)('parameters')}: {total:,}")
    return 0


def _is_traced(model: str) -> bool:
    """Whether a name is that of something to run: scheme:rest, but no hub id and no address."""
    scheme, mark, rest = model.partition(":")
    return bool(mark) and scheme not in HUBS and not rest.startswith("//") and not Path(model).exists()


def _computed(
    model: str, seq_len: str, batch: str, dtype_bytes: int, attention: AttentionKernel
) -> tuple[tuple[LayerRow, ...], int]:
    network = sources.resolve.resolve_model(model)
    rows = estimate.layers.layer_rows(
        network,
        batch=require_count("batch", parse_count("batch", batch)),
        seq_len=require_count("seq-len", parse_count("seq-len", seq_len)),
        dtype_bytes=dtype_bytes,
        attention=attention,
    )
    return rows, blocks.parameters.model.count_parameters(network).total


def _traced(
    model: str, seq_len: str | None, batch: str | None, given: dict[str, Any]
) -> tuple[tuple[LayerRow, ...], int]:
    from vramcast.api.tracing import require_torch

    options = {"seq-len": seq_len, "batch": batch, "input": given["inputs"], "amp": given["amp"]}
    job = build_trace(model, options | {"dtype": given["dtype"]}, arguments=given["arguments"])
    require_torch()
    from vramcast.tracing.layers import traced_layers

    return traced_layers(job)


def _print(rows: Sequence[LayerRow], words: Words) -> None:

    has_temporaries = any(row.temporary_bytes is not None for row in rows)
    header = (
        words("layer"),
        words("kind"),
        words("parameters"),
        words("output_shape"),
        words("saved"),
        *([words("trace.temporaries")] if has_temporaries else []),
        words("flops"),
        "x",
    )
    body = [
        (
            row.path,
            row.kind,
            f"{row.parameters:,}" if row.parameters else "-",
            " x ".join(map(str, row.output_shape)) or "-",
            format_bytes(row.saved_bytes) if row.saved_bytes else "-",
            *([format_bytes(row.temporary_bytes) if row.temporary_bytes else "-"] if has_temporaries else []),
            f"{row.flops:.3g}" if row.flops else "-",
            str(row.repeats),
        )
        for row in rows
    ]
    right = frozenset({2, 4, 5, 6, 7} if has_temporaries else {2, 4, 5, 6})
    click.echo(report.columns.table([header, *body], right=right), nl=False)


@click.command("tune", cls=OfScripts)
@click.argument("script")
@click.argument("script_arguments", metavar="[-- ARGS]", nargs=-1, type=click.UNPROCESSED)
@question_options(TUNE_OPTIONS)
@click.option("--write", "patch", type=FILE, metavar="FILE", help="write the patch there; by default it is printed")
@click.option("--force", is_flag=True, help="with --write: overwrite a file that is there")
@json_option
@language_option
def tune(
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
    from vramcast.api.tracing import check_patch, tuned_script, write_patch

    check_patch(patch, force=force)
    words = words_here(lang)
    found = tuned_script(
        script, given_options(values), arguments=script_arguments,
        say=lambda text: click.echo(words.said(text), err=True),
    )
    found = write_patch(found, patch)
    click.echo(found.to_json() if as_json else found.text(words), nl=as_json)
    return 0 if found.fits else EXIT_DOES_NOT_FIT
