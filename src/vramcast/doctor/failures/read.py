"""What a user hands over, read: a text, a file of one, standard input, or a memory snapshot."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Final

from vramcast.doctor.failures.diagnose import Given, Told, diagnosis
from vramcast.domain.failure import Diagnosis
from vramcast.errors import SourceError

if TYPE_CHECKING:
    from vramcast.domain.job import Job
    from vramcast.domain.serving import PipelineJob, ServeJob
    from vramcast.domain.snapshot import Snapshot

LARGEST_TEXT: Final = 64 << 20
"""What is read of a text; the failure of a longer log stands at its end, so that the end is kept [bytes]."""

MOST_TOLD: Final = 200
"""Statements whose surroundings are looked at."""

LONGEST_PATH: Final = 1024
"""A longer text is no path [characters]."""

SNAPSHOT_BEGINS: Final = (
    b"\x80\x02", b"\x80\x03", b"\x80\x04", b"\x80\x05", b"\x1f\x8b", b"\x28\xb5\x2f\xfd", b"PK\x03\x04",
)
"""Pickles from protocol 2 on, gzip, zstd, zip."""

JSON_KEYS: Final = (b'"segments"', b'"device_traces"', b'"traceEvents"')
SNIFFED: Final = 1 << 16
STANDARD_INPUT: Final = Path("-")


def diagnosed(
    source: str | Path | None, *, job: Job | ServeJob | PipelineJob | None = None, snapshot: Path | None = None,
    every_check: bool = False,
) -> Diagnosis:
    """The diagnosis of a text, a file or standard input, or of a snapshot.

    Args:
        source: a text, the path of one, Path("-") for standard input; None: nothing but what else is given
        job: that failed
        snapshot: file of a recording of its process
        every_check: all checks, not only those that there is reason for

    Raises: SourceError for a file that cannot be read
    """
    path = _path(source)
    if snapshot is None and path is not None and path != STANDARD_INPUT and is_snapshot(path):
        source, path, snapshot = None, None, path
    recorded = None if snapshot is None else _recorded(snapshot)
    given = Given(job=job, snapshot=recorded, every_check=every_check)
    if source is None:
        return _of_snapshot(recorded, given) if recorded is not None else diagnosis("-", Told(), given)
    content = _content(path) if path is not None else str(source).encode("utf-8", "replace")
    return _of_text(str(path or "-"), content, given)


def _of_text(name: str, content: bytes, given: Given) -> Diagnosis:
    from vramcast.doctor.failures.facts import facts_of, words_of
    from vramcast.sources.failures import read_failures

    text = decoded(content[-LARGEST_TEXT:])
    found, words = read_failures(text), words_of(text)
    told = Told(
        statements=found.statements,
        facts=tuple(facts_of(found, words, number) for number in range(min(MOST_TOLD, len(found.statements)))),
        whole=facts_of(found, words),
        lines=found.lines,
        cut=found.cut or len(content) > LARGEST_TEXT,
    )
    return diagnosis(name, told, given)


def _of_snapshot(snapshot: Snapshot, given: Given) -> Diagnosis:
    from vramcast.doctor.failures.recording import statements_of

    return diagnosis(snapshot.name, Told(statements=statements_of(snapshot)), given)


def _recorded(path: Path) -> Snapshot:
    from vramcast.sources.snapshots import read_snapshot

    return read_snapshot(path)


def _path(source: str | Path | None) -> Path | None:
    """The path that was given, or that a short text without line ends names."""
    if source is None or isinstance(source, Path):
        return source
    if len(source) > LONGEST_PATH or "\n" in source or "\0" in source:
        return None
    try:
        return Path(source) if Path(source).is_file() else None
    except OSError:
        return None


def is_snapshot(path: Path) -> bool:
    """Whether a file begins as memory snapshots do."""
    try:
        with path.open("rb") as file:
            head = file.read(SNIFFED)
    except OSError:
        return False
    if head.startswith(SNAPSHOT_BEGINS):
        return True
    return head.lstrip()[:1] in (b"{", b"[") and any(key in head for key in JSON_KEYS)


def _content(path: Path) -> bytes:
    """The end of a file or of standard input, one byte more than is read where there is more.

    Raises: SourceError naming the file when it cannot be read
    """
    try:
        if path == STANDARD_INPUT:
            return _tail(sys.stdin.buffer)
        with path.open("rb") as file:
            return _tail(file)
    except OSError as error:
        raise SourceError(f"{path}: {error.strerror or error}") from None


def _tail(file: BinaryIO) -> bytes:
    """The last bytes of a stream, kept while it is read: it may be a pipe."""
    kept = bytearray()
    while part := file.read(1 << 20):
        kept += part
        if len(kept) > 2 * LARGEST_TEXT:
            del kept[: len(kept) - LARGEST_TEXT - 1]
    return bytes(kept)


def decoded(content: bytes) -> str:
    """A text in any usual encoding; what is no text stays readable where it can.

    >>> decoded("内存".encode("utf-16")), decoded(b"out of memory")
    ('内存', 'out of memory')
    """
    if content.startswith((b"\xff\xfe", b"\xfe\xff")):
        return content.decode("utf-16", "replace")
    head = content[:SNIFFED]
    if head.count(0) > len(head) // 4:
        low_first = head[1::2].count(0) >= head[::2].count(0)
        return content.decode("utf-16-le" if low_first else "utf-16-be", "replace")
    return content.decode("utf-8-sig", "replace")
