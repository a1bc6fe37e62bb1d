"""A traced run as text and as JSON: the verdict, where it runs out, the ledger, who held the peak, what is unknown."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any, Final

from vramcast.domain.answer import Peak
from vramcast.domain.trace_job import PLACED, Holding, TraceAnswer, TracedTime, TraceFailure
from vramcast.report.columns import table_lines
from vramcast.report.document import as_text, document
from vramcast.report.messages import Words
from vramcast.report.replay_words import plain, scaled_chart, share
from vramcast.report.sentences import headline
from vramcast.report.text import SHOWN_PER_CATEGORY, change_cells, ledger, phases, tried, trust
from vramcast.units import format_bytes, format_seconds

COLUMNS: Final = 72
ROWS: Final = 8
VIEWS: Final = ("module", "line")
"""What is shown beside the ledger where nothing else is asked for."""
COUNTED: Final = re.compile(r"(?<![^.])\d+(?![^.])")
"""A part of a module's name that only counts."""
LIST: Final = 8
"""Rows of a list."""
WIDE: Final = 100
"""Characters of a line of a message of torch."""


def render(answer: TraceAnswer, words: Words, *, views: Sequence[str] = (), explain: bool = False) -> str:
    """The whole report.

    Args:
        views: "category", "module", "line", "operator": how to cut the peak; by default the first three
        explain: every entry of the ledger with its basis and source
    """
    answer = words.spoken(answer)
    lines = [*opening(answer, words), ""]
    for title, part in sections(answer, words, views=views, explain=explain):
        lines += [title, *part, ""]
    return "\n".join(lines).rstrip() + "\n"


def opening(answer: TraceAnswer, words: Words) -> Iterator[str]:
    """The answer in a few lines, before everything that explains it."""
    yield from _search(answer, words)
    yield from verdict(answer, words)


def sections(
    answer: TraceAnswer, words: Words, *, views: Sequence[str] = (), explain: bool = False
) -> Iterator[tuple[str, list[str]]]:
    for title, shown in _sections(answer, words, views, explain):
        if part := list(shown):
            yield title, part


def _sections(
    answer: TraceAnswer, words: Words, views: Sequence[str], explain: bool
) -> Iterator[tuple[str, Iterator[str]]]:
    if answer.failure is not None:
        yield words("trace.would_print"), _message(answer.failure)
    if answer.found is not None:
        yield words("trace.tried", count=answer.found.num_tried), tried(answer.found, words)
    if not answer.fits and answer.changes:
        yield words("changes"), _changes(answer, words)
    yield words("phases"), phases(answer.fullest, words)
    if not views or "category" in views:
        yield words("trace.ledger"), ledger(answer.fullest, words, entries=None if explain else SHOWN_PER_CATEGORY)
    for view in views or VIEWS:
        if view != "category":
            yield words(f"trace.by.{view}"), _holders(getattr(answer.holdings, f"by_{view}"), answer, words)
    if answer.traced_time is not None:
        yield words("where_time_goes"), where_time_goes(answer.traced_time, words)
    yield words("trace.course"), _course(answer, words)
    yield words("trace.unknown"), _unknown(answer, words)
    assumed = (text for text in answer.assumptions if text != words.said(PLACED))  # which the first lines say
    for key, texts in (("assumed", assumed), ("warnings", answer.warnings)):
        yield words(key), (f"  - {plain(text)}" for text in texts)


def verdict(answer: TraceAnswer, words: Words) -> Iterator[str]:
    """Fits or not, the levels, what was traced, and where it runs out."""
    rank, asked = answer.fullest, answer.question
    yield headline(answer, words, per_gpu=False)
    if answer.failure is not None:
        yield from (f"  {line}" for line in _failed(answer.failure, words))
    key, peak, step = "trace.levels" if "gpu" in asked else "trace.host_level", answer.peak, ""
    if rank.needed_bytes > peak.device_bytes:  # another moment decides: each size says whose it is
        phase, step = words(f"phase.{rank.highest_phase}"), words("trace.steady")
        yield "  " + words("trace.highest", phase=phase) + _levels(rank.phases[rank.highest_phase], key, words)
    yield f"  {step}{_levels(peak, key, words)}"
    if rank.likest is not None:
        low, high = (format_bytes(size) for size in answer.interval_bytes)
        yield f"  {step}" + words("trace.interval", low=low, high=high)
        yield "  " + trust(answer, rank.likest, words)
    if rank.gives_back_cache:
        yield "  " + words("trace.cache")
    yield "  " + _what(answer, words)
    yield from (f"  {text}" for text in answer.assumptions if text == words.said(PLACED))
    if answer.traced_time is not None:
        yield "  " + step_time(answer.traced_time, words)
    if answer.stopped:
        yield "  " + words("trace.stopped", why=plain(answer.stopped))


def _levels(peak: Peak, key: str, words: Words) -> str:
    sizes = (peak.allocated_bytes, peak.reserved_bytes, peak.device_bytes)
    return words(key, **dict(zip(("allocated", "reserved", "device"), map(format_bytes, sizes), strict=True)))


def _what(answer: TraceAnswer, words: Words) -> str:
    asked = answer.question
    parts = [words(f"trace.{asked['mode']}")] if "mode" in asked else []
    if "batch" in asked:
        parts.append(words("trace.batch", batch=asked["batch"]))
    if "seq_len" in asked:
        parts.append(words("trace.positions", count=f"{asked['seq_len']:,}"))
    if "world_size" in asked:
        parts.append(words("trace.ranks", rank=asked["rank"], world=asked["world_size"]))
    parts.append(words("trace.traced", steps=answer.steps, events=f"{answer.events:,}"))
    key = "trace.what" if answer.num_parameters else "trace.what_script"
    return words(
        key, target=plain(asked["target"]), parameters=f"{answer.num_parameters:,}",
        gpu=asked["gpu"], how=", ".join(parts),
    )


def _failed(failure: TraceFailure, words: Words) -> Iterator[str]:
    phase = words(f"trace.phase.{failure.phase}")
    yield words("trace.failure", step=failure.step, phase=phase, size=format_bytes(failure.num_bytes))
    module = words("trace.failure_module", module=plain(failure.module)) if failure.module else ""
    line = plain(failure.line) or words("trace.nowhere")
    yield "  " + words("trace.failure_where", line=line, module=module, operator=failure.operator)


def _message(failure: TraceFailure) -> Iterator[str]:
    yield f"  torch.OutOfMemoryError: {failure.message}"
    yield from (f"    {plain(line)}" for line in failure.stack[:LIST])


def step_time(time: TracedTime, words: Words) -> str:
    """Seconds of a step, throughput, utilisation, and what it waits for."""
    rate = "" if time.samples_per_s is None else words("trace.samples", rate=f"{float(f'{time.samples_per_s:.3g}'):,g}")
    return words(
        "trace.time", step=format_seconds(time.step_s), rate=rate, mfu=f"{time.mfu:.0%}",
        bound=words(f"bound.{time.bound}"),
    )


def where_time_goes(time: TracedTime, words: Words) -> Iterator[str]:
    """By what it goes to, then by module, then what is left out."""
    causes, modules = time_rows(time, words)
    lines = list(table_lines([*causes, *modules], right=frozenset({1, 2})))
    yield from lines[: len(causes)]
    yield f"  {words('trace.time_by_module')}"
    yield from lines[len(causes) :]
    yield from (f"  {plain(text)}" for text in time.left_out)


def time_rows(time: TracedTime, words: Words) -> tuple[list[tuple[str, str, str]], list[tuple[str, str, str]]]:
    """Causes and modules, each with its seconds and its share, longest first."""
    causes = sorted(time.seconds.items(), key=lambda one: -one[1])
    groups: dict[str, float] = {}
    for module, spent in time.modules.items():
        pattern = COUNTED.sub("*", module)
        groups[pattern] = groups.get(pattern, 0.0) + spent
    modules = sorted(groups.items(), key=lambda one: -one[1])[:LIST]

    def row(name: str, spent: float) -> tuple[str, str, str]:
        return name, format_seconds(spent), share(spent / time.step_s)

    return (
        [row(words(f"cause.{cause}"), spent) for cause, spent in causes],
        [row(plain(module) or words("trace.unnamed"), spent) for module, spent in modules],
    )


def _search(answer: TraceAnswer, words: Words) -> Iterator[str]:
    found = answer.found
    if found is None:
        return
    if found.what is None:
        what = found.nearest_failing.what if found.nearest_failing is not None else found.goal
        yield words("trace.found_nothing", what=what)
    else:
        yield words(f"trace.found.{found.goal}", value=found.value)


def _changes(answer: TraceAnswer, words: Words) -> Iterator[str]:
    if not any(change.fits for change in answer.changes):
        yield "  " + words("no_change")
    yield from table_lines((change_cells(change, answer, words) for change in answer.changes), right=frozenset({1}))


def _holders(holdings: Sequence[Holding], answer: TraceAnswer, words: Words) -> Iterator[str]:
    total = answer.peak.allocated_bytes or 1
    holdings = merged(holdings)
    rows = [
        (plain(one.name)[:66] or words("trace.unnamed"), format_bytes(one.num_bytes), share(one.num_bytes / total),
         words("trace.blocks", count=f"{one.count:,}"))
        for one in holdings[:LIST]
    ]
    yield from table_lines(rows, right=frozenset({1, 2, 3}))
    if len(holdings) > LIST:
        yield "  " + words("trace.more", count=f"{len(holdings) - LIST:,}")


def merged(holdings: Sequence[Holding]) -> list[Holding]:
    """Those whose names differ in numbers alone are one: "layers.*.mlp"."""
    groups: dict[str, list[Holding]] = {}
    for one in holdings:
        groups.setdefault(COUNTED.sub("*", one.name), []).append(one)
    found = (
        Holding(
            name=pattern if len(group) > 1 else group[0].name, num_bytes=sum(one.num_bytes for one in group),
            count=sum(one.count for one in group),
        )
        for pattern, group in groups.items()
    )
    return sorted(found, key=lambda one: -one.num_bytes)


def _course(answer: TraceAnswer, words: Words) -> Iterator[str]:
    if not answer.course:
        return
    allocated = [point.allocated_bytes for point in answer.course]
    reserved = [point.reserved_bytes for point in answer.course]
    yield from (f"  {line}" for line in scaled_chart(allocated, reserved, columns=COLUMNS, rows=ROWS))
    yield "  " + words("trace.legend", events=f"{answer.events:,}")


def _unknown(answer: TraceAnswer, words: Words) -> Iterator[str]:
    found, total = answer.unknown_operators, answer.peak.allocated_bytes or 1
    if not found:
        return
    held = sum(one.peak_bytes for one in found)
    yield "  " + words("trace.unknown_share", count=len(found), share=share(held / total))
    rows = [
        (one.name, words("trace.calls", count=f"{one.calls:,}"),
         words("trace.outputs", size=format_bytes(one.num_bytes)),
         words("trace.of_peak", size=format_bytes(one.peak_bytes), share=share(one.peak_bytes / total)))
        for one in found[:LIST]
    ]
    yield from table_lines(rows, right=frozenset({1, 2, 3}))
    if len(found) > LIST:
        yield "  " + words("trace.more", count=f"{len(found) - LIST:,}")


def trace_document(answer: TraceAnswer) -> dict[str, Any]:
    plain = document(answer)
    if answer.fullest.likest is None:  # nothing says how wide it is
        for peak in (plain["peak"], *(rank["peak"] for rank in plain["ranks"])):
            del peak["interval_bytes"]
        del plain["high_bytes"]
    if not answer.num_parameters:
        del plain["parameters"]  # a script's are not known
    return plain


def to_json(answer: TraceAnswer) -> str:
    return as_text(trace_document(answer))
