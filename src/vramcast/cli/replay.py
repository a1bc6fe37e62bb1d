"""`vramcast replay`: a recording of GPU memory, through the allocator as it went and under other settings."""

from __future__ import annotations

from pathlib import Path

import click

from vramcast.cli.shared import Reporting, json_option, language_option, report_option
from vramcast.errors import SourceError
from vramcast.report.messages import words_here
from vramcast.sources.files import write_whole

FILE = click.Path(path_type=Path)


@click.command("replay")
@click.argument("snapshot", type=FILE)
@click.option("--against", type=FILE, metavar="FILE", help="an earlier recording: what grew since, or between two runs")
@click.option("--device", type=int, metavar="N", help="only this device; by default all that are in the recording")
@click.option(
    "--alloc-conf", "confs", metavar="TEXT", multiple=True,
    help='replay under this PYTORCH_CUDA_ALLOC_CONF as well (repeatable): "max_split_size_mb:128"',
)
@click.option("--all-confs", is_flag=True, help="replay under every setting that usually helps; say which would")
@click.option("--capacity", metavar="SIZE", help="what those replays may reserve: 24GiB; else what the recording says")
@click.option("--leaks", is_flag=True, help="what grows step by step")
@click.option("--top", type=click.IntRange(1, 1000), default=10, show_default=True, help="rows of each list")
@click.option("--html", type=FILE, metavar="FILE", help="write everything as one page with a timeline to look into")
@click.option("--perfetto", type=FILE, metavar="FILE", help="write the memory as counters for Perfetto and Chrome")
@click.option("--write-snapshot", type=FILE, metavar="FILE", help="write it as a snapshot that torch's viewers open")
@report_option
@json_option
@language_option
def command(
    snapshot: Path, against: Path | None, device: int | None, confs: tuple[str, ...], all_confs: bool,
    capacity: str | None, leaks: bool, top: int, html: Path | None, perfetto: Path | None,
    write_snapshot: Path | None, report: Path | None, as_json: bool, lang: str | None,
) -> int:
    """What a memory recording shows: its peak and who held it, holes, leaks, and what other settings would have done.

    SNAPSHOT is what torch.cuda.memory._dump_snapshot wrote (pickle or JSON, also gzipped), a profiler trace with memory
    events, or a timeline of vramcast.

    \b
    vramcast replay snapshot.pickle --all-confs --html snapshot.html
    vramcast replay crash.pickle --capacity 24GiB --alloc-conf expandable_segments:True
    vramcast replay after.pickle --against before.pickle --leaks
    """
    from vramcast.api import replay

    for path in (html, perfetto, write_snapshot):
        _check_folder(path)
    reporting = Reporting(report, "replay").checked()
    found = replay(
        snapshot, against=against, device=device, alloc_conf=confs, all_confs=all_confs, capacity=capacity,
        leaks=leaks, top=top,
    )
    words = words_here(lang)
    click.echo(found.to_json() if as_json else found.text(words), nl=as_json)
    recording = found.devices[0].snapshot
    if html is not None:
        found.write_html(html, words.language)
    if perfetto is not None:
        from vramcast.emit.perfetto import write_counters

        write_whole(perfetto, write_counters(recording, {one.device: one.replayed for one in found.devices}))
    if write_snapshot is not None:
        from vramcast.emit.memory_snapshot import write_snapshot as as_snapshot

        write_whole(write_snapshot, as_snapshot(recording))
    given = {
        "model": str(snapshot), "against": against, "device": device, "alloc-conf": confs, "capacity": capacity,
        "all-confs": all_confs or None, "leaks": leaks or None,
    }
    reporting.write(found, words, as_json=as_json, asked=given)
    for path in (html, perfetto, write_snapshot):
        if path is not None:
            click.echo(words("replay.written", path=path), err=as_json)
    return 0


def _check_folder(path: Path | None) -> None:
    """Refuse before any work a path that cannot be written to after it."""
    if path is not None and not path.parent.is_dir():
        raise SourceError(f"{path}: No such file or directory; name a folder that is there")
    if path is not None and path.is_dir():
        raise SourceError(f"{path}: is a folder; name a file in it")
