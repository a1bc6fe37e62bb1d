"""`vramcast replay`, `oom` and `calibrate`: recordings, failures and runs, explained."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any, Final

import click

from vramcast import api, emit, report, watch
from vramcast.cli.options import WithHelp, plain_option
from vramcast.cli.shared import (
    FILE,
    Reporting,
    coloured,
    given_options,
    json_option,
    language_option,
    question_options,
    report_option,
    say_written,
)
from vramcast.doctor import failures
from vramcast.errors import InvalidSpec
from vramcast.question.options import OPTIONS
from vramcast.report.messages import words_here
from vramcast.sources.files import check_writable, write_whole

EXIT_NOTHING_FOUND = 1
UNCALIBRATED = {name: option for name, option in OPTIONS.items() if name != "calibration"}


@click.command("replay", cls=WithHelp)
@click.argument("snapshot", type=FILE)
@plain_option("--against", type=FILE, metavar="FILE", help="an earlier recording: what grew since, or between two runs")
@plain_option("--device", type=int, metavar="N", help="only this device; by default all that are in the recording")
@plain_option(
    "--alloc-conf", "confs", metavar="TEXT", multiple=True,
    help='replay under this PYTORCH_CUDA_ALLOC_CONF as well (repeatable): "max_split_size_mb:128"',
)
@plain_option("--all-confs", is_flag=True, help="replay under every setting that usually helps; say which would")
@plain_option("--capacity", metavar="SIZE", help="what those replays may reserve: 24GiB; else what the recording says")
@plain_option("--leaks", is_flag=True, help="what grows step by step")
@plain_option("--top", type=click.IntRange(1, 1000), default=10, show_default=True, help="rows of each list")
@plain_option("--html", type=FILE, metavar="FILE", help="write everything as one page with a timeline to look into")
@plain_option("--perfetto", type=FILE, metavar="FILE", help="write the memory as counters for Perfetto and Chrome")
@plain_option("--write-snapshot", type=FILE, metavar="FILE", help="write it as a snapshot that torch's viewers open")
@report_option
@json_option
@language_option
def replay(
    snapshot: Path, against: Path | None, device: int | None, confs: tuple[str, ...], all_confs: bool,
    capacity: str | None, leaks: bool, top: int, html: Path | None, perfetto: Path | None,
    write_snapshot: Path | None, report_file: Path | None, as_json: bool, lang: str | None,
) -> int:
    """What a memory recording shows: its peak and who held it, holes, leaks, and what other settings would have done.

    SNAPSHOT is what torch.cuda.memory._dump_snapshot wrote (pickle or JSON, also gzipped), a profiler trace with memory
    events, or a timeline of vramcast.

    \b
    vramcast replay snapshot.pickle --all-confs --html snapshot.html
    vramcast replay crash.pickle --capacity 24GiB --alloc-conf expandable_segments:True
    vramcast replay after.pickle --against before.pickle --leaks
    """
    check_writable(html, perfetto, write_snapshot)
    reporting = Reporting(report_file, "replay").checked()
    found = api.replay(
        snapshot, against=against, device=device, alloc_conf=confs, all_confs=all_confs, capacity=capacity,
        leaks=leaks, top=top,
    )
    words = words_here(lang)
    click.echo(found.to_json() if as_json else found.text(words), nl=as_json)
    recording = found.devices[0].snapshot
    if html is not None:
        found.write_html(html, words.language)
    if perfetto is not None:
        counters = {one.device: one.replayed for one in found.devices}
        write_whole(perfetto, emit.memory_snapshot.write_counters(recording, counters))
    if write_snapshot is not None:
        write_whole(write_snapshot, emit.memory_snapshot.write_snapshot(recording))
    given = {
        "model": str(snapshot), "against": against, "device": device, "alloc-conf": confs, "capacity": capacity,
        "all-confs": all_confs or None, "leaks": leaks or None,
    }
    reporting.write(found, words, as_json=as_json, asked=given)
    say_written(words, html, perfetto, write_snapshot, as_json=as_json)
    return 0


WORDS_OF_TEXT: Final = 5
"""An argument of at least so many words that names no file is the text itself."""


def _text_or_path(given: str) -> str | Path:
    """A message as it was pasted, or the path of a text."""
    named = len(given.split()) < WORDS_OF_TEXT or os.path.exists(given)  # noqa: PTH110  # a text is too long for a path
    return Path(given) if named else given


@click.command("oom", cls=WithHelp)
@click.argument("text", metavar="[FILE|TEXT|-]", required=False, type=_text_or_path)
@plain_option(
    "--file", "job_file", type=click.Path(path_type=Path),
    help="the job that failed, a job file of train or serve: what it needs, and what every technique saves of it",
)
@plain_option(
    "--snapshot", type=click.Path(path_type=Path),
    help="a torch.cuda.memory snapshot of the process that failed: allocator settings proved by replay",
)
@plain_option("--checks", is_flag=True, help="all stability and compatibility checks, computed for the job where given")
@report_option
@json_option
@language_option
def oom(
    text: str | Path | None, job_file: Path | None, snapshot: Path | None, checks: bool, report_file: Path | None,
    as_json: bool, lang: str | None,
) -> int:
    """Why memory ran out: the cause, how sure that is, what each number means, and what to change.

    FILE is any text, or TEXT the text itself: an error message, a traceback, a whole log; PyTorch on any device,
    TensorFlow, JAX, cuBLAS, NCCL, vLLM, SGLang, TensorRT-LLM, llama.cpp, DeepSpeed and others; or a memory snapshot.
    Without them, or with -, standard input is read; --checks alone reads nothing. Exit codes: 0 something was found,
    1 the text tells of no such failure.

    \b
    vramcast oom train.log
    vramcast oom "CUDA out of memory. Tried to allocate 1.96 GiB. GPU 0 has a total capacity of ..."
    python train.py 2>&1 | vramcast oom
    vramcast oom train.log --file job.toml
    vramcast oom train.log --snapshot dump.pickle
    """
    from vramcast.report import failure

    only_checks = checks and text is None and snapshot is None
    if text is None and not only_checks and snapshot is None and sys.stdin.isatty():
        raise InvalidSpec("no text: give a FILE, or pipe one in: python train.py 2>&1 | vramcast oom")
    reporting = Reporting(report_file, "oom").checked()
    source = None if only_checks or (text is None and snapshot is not None) else text or Path("-")
    found = api.diagnosis_of(source, job_file=job_file, snapshot=snapshot, every_check=checks)
    words = words_here(lang)
    if as_json:
        click.echo(failure.to_json(found))
    elif found.findings or found.checks:
        click.echo(coloured(failure.render(found, words), "bad"), nl=False)
    if not found.findings and not as_json and not only_checks and (checks or not found.checks):
        recorded = snapshot is not None or (isinstance(source, Path) and failures.diagnose.is_snapshot(source))
        click.echo(words("failure.no_event" if recorded else "failure.none", name=found.name))
    given = {"model": None if text is None else str(text), "snapshot": snapshot, "checks": checks or None}
    reporting.write(found, words, as_json=as_json, asked=given, file=job_file)
    told = found.findings or only_checks or (found.checks and not checks)
    return 0 if told else EXIT_NOTHING_FOUND


@click.command("calibrate", cls=WithHelp)
@click.argument("recordings", metavar="RUN...", nargs=-1, required=True, type=click.Path(path_type=Path))
@plain_option("--model", metavar="MODEL", help="that was trained: a name, path or hub id as in `vramcast train`")
@plain_option("--gpus", metavar="[NODESx]COUNTxGPU", help="that it ran on: 8xh100-sxm-80gb, t4")
@plain_option(
    "--file", "job_file", type=click.Path(path_type=Path),
    help="a job file of `train`, or of `serve`; options win over it",
)
@question_options(UNCALIBRATED)
@plain_option(
    "--save", type=click.Path(path_type=Path), metavar="FILE",
    help="write what `vramcast train --calibration` reads",
)
@json_option
@language_option
def calibrate(
    recordings: tuple[Path, ...], job_file: Path | None, save: Path | None, as_json: bool, lang: str | None,
    **values: Any,
) -> int:
    """What a run measured beside what was predicted for it, entry by entry, underestimates first.

    RUN is a recording of `vramcast.record_memory` or of `vramcast watch --record`; of several ranks, all their files.

    \b
    vramcast calibrate run.sqlite --file job.toml
    vramcast calibrate run.sqlite --model qwen3-8b --gpus h100 --seq-len 4k --save calibration.toml
    vramcast train qwen3-8b --gpus h100 --seq-len 4k --calibration calibration.toml
    """
    found = watch.calibrate.calibration_of(recordings, given_options(values), file=job_file, save=save)
    if as_json:
        click.echo(report.measured.run_json(found))
    else:
        saved = None if save is None else str(save)
        click.echo(report.measured.render_run(found, words_here(lang), saved=saved), nl=False)
    return 0
