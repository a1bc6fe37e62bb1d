"""What a user hands over, read: a text, a file of one, standard input, or a memory snapshot."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from shutil import copyfileobj
from tempfile import SpooledTemporaryFile
from typing import IO, TYPE_CHECKING, Final

from vramcast.doctor.failures.diagnose import Given, Told, diagnosis
from vramcast.domain.failure import Diagnosis
from vramcast.errors import InvalidSpec, SourceError

if TYPE_CHECKING:
    from vramcast.domain.job import Job
    from vramcast.domain.serving import PipelineJob, ServeJob
    from vramcast.domain.snapshot import Snapshot
    from vramcast.sources.failures import Failures

SEARCHED: Final = 8 << 20
"""How much of a text is searched for words that no statement holds [bytes, characters]."""

MOST_TOLD: Final = 200
"""Statements whose surroundings are looked at."""

LONGEST_PATH: Final = 1024
"""A longer text is no path [characters]."""

NAMES_A_FILE: Final = re.compile(r"\S+\.(?:log|txt|out|err|json|pickle|pkl|gz)")
"""A text that is nothing but this was meant as a path."""

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
    if source is not None and not isinstance(source, (str, Path)):
        raise InvalidSpec(f"a {type(source).__name__} is no text; give a text as str, or the path of one")
    path = _path(source)
    if snapshot is None and path is not None and path != STANDARD_INPUT and is_snapshot(path):
        source, path, snapshot = None, None, path
    recorded = None if snapshot is None else _recorded(snapshot)
    given = Given(job=job, snapshot=recorded, every_check=every_check)
    if source is None:
        return diagnosed_recording(recorded, given) if recorded is not None else diagnosis("-", Told(), given)
    return diagnosed_text(source if path is None else path, given)


def diagnosed_text(source: str | Path, given: Given) -> Diagnosis:
    """The diagnosis of a text, or of the file that a path names; a text is never taken for a path."""
    from vramcast.doctor.failures.facts import facts_of, words_of
    from vramcast.sources.failures import read_failures

    if isinstance(source, Path):
        name = str(source)
        found, words = _of_file(source)
    else:
        name, found, words = "-", read_failures(source), words_of(source[:SEARCHED])
    told = Told(
        statements=found.statements,
        facts=tuple(facts_of(found, words, number) for number in range(min(MOST_TOLD, len(found.statements)))),
        whole=facts_of(found, words),
        lines=found.lines,
        cut=found.cut,
    )
    return diagnosis(name, told, given)


def _of_file(path: Path) -> tuple[Failures, frozenset[str]]:
    """What a file or standard input tells, and the words of the rules in its beginning.

    Raises: SourceError naming the file when it cannot be read, is empty or holds no text
    """
    try:
        if path == STANDARD_INPUT:
            return _of_stream(sys.stdin.buffer, "-")
        with path.open("rb") as file:
            return _of_stream(file, str(path))
    except OSError as error:
        raise SourceError(f"{path}: {error.strerror or error}; give the path of a text, or pipe the text in") from None


def _of_stream(stream: IO[bytes], name: str) -> tuple[Failures, frozenset[str]]:
    from vramcast.doctor.failures.facts import words_of
    from vramcast.sources.encodings import encoding_of
    from vramcast.sources.failures import read_failure_file

    with SpooledTemporaryFile(max_size=SEARCHED) as copy:
        if not stream.seekable():  # a pipe is read twice like a file
            copyfileobj(stream, copy)
            copy.seek(0)
            stream = copy
        head = stream.read(SEARCHED)
        encoding = encoding_of(head[:SNIFFED], name=name)
        stream.seek(0)
        return read_failure_file(stream), words_of(head.decode(encoding, "replace"))


def diagnosed_recording(snapshot: Snapshot, given: Given) -> Diagnosis:
    """The diagnosis of a recording alone."""
    return diagnosis(snapshot.name, Told(), given._replace(snapshot=snapshot))


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
        if Path(source).is_file():
            return Path(source)
    except OSError:
        return None
    if NAMES_A_FILE.fullmatch(source):
        raise SourceError(f"{source}: No such file; give the path of a text, or the text itself")
    return None


def is_snapshot(path: Path) -> bool:
    """Whether a file begins as memory snapshots do; a pipe does not, looking would use it up."""
    try:
        if not path.is_file():
            return False
        with path.open("rb") as file:
            head = file.read(SNIFFED)
    except OSError:
        return False
    if head.startswith(SNAPSHOT_BEGINS):
        return True
    return head.lstrip()[:1] in (b"{", b"[") and any(key in head for key in JSON_KEYS)
