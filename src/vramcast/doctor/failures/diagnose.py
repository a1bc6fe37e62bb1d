"""What a user hands over, text, file, standard input or snapshot, as findings: echoes joined, causes judged, fixes."""

from __future__ import annotations

import sys
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from itertools import pairwise
from pathlib import Path
from shutil import copyfileobj
from tempfile import SpooledTemporaryFile
from typing import IO, TYPE_CHECKING, Final

from msgspec import Struct
from msgspec.structs import replace

from vramcast import sources
from vramcast.doctor.failures.case import TABLES, Case, Facts, case_of
from vramcast.doctor.failures.causes import judge, meaning_of
from vramcast.doctor.failures.fixes import fixes_of
from vramcast.doctor.failures.job import Computed, beside, checks_of, computed
from vramcast.domain.failure import Cause, Diagnosis, Finding, Fix, Remark, Statement
from vramcast.domain.job import Job
from vramcast.domain.serving import PipelineJob, ServeJob
from vramcast.domain.snapshot import Snapshot
from vramcast.errors import InvalidSpec, SourceError
from vramcast.lazy import lazy_pattern

if TYPE_CHECKING:
    from vramcast.doctor.failures.recording import Recorded
    from vramcast.sources.failures import Failures


ECHO_LINES: Final = 400
"""A statement without figures this near to one with figures repeats it: tracebacks, workers, launchers [lines]."""

GROWTHS: Final = 3
"""So many failures of one device, each with more live memory than the one before, are growth."""

MOST_FINDINGS: Final = 256
"""Of more failures only the first are explained: one log of many ranks says one thing, and reports group them."""


MOST_FIXES: Final = 12
"""Those that are shown of one failure, computed ones included."""


Shown = tuple[tuple[Remark, ...], tuple[Fix, ...]]
"""What a replay shows, and what it proves to help."""


class Given(Struct, frozen=True):
    """What a user gave beside the text."""

    job: Job | ServeJob | PipelineJob | None = None
    snapshot: Snapshot | None = None
    every_check: bool = False


NOTHING_GIVEN: Final = Given()


class Told(Struct, frozen=True):
    """What a text tells."""

    statements: tuple[Statement, ...] = ()  # in order
    facts: tuple[Facts, ...] = ()  # of each statement; fewer: of the others nothing is known
    whole: Facts = Facts()  # of the text at large
    lines: int = 0
    cut: bool = False  # the text is longer than what was read


def diagnosis(name: str, told: Told, given: Given = NOTHING_GIVEN) -> Diagnosis:
    """What a text means.

    Args:
        told: what it tells
        given: the job that failed, a snapshot of its process

    Raises: VramcastError of one sentence when the job cannot be answered
    """
    known = _recorded(given.snapshot)
    statements = told.statements or (known.statements if known is not None else ())
    failures = _failures(joined(statements))
    kept = failures[:MOST_FINDINGS]
    job = computed(given.job) if given.job is not None else None
    growth = _growth([statement for _, statement in kept])
    findings: list[Finding] = []
    for index, statement in kept:
        facts = told.facts[index] if index < len(told.facts) else told.whole
        proof: Shown = ((), ())
        if known is not None:
            statement, facts, proof = known.beside(statement, facts)
        case = case_of(statement, facts, growth.get(statement.numbers.get("device")))
        avoiding = next((fix.setting.partition("=")[2] for fix in proof[1] if fix.enough), "")
        case = replace(case, job=job.predicted if job else None, replay_avoids=avoiding)
        findings.append(_finding(case, job, proof))
    training = given.job if isinstance(given.job, Job) else None
    checks = checks_of(told.whole, training, every=given.every_check)
    return Diagnosis(
        name=name, findings=tuple(findings), checks=checks, lines=told.lines, cut=told.cut,
        left_out=len(failures) - len(kept),
    )


def _failures(statements: Sequence[tuple[int, Statement]]) -> list[tuple[int, Statement]]:
    """Tables of memory are not failures: they are explained only where the text has nothing else."""
    failed = [(index, statement) for index, statement in statements if statement.family not in TABLES]
    return failed or list(statements)


def _finding(case: Case, job: Computed | None, proof: Shown) -> Finding:
    judged = judge(case)
    shown, replayed = proof
    why = (*judged.why, *(beside(case, job) if job else ()), *shown)
    computed_instead = job is not None and judged.cause is Cause.TOO_BIG
    worded = [
        fix for fix in fixes_of(case, judged)
        if (not computed_instead or fix.shown_by or fix.enough) and not (_is_replayed(shown) and _settled(fix))
    ]
    fixes = (*_enough(replayed), *_enough(job.fixes if job else ()), *worded)
    return Finding(
        cause=judged.cause, confidence=round(judged.confidence, 2), statement=case.statement, detail=judged.detail,
        why=why, meaning=meaning_of(case), fixes=_unique(fixes)[:MOST_FIXES],
    )


def _is_replayed(shown: tuple[Remark, ...]) -> bool:
    return any(remark.key.startswith(("proof.failed", "proof.peak")) for remark in shown)


def _settled(fix: Fix) -> bool:
    """What a recording answers already: allocator settings were replayed, and there is no need to record again."""
    return "ALLOC_CONF=" in fix.setting or fix.action.key == "fix.record"


def _recorded(snapshot: Snapshot | None) -> Recorded | None:
    if snapshot is None:
        return None
    from vramcast.doctor.failures.recording import Recorded  # most texts come without one

    return Recorded(snapshot)


def _enough(fixes: Iterable[Fix]) -> tuple[Fix, ...]:
    """What is enough first; the order is kept otherwise."""
    return tuple(sorted(fixes, key=lambda fix: not fix.enough))


def _unique(fixes: Iterable[Fix]) -> tuple[Fix, ...]:
    """One fix per setting: what was computed or replayed stands before what the message's arithmetic gives."""
    found: dict[tuple[str, str], Fix] = {}
    for fix in fixes:
        found.setdefault(("", fix.setting) if fix.setting else (fix.action.key, ""), fix)
    return tuple(found.values())


def joined(statements: Sequence[Statement]) -> list[tuple[int, Statement]]:
    """One statement per failure, with its number in the text.

    Those with the same figures are one, and those without any that stand near others are echoes of them. Tables of
    memory are no failures that a statement could repeat.
    """
    statements = _with_dumps(statements)
    kept: dict[tuple[object, ...], tuple[int, Statement]] = {}
    failed = (statement for statement in statements if statement.family not in TABLES)
    with_figures = sorted(statement.line for statement in failed if _has_figures(statement))
    for index, statement in enumerate(statements):
        named = _has_figures(statement)
        place = bisect_left(with_figures, statement.line - ECHO_LINES)
        if not named and place < len(with_figures) and with_figures[place] <= statement.line + ECHO_LINES:
            continue
        key = _figures(statement) if named else (statement.family, statement.wording)
        if key in kept:
            first, known = kept[key]
            kept[key] = first, replace(known, repeats=known.repeats + statement.repeats)
        else:
            kept[key] = index, statement
    return list(kept.values())


def _with_dumps(statements: Sequence[Statement]) -> list[Statement]:
    """TensorFlow's request and the dump of its allocator, thousands of lines apart, as one; the rest as it is.

    A dump that was joined to its request stays in its place, empty, so that numbers of statements hold.
    """
    result = list(statements)
    asking: int | None = None
    for index, statement in enumerate(statements):
        if statement.family != "tensorflow":
            continue
        numbers = statement.numbers
        if "tried_bytes" in numbers:
            asking = index
        elif asking is not None and "limit_bytes" in numbers:
            request = result[asking]
            result[asking] = replace(request, numbers=numbers | request.numbers)
            result[index] = replace(statement, numbers={})
            asking = None
    return result


def _has_figures(statement: Statement) -> bool:
    return any(
        name not in ("device", "pid", "exit_code") and not isinstance(value, str)
        for name, value in statement.numbers.items()
    )


def _figures(statement: Statement) -> tuple[object, ...]:
    """What makes two statements one failure: the same sizes on the same device, whoever says so."""
    return tuple(sorted((name, str(value)) for name, value in statement.numbers.items() if name != "pid"))


def _growth(statements: Sequence[Statement]) -> dict[object, int]:
    """Device -> by how much live memory grew from failure to failure, where it only grew [bytes]."""
    live: dict[object, list[int]] = {}
    for statement in statements:
        allocated = statement.numbers.get("allocated_bytes")
        if isinstance(allocated, int):
            live.setdefault(statement.numbers.get("device"), []).append(allocated)
    return {
        device: sizes[-1] - sizes[0]
        for device, sizes in live.items()
        if len(sizes) >= GROWTHS and all(low < high for low, high in pairwise(sizes))
    }


SEARCHED: Final = 8 << 20
"""How much of a text is searched for words that no statement holds [bytes, characters]."""

MOST_TOLD: Final = 200
"""Statements whose surroundings are looked at."""

LONGEST_PATH: Final = 1024
"""A longer text is no path [characters]."""

NAMES_A_FILE: Final = lazy_pattern(r"\S+\.(?:log|txt|out|err|json|pickle|pkl|gz)")
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
        every_check: all checks, not only those that there is reason for

    Raises: SourceError for a file that cannot be read
    """
    if source is not None and not isinstance(source, (str, Path)):
        raise InvalidSpec("a {} is no text; give a text as str, or the path of one", type(source).__name__)
    path = _path(source)
    if snapshot is None and path is not None and path != STANDARD_INPUT and is_snapshot(path):
        source, path, snapshot = None, None, path
    recorded = None if snapshot is None else _snapshot_at(snapshot)
    given = Given(job=job, snapshot=recorded, every_check=every_check)
    if source is None:
        return diagnosed_recording(recorded, given) if recorded is not None else diagnosis("-", Told(), given)
    return diagnosed_text(source if path is None else path, given)


def diagnosed_text(source: str | Path, given: Given) -> Diagnosis:
    """The diagnosis of a text, or of the file that a path names; a text is never taken for a path."""
    from vramcast.doctor.failures.case import facts_of, words_of

    if isinstance(source, Path):
        name = str(source)
        found, words = _of_file(source)
    else:
        name, found, words = "-", sources.failures.read_failures(source), words_of(source[:SEARCHED])
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
        raise SourceError(
            "{}: {}; give the path of a text, or pipe the text in", path, error.strerror or error
        ) from None


def _of_stream(stream: IO[bytes], name: str) -> tuple[Failures, frozenset[str]]:
    from vramcast.doctor.failures.case import words_of

    with SpooledTemporaryFile(max_size=SEARCHED) as copy:
        if not stream.seekable():  # a pipe is read twice like a file
            copyfileobj(stream, copy)
            copy.seek(0)
            stream = copy
        head = stream.read(SEARCHED)
        encoding = sources.files.encoding_of(head[:SNIFFED], name=name)
        stream.seek(0)
        return sources.failures.read_failure_file(stream), words_of(head.decode(encoding, "replace"))


def diagnosed_recording(snapshot: Snapshot, given: Given) -> Diagnosis:
    """The diagnosis of a recording alone."""
    return diagnosis(snapshot.name, Told(), replace(given, snapshot=snapshot))


def _snapshot_at(path: Path) -> Snapshot:
    return sources.snapshots.read_snapshot(path)


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
        raise SourceError("{}: No such file; give the path of a text, or the text itself", source)
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
