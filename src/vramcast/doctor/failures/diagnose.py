"""Statements of a text turned into findings: echoes joined, causes judged, fixes computed."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Final, NamedTuple

from msgspec.structs import replace

from vramcast.doctor.failures.case import TABLES, Case, Facts, case_of
from vramcast.doctor.failures.causes import judge
from vramcast.doctor.failures.checks import checks_of
from vramcast.doctor.failures.fixes import fixes_of
from vramcast.doctor.failures.job import Computed, beside, computed
from vramcast.doctor.failures.meaning import meaning_of
from vramcast.domain.failure import Cause, Diagnosis, Finding, Fix, Statement
from vramcast.domain.job import Job
from vramcast.domain.reconciliation import Remark
from vramcast.domain.serving import PipelineJob, ServeJob
from vramcast.domain.snapshot import Snapshot

if TYPE_CHECKING:
    from vramcast.doctor.failures.recording import Recorded

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


class Given(NamedTuple):
    """What a user gave beside the text."""

    job: Job | ServeJob | PipelineJob | None = None
    snapshot: Snapshot | None = None
    every_check: bool = False


NOTHING_GIVEN: Final = Given()


class Told(NamedTuple):
    """What a text tells."""

    statements: tuple[Statement, ...] = ()  # in order
    facts: tuple[Facts, ...] = ()  # of each statement; fewer: of the others nothing is known
    whole: Facts = Facts()  # of the text at large
    lines: int = 0
    cut: bool = False  # the text is longer than what was read


def diagnosis(name: str, told: Told, given: Given = NOTHING_GIVEN) -> Diagnosis:
    """What a text means.

    Args:
        name: of the file
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
        case = case._replace(job=job.predicted if job else None, replay_avoids=avoiding)
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
