"""Parts of the report on a recording that not every recording has: failures, other settings, leaks, differences."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Final

from vramcast.recordings.examine import Difference, Examined, Failure, Grown, Moment
from vramcast.recordings.replay import Outcome
from vramcast.recordings.start import held_at_start, unlisted_at_start
from vramcast.recordings.steps import Leak, Leaks
from vramcast.recordings.variants import Advice, Variant, ran_out
from vramcast.report.messages import Words
from vramcast.report.replay_words import FRAMES, Stacks, category_name, known_size, plain, share, signed
from vramcast.report.text import table
from vramcast.units import format_bytes

SHOWN_CHANGES: Final = 8
"""Stacks named that grew or shrank [count]."""


def failures(found: Examined, words: Words) -> Iterator[str]:
    """Failures of the recording, and whether free memory in one piece would have served them."""
    stacks = Stacks(found, words)
    for failure in found.failures:
        yield failed(failure, words)
        yield f"  {could_have(failure, words)}"
        yield f"  {stacks(failure.stack)}"
    more = found.num_failures - len(found.failures)
    if more:
        yield words("replay.more_failures", count=f"{more:,}")


def failed(failure: Failure, words: Words) -> str:
    """A request that found no memory."""
    said = {
        "event": f"{failure.event:,}", "request": format_bytes(failure.request_bytes),
        "allocated": format_bytes(failure.allocated_bytes),
    }
    if failure.reserved_bytes is None:
        return words("replay.failure_allocated", **said)
    return words("replay.failure", **said, reserved=format_bytes(failure.reserved_bytes))


def could_have(failure: Failure, words: Words) -> str:
    """Whether free memory in one piece would have served a request that failed."""
    room = failure.contiguity
    known = room.if_contiguous if room.largest_bytes is not None else None
    return words(
        f"replay.contiguous.{known}", free=known_size(room.free_bytes, words),
        largest=known_size(room.largest_bytes, words), driver=known_size(room.driver_free_bytes, words),
    )


def variants_title(variants: Sequence[Variant], words: Words) -> str:
    """What the table of settings is called."""
    capacity = variants[0].capacity_bytes if variants else None
    if capacity is None:
        return words("replay.variants")
    return words("replay.variants_capacity", capacity=format_bytes(capacity))


def variant_rows(found: Examined, words: Words) -> list[tuple[str, ...]]:
    """A row for each setting: name, peak reserved, change, retries, out of memory."""
    own = found.variants[0]
    is_known = own.conf or found.replayed.outcome is not Outcome.NOT_COMPARED  # a replay that agrees shows them
    rows: list[tuple[str, ...]] = []
    for variant in found.variants:
        conf = plain(variant.conf) or words("replay.defaults")
        name = words("replay.as_recorded" if is_known else "replay.as_assumed", conf=conf) if variant is own else conf
        more = variant.peak_reserved_bytes - own.peak_reserved_bytes
        change = "" if variant is own or ran_out(variant) or ran_out(own) else signed(more)
        stopped = _stopped(variant, words)
        reserved = format_bytes(variant.peak_reserved_bytes)
        rows.append((name, reserved, change, f"{variant.num_alloc_retries:,}", stopped))
    return rows


def settings(found: Examined, words: Words) -> Iterator[str]:
    """The table of settings, what it says first."""
    variants = found.variants
    if not variants:
        return
    said = found.advice
    if said is not None:
        yield advised(said, variants[0], words)
    keys = ("replay.setting", "replay.peak_reserved", "replay.change", "replay.retries", "replay.oom")
    rows = [tuple(words(key) for key in keys), *variant_rows(found, words)]
    yield from table(rows, right=frozenset({1, 2, 3})).splitlines()
    note = laid_anew(found, words)
    if note:
        yield note


def laid_anew(found: Examined, words: Words) -> str:
    """Why the settings of the recording may reserve another amount than it did; "" where they do not."""
    reserved = found.replayed.peak_reserved_bytes
    if not found.variants or ran_out(found.variants[0]):
        return ""
    if found.replayed.is_least:
        return words("replay.least_laid")
    if reserved is None:
        return ""
    unlisted = unlisted_at_start(found.source, held_at_start(found.snapshot, found.source))
    if unlisted:
        return words("replay.unlisted_laid", size=format_bytes(unlisted), reserved=format_bytes(reserved))
    if found.variants[0].peak_reserved_bytes == reserved:
        return ""
    return words("replay.laid_anew", reserved=format_bytes(reserved))


def _stopped(variant: Variant, words: Words) -> str:
    """Where memory ran out."""
    if variant.out_of_memory is not None:
        size = format_bytes(variant.failed_bytes or 0)
        if variant.out_of_memory < 0:
            return words("replay.oom_start", size=size)
        return words("replay.oom_at", event=f"{variant.out_of_memory:,}", size=size)
    return words("replay.oom_again", count=variant.num_ooms) if variant.num_ooms else words("replay.no_oom")


def advised(said: Advice, own: Variant, words: Words) -> str:
    """Which setting would have helped, in one sentence."""
    if said.best is None:
        return words(f"replay.advice.{said.kind}", tried=said.tried)
    saved = said.saved_bytes
    return words(
        f"replay.advice.{said.kind}", conf=plain(said.best.conf) or words("replay.defaults"),
        saved=format_bytes(saved), reserved=format_bytes(said.best.peak_reserved_bytes),
        share=share(-saved / own.peak_reserved_bytes if own.peak_reserved_bytes else None),
    )


def leak_lines(leaks: Leaks, stacks: Stacks, words: Words, top: int) -> Iterator[str]:
    """The verdict on leaks and the largest of them."""
    yield leaks_said(leaks, words)
    for leak in leaks.leaks[:top]:
        yield "  " + leak_line(leak, words)
        yield f"    {stacks(leak.stack)}"


def leak_line(leak: Leak, words: Words) -> str:
    """What one place leaks."""
    return words(
        "replay.leak", size=format_bytes(leak.bytes_per_step), blocks=f"{leak.blocks_per_step:.3g}",
        live=format_bytes(leak.live_bytes), category=category_name(leak.category, words),
    )


def leaks_said(leaks: Leaks, words: Words) -> str:
    """The verdict on leaks."""
    if not leaks.has_addresses:
        return words("replay.leaks_no_addresses")
    if not leaks.can_be_told:
        counts = {0: words("replay.no_steps"), 1: words("replay.step")}
        steps = counts.get(leaks.steps) or words("replay.steps", count=leaks.steps)
        return words("replay.leaks_untold", steps=steps)
    by = words(f"replay.by.{leaks.found_by}")
    if not leaks.leaks:
        return words("replay.leaks_none", steps=leaks.steps, by=by)
    places = len(leaks.leaks)
    count = words("replay.place") if places == 1 else words("replay.places", count=f"{places:,}")
    return words("replay.leaks_some", size=format_bytes(leaks.bytes_per_step), steps=leaks.steps, by=by, count=count)


def difference_lines(found: Difference, words: Words) -> Iterator[str]:
    """What changed since an earlier recording."""
    yield words(f"replay.same_process.{found.same_process}")
    for changed in found.segments:
        size = format_bytes(changed.size_bytes)
        yield words(f"replay.segments.{changed.is_new}", count=f"{changed.num_segments:,}", size=size)
    yield from table(difference_rows(found, words), right=frozenset({0, 1, 2})).splitlines()


def difference_rows(found: Difference, words: Words) -> list[tuple[str, ...]]:
    """Change, before, now and what: the peaks, then what grew at the peak and at the end."""
    peak, end = found.at_peak, found.at_end
    before, after = found.peak_reserved_before_bytes, found.peak_reserved_after_bytes
    reserved = () if before is None or after is None else (_changed(words("replay.what.reserved"), before, after),)
    return [
        (words("replay.change"), words("replay.was"), words("replay.is"), ""),
        *reserved,
        _changed(words("replay.what.peak"), peak.before_bytes, peak.after_bytes),
        *_moment(peak, words),
        _changed(words("replay.what.end"), end.before_bytes, end.after_bytes),
        *_moment(end, words),
    ]


def _moment(moment: Moment, words: Words) -> Iterator[tuple[str, ...]]:
    for row in moment.by_category:
        yield _changed("  " + category_name(row.name[0], words), row.before_bytes, row.after_bytes)
    for row in islice(moment.by_stack, SHOWN_CHANGES):
        yield _changed("  " + stack_name(row, words), row.before_bytes, row.after_bytes)


def stack_name(row: Grown, words: Words) -> str:
    """The frames of a group in one line."""
    return " < ".join(plain(name) for name in row.name[:FRAMES]) or words("replay.no_stack")


def _changed(what: str, before: int, after: int) -> tuple[str, ...]:
    return signed(after - before), format_bytes(before), format_bytes(after), what
