"""The answer for a terminal: verdict, ledger, phases, assumptions; readable without colour."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from datetime import date
from itertools import groupby
from textwrap import wrap
from typing import Final

from msgspec.structs import replace

from vramcast import report
from vramcast.domain.answer import (
    SLO_SHARE,
    Answer,
    Change,
    Found,
    HostNeed,
    LedgerEntry,
    Likest,
    PostTrainingAnswer,
    RankAnswer,
    ServeAnswer,
    Served,
    Speed,
    StepTime,
    Tried,
)
from vramcast.lazy import lazy_pattern
from vramcast.report.columns import table_lines, width_of
from vramcast.report.messages import Words
from vramcast.report.sentences import copies_of, cost_lines, headline, run_length, what_fills, word_of
from vramcast.units import format_bytes, format_seconds

SHOWN_PER_CATEGORY: Final = 4
"""Entries of a category before the rest is summed up; --explain shows all."""

NAME_WIDTH: Final = 66
OPTIONS_WIDTH: Final = 38
"""Columns of a change's options."""

LONG_S: Final = 10.0
HOUR_S: Final = 3600.0


def render(
    answer: Answer, words: Words, *, all_ranks: bool = False, explain: bool = False, today: date | None = None,
    height: int | None = None,
) -> str:
    """The whole report, what it rests on and what would help above the ledger.

    Args:
        answer: to the question
        words: of a language
        all_ranks: the ledger of every rank role
        explain: how every figure comes about
        today: what the age of a price counts from
        height: lines of the terminal; where the report has more, the ledger is folded
    """
    answer = words.spoken(answer)
    head = [*headlines(answer, words, today=today), ""]
    if answer.found is not None:
        head += [words("tried", count=answer.found.num_tried), *tried(answer.found, words), ""]
    for key, texts in (("assumed", answer.assumptions), ("warnings", answer.warnings)):
        if texts:
            head += [words(key), *(f"  - {text}" for text in texts), ""]
    if not answer.fits and answer.changes:
        head += [words("changes"), *changes(answer, words), ""]
    for entries in (None,) if explain else range(SHOWN_PER_CATEGORY, -1, -1):
        lines = [*head, *_details(answer, words, all_ranks=all_ranks, entries=entries)]
        if height is None or len(lines) <= height:
            break
    return "\n".join(lines).rstrip() + "\n"


def _details(answer: Answer, words: Words, *, all_ranks: bool, entries: int | None) -> Iterator[str]:
    """Where the bytes and the time are; `entries` of a category are shown, None: all, each explained."""
    explain = entries is None
    if isinstance(answer, PostTrainingAnswer):
        stage = words(f"phase.{answer.fullest.highest_phase}")
        yield from (words("stages"), *report.sentences.stage_lines(answer, words), "")
        yield words("card_ledger", stage=stage, count=answer.fullest.count)
        yield from (*ledger(answer.fullest, words, entries=entries), "")
    total = sum(rank.count for rank in answer.ranks)
    shown = () if isinstance(answer, PostTrainingAnswer) else answer.ranks if all_ranks else answer.ranks[:1]
    for rank in shown:
        key = "ledger" if rank is answer.fullest else "role"
        yield words(key, role=rank.role, count=rank.count, total=total)
        yield from (*ledger(rank, words, entries=entries), "")
        yield from (words("phases"), *phases(rank, words), "")
    if answer.host is not None and answer.host.parts:
        yield from (words("host_parts"), *host_parts(answer.host, words, explain=explain), "")
    if isinstance(answer, ServeAnswer):
        counts = answer.capacity.tokens_by_count if answer.capacity is not None else {}
        if len(counts) > 1:
            yield words("token_counts")
            yield from (*(f"  {left(name, 32)}{count:>14,}" for name, count in counts.items()), "")
        if explain and answer.speed is not None:
            yield from (words("where_time_goes"), *where_time_goes(answer.speed, words), "")
    if explain and answer.time is not None:
        yield from (words("where_time_goes"), *where_step_goes(answer.time, words), "")


def headlines(answer: Answer, words: Words, *, today: date | None = None) -> tuple[str, ...]:
    """What a search came to and the verdict; what the answer is without stands behind the first line."""
    first, *rest = (*search(answer.found, words), *verdict(answer, words, today=today))
    return (first, *unread(answer.ignored, words), *(f"  {text}" for text in answer.cautions), *rest)


def unread(ignored: Iterable[str], words: Words) -> tuple[str, ...]:
    """What of the files of a question its answer is without, in one line; none where there is nothing."""
    said = "; ".join(ignored)
    return ("  " + words("ignored", what=said),) if said else ()


def verdict(answer: Answer, words: Words, *, today: date | None = None) -> Iterator[str]:
    """Fits or not, the three levels, what was asked, and what it costs."""
    needed, capacity = answer.fullest.needed_bytes, answer.capacity_bytes
    if answer.host is not None and not answer.host.fits and needed <= capacity:
        places, shown = "; ".join(host(answer.host, words, short=True)), (format_bytes(needed), format_bytes(capacity))
        lacks = words("host_does_not_fit", places=places, needed=shown[0], capacity=shown[1])
        yield words("verdict.line", verdict=word_of(answer.verdict, words), reason=lacks)
    else:
        yield headline(answer, words)
    if needed > capacity:
        yield "  " + what_fills(answer.fullest, words)
    if answer.fullest.needed_bytes > answer.peak.device_bytes:
        yield words("phase_decides", phase=words(f"phase.{answer.fullest.highest_phase}"))
    low, high = answer.interval_bytes
    yield "  " + words(
        "levels" if answer.peak.reserved_bytes else "device_level",
        allocated=format_bytes(answer.peak.allocated_bytes),
        reserved=format_bytes(answer.peak.reserved_bytes),
        device=format_bytes(answer.peak.device_bytes),
        low=format_bytes(low),
        high=format_bytes(high),
    )
    if answer.fullest.likest is not None:
        yield "  " + trust(answer, answer.fullest.likest, words)
    if answer.host is not None and (answer.host.fits or needed > capacity):
        yield from (f"  {line}" for line in host(answer.host, words))
    asked = answer.question
    yield "  " + words(
        "question",
        model=asked["model"],
        parameters=f"{answer.num_parameters:,}",
        gpus=f"{asked['gpus']} ({asked['cards']})" if "cards" in asked else asked["gpus"],
        engine=asked["engine"],
    )
    if answer.time is not None:
        yield "  " + step_time(answer.time, words)
    if answer.run_hours is not None:
        yield "  " + words("run_length", length=run_length(answer.run_hours, words))
    served = isinstance(answer, ServeAnswer)
    if isinstance(answer, ServeAnswer):
        speeds = (*rates(answer.speed, words, loaded=answer.served is None), *under_traffic(answer.served, words))
        yield from (f"  {line}" for line in (*cache(answer, words), *speeds))
    costs = cost_lines(answer.cost, words, instance=asked["gpus"], today=today, generated=served,
                       copies=copies_of(answer))
    yield from (f"  {line}" for line in costs)


def trust(answer: Answer, likest: Likest, words: Words) -> str:
    """How likely it fits, and the measured runs that say so."""
    trainer = answer.question.get("trainer_engine")  # of post-training, whose update is what such runs are like
    engine = str(trainer or answer.question.get("engine", "")).partition("@")[0]
    key = "trust.update" if trainer else "trust.runs" if engine else "trust.traced"
    runs = words(key, runs=likest.runs, own=likest.own_engine, engine=engine,
                 miss=f"{100 * likest.median_miss:.2f} %")
    chance = answer.chance_to_fit
    return runs if chance is None else words("trust.chance", chance=likely(chance), runs=runs)


def likely(chance: float) -> str:
    """A chance; no number of measured runs makes one certain."""
    return "> 99 %" if chance > 0.99 else "< 1 %" if chance < 0.01 else f"{100 * chance:.0f} %"


def host(need: HostNeed, words: Words, *, short: bool = False) -> Iterator[str]:
    """What each place beside the cards must hold; `short`: only those that hold too little."""
    for place, needed, there, high in need.places:
        lacks = there is not None and needed > there
        if short and not lacks:
            continue
        key = "host_unknown" if there is None else "host_short" if lacks else "host_enough"
        if high is not None and not lacks:
            key = f"{key}_span" if there is None or high <= there else "host_tight"
        held, most = ("" if size is None else format_bytes(size) for size in (there, high))
        yield words(key, place=words(f"place.{place}"), needed=format_bytes(needed), there=held, most=most)


def host_parts(need: HostNeed, words: Words, *, explain: bool = False) -> Iterator[str]:
    """What a machine's main memory holds: both ends of every part; `explain`: how they come about."""
    for part in need.parts:
        name, low, high = words.said(part.name), format_bytes(part.low_bytes), format_bytes(part.high_bytes)
        yield f"  {left(name, 44)}{low:>14}{high:>14}"
        if explain:
            yield f"    {words.said(part.formula)} {part.source}"


def search(found: Found | None, words: Words) -> Iterator[str]:
    if found is None:
        return
    if found.what is None:
        yield words("found_nothing", count=found.num_tried)
    else:
        value = f"{found.value:,}" if isinstance(found.value, int) else found.value
        yield words(f"found.{found.goal}", value=value, what=found.what)
        if found.command:
            yield "  " + words("plan.command", command=found.command)


def tried(found: Found, words: Words) -> Iterator[str]:
    """A row for every plan next to the result, then the nearest that fails. What nothing is known of has no column."""
    shared = shared_options([one.what for one in found.tried])
    if shared:
        yield from wrap(words("tried.shared", options=shared), LINE, initial_indent="  ", subsequent_indent="    ",
                        break_on_hyphens=False)
        found = replace(found, tried=tuple(replace(one, what=without(one.what, shared)) for one in found.tried))
    cells, right = tried_cells(found, words)
    yield from table_lines(cells, right=right)
    if found.nearest_failing is not None and found.what is not None and not found.tried[0].parameters:
        yield "  " + words("nearest_failing", what=found.nearest_failing.what)


WIDE: Final = 60
"""Options of a plan beyond which a table leaves out what all of its plans have [columns]."""

LINE: Final = 100
"""[columns]"""

OPTION: Final = lazy_pattern(r"--[\w-]+(?: (?!--)\S+)*")


def shared_options(whats: Sequence[str]) -> str:
    """Options that all plans of a table have, where it would be too wide with them; "" where there are none.

    >>> shared_options(["--rollout-tp 8 --memory-fraction 0.65 --offload-parameters cpu --ulysses 8",
    ...     "--rollout-tp 8 --memory-fraction 0.65 --offload-parameters cpu --ulysses 4"])
    '--rollout-tp 8 --memory-fraction 0.65 --offload-parameters cpu'
    """
    if max(map(len, whats), default=0) <= WIDE:
        return ""
    each = [OPTION.findall(what) for what in whats]
    return " ".join(option for option in each[0] if all(option in other for other in each))


def without(what: str, shared: str) -> str:
    """The options of a plan beside those.

    >>> without("--rollout-tp 8 --memory-fraction 0.65", "--rollout-tp 8")
    '--memory-fraction 0.65'
    """
    return " ".join(option for option in OPTION.findall(what) if option not in OPTION.findall(shared))


def tried_cells(found: Found, words: Words) -> tuple[list[tuple[str, ...]], frozenset[int]]:
    """The head and the rows of the plans next to the result, and which columns are figures."""
    keys = ("plan", "", "kv_tokens", "sequences", "plan.memory", "found.parameters", "found.model", "tokens_per_s")
    head = (*(words(key) if key else "" for key in keys), words("why_not"))
    serving = any(one.kv_tokens is not None for one in found.tried)
    rows = [head, *(_tried_row(one, words, serving=serving) for one in found.tried)]
    kept = [index for index in range(len(head)) if index == 1 or any(row[index] for row in rows[1:])]
    right = frozenset(place for place, index in enumerate(kept) if index in (2, 3, 4, 5, 7))
    return [tuple(row[index] for index in kept) for row in rows], right


def _tried_row(one: Tried, words: Words, *, serving: bool) -> tuple[str, ...]:
    return (
        one.what,
        word_of(one.verdict, words),
        "" if one.kv_tokens is None else f"{one.kv_tokens:,}",
        "" if one.concurrency is None else f"{one.concurrency:,.1f}",
        "" if one.needed_bytes is None or serving else format_bytes(one.needed_bytes),
        "" if one.parameters is None else f"{one.parameters / 1e9:,.1f}B",
        one.model or "",
        "" if one.tokens_per_s is None else f"{one.tokens_per_s:,.0f}",
        one.reason,
    )


def cache(answer: ServeAnswer, words: Words) -> Iterator[str]:
    """What the cache holds; nothing where the engine has none."""
    asked, capacity = answer.question["requests"], answer.capacity
    if capacity is not None:
        yield words(
            "capacity",
            tokens=f"{capacity.kv_tokens:,}",
            concurrency=f"{capacity.concurrency:,.1f}",
            context=f"{asked['context']:,}",
        )
        yield words("longest_context", sequences=asked["concurrency"], longest=f"{capacity.longest_context:,}")
        if capacity.safe_fraction is not None:
            yield words("safe_fraction", fraction=f"{capacity.safe_fraction:.2f}")


def rates(speed: Speed | None, words: Words, *, loaded: bool = True) -> Iterator[str]:
    """Of a plan; `loaded`: of so many users, too, who ask again once an answer is complete."""
    if speed is not None:
        yield words(
            "speed_prefill",
            first=_wait(speed.time_to_first_token_s),
            prompt=f"{speed.prompt_tokens:,}",
            rate=f"{speed.prefill_tokens_per_s:,.0f}",
            bound=words(f"bound.{speed.prefill_bound}"),
        )
        if speed.tokens_per_s is not None:
            yield words(
                "speed_decode",
                user=f"{speed.decode_tokens_per_s_per_user:,.1f}",
                rate=f"{speed.decode_tokens_per_s:,.0f}",
                context=f"{speed.mean_context:,}",
                bound=words(f"bound.{speed.decode_bound}"),
            )
            yield words(
                "speed_sustained",
                user=f"{speed.tokens_per_s_per_user:,.1f}",
                rate=f"{speed.tokens_per_s:,.0f}",
                prompt=f"{speed.prompt_tokens:,}",
                answer=f"{speed.answer_tokens:,}",
            )
        first_s = speed.loaded_first_token_s or 0.0
        if loaded and first_s > 1.001 * speed.time_to_first_token_s:
            yield words(
                "speed_loaded",
                first=_wait(first_s),
                together=_wait(speed.burst_first_token_s or 0),
                token=f"{1000 * (speed.loaded_token_s or 0):,.1f} ms",
            )
        first, token = speed.loaded_first_token_interval_s, speed.loaded_token_interval_s
        if loaded and first is not None and token is not None:
            yield words(
                "speed_interval",
                first=_wait(first[0]), first_most=_wait(first[1]),
                token=f"{1000 * token[0]:,.1f}", token_most=f"{1000 * token[1]:,.1f} ms",
            )


def _wait(seconds: float) -> str:
    """How long somebody waits: in ms below ten seconds, in hours from two on."""
    if seconds < LONG_S:
        return f"{1000 * seconds:,.0f} ms"
    return f"{seconds:,.1f} s" if seconds < 2 * HOUR_S else f"{seconds / HOUR_S:,.1f} h"


def under_traffic(served: Served | None, words: Words) -> Iterator[str]:
    """What those get who send requests at their own times."""
    if served is None:
        return
    yield words("traffic", requests=f"{served.requests:,}", rate=f"{served.rate:,.3g}", most=f"{served.most_rate:,.3g}")
    for key, found in (("ttft", served.first_token_s), ("tpot", served.token_s), ("itl", served.between_tokens_s),
                       ("e2e", served.end_to_end_s)):
        middle, most, highest = (f"{1000 * value:,.{0 if value >= 0.1 else 1}f} ms"
                                 for value in (found.p50, found.p90, found.p99))
        yield "  " + words(f"traffic.{key}", p50=middle, p90=most, p99=highest)
    yield words(
        "traffic.load", tokens=f"{served.tokens_per_s:,.0f}", card=f"{served.tokens_per_s_per_gpu:,.0f}",
        running=f"{served.running_mean:,.1f}", most=f"{served.running_most:,}", waiting=f"{served.waiting_most:,}",
        mean=f"{served.cache_mean:.0%}", cache=f"{served.cache_most:.0%}", cut=f"{served.preemptions:,}",
    )
    if served.slo_share is not None:
        yield words("traffic.slo", slo=", ".join(f"{name} < {1000 * limit:,.4g} ms" for name, limit in
                    served.slo.items()), share=f"{served.slo_share:.1%}", goodput=f"{served.goodput or 0:,.3g}")
    if served.slo_rate is not None:
        yield words("traffic.slo_rate", share=f"{SLO_SHARE:.0%}", rate=f"{served.slo_rate:,.3g}")


def where_time_goes(speed: Speed, words: Words) -> Iterator[str]:
    """Shares of the time of both phases, and what the rates rest on."""
    for key, shares in (("prefill", speed.prefill_shares), ("decode", speed.decode_shares)):
        parts = sorted((shares or {}).items(), key=lambda item: -item[1])
        shown = ", ".join(f"{words(f'cause.{cause}')} {share:.0%}" for cause, share in parts if share >= 0.005)
        if shown:
            yield f"  {words(key)}: {shown}"
    yield from (f"  {words('source')}: {text}" for text in speed.sources)


def step_time(time: StepTime, words: Words) -> str:
    """Seconds of a step, throughput, utilisation, and what it waits for."""
    return words(
        "step_time" if time.mfu is None else "step_time_mfu",
        step=format_seconds(time.step_s),
        rate=f"{time.tokens_per_s:,.0f}",
        mfu=f"{time.mfu or 0:.0%}",
        bound=words(f"bound.{time.bound}"),
    )


def where_step_goes(time: StepTime, words: Words) -> Iterator[str]:
    """Parts of a step, largest first; they add up to it. Then what the rates rest on."""
    for cause, seconds in sorted(time.seconds.items(), key=lambda item: -item[1]):
        yield f"  {left(words(f'cause.{cause}'))}{format_seconds(seconds):>12}{seconds / time.step_s:>6.0%}"
    yield from (f"  {words('source')}: {text}" for text in time.sources)


def ledger(rank: RankAnswer, words: Words, *, entries: int | None = SHOWN_PER_CATEGORY) -> Iterator[str]:
    """Entries by category, largest first; they add up to the device peak of the steady step.

    Args:
        rank: whose
        words: of a language
        entries: of a category before the rest is summed up; None: all, each explained
    """
    by_category = sorted(rank.ledger, key=lambda entry: entry.category)
    groups = [(category, list(entries)) for category, entries in groupby(by_category, lambda entry: entry.category)]
    groups.sort(key=lambda group: -sum(entry.num_bytes for entry in group[1]))
    for category, of_category in groups:
        size = sum(entry.num_bytes for entry in of_category)
        if not size:
            continue
        yield f"  {left(words(f'category.{category}'))}{format_bytes(size):>12}"
        if entries is None:
            yield from _explained(of_category, words)
        elif entries:
            yield from _shortened(of_category, words, entries)
    yield f"  {left(words('total'))}{format_bytes(rank.peak.device_bytes):>12}"


def _shortened(entries: list[LedgerEntry], words: Words, most: int) -> Iterator[str]:
    entries = sorted(entries, key=lambda entry: -entry.num_bytes)
    shown, rest = entries[:most], entries[most:]
    if len(entries) == 1 and entries[0].category == "allocator":
        return
    for entry in shown:
        yield f"    {left(_name(entry), NAME_WIDTH - 2)}{format_bytes(entry.num_bytes):>12}"
    if rest:
        size = format_bytes(sum(entry.num_bytes for entry in rest))
        yield f"    {left(words('others', count=len(rest)), NAME_WIDTH - 2)}{size:>12}"


def _explained(entries: list[LedgerEntry], words: Words) -> Iterator[str]:
    for entry in sorted(entries, key=lambda entry: -entry.num_bytes):
        yield f"    {left(_name(entry), NAME_WIDTH - 2)}{format_bytes(entry.num_bytes):>12}"
        if entry.formula:
            times = f"{entry.count} x ({entry.formula})" if entry.count != 1 else entry.formula
            yield f"      {words('formula')}: {times} = {entry.num_bytes:,} B"
        yield f"      {words('basis')}: {words.said(entry.basis)}" + (
            f"; {words('source')}: {entry.source}" if entry.source else ""
        )


def _name(entry: LedgerEntry) -> str:
    name = entry.path.partition("/")[2]
    times = f" x {entry.count}" if entry.count != 1 else ""
    limit = NAME_WIDTH - 4 - len(times)
    return (name if len(name) <= limit else name[: limit - 1] + "…") + times


def phases(rank: RankAnswer, words: Words) -> Iterator[str]:
    if not rank.peak.reserved_bytes:  # an engine with an allocator of its own
        yield from (
            f"  {left(words(f'phase.{name}'), 16)}{format_bytes(peak.device_bytes):>14}"
            for name, peak in rank.phases.items()
        )
        return
    head = (words(key) for key in ("allocated", "reserved", "device"))
    yield f"  {'':<16}" + "".join(" " * (14 - width_of(name)) + name for name in head)
    for name, peak in rank.phases.items():
        values = (peak.allocated_bytes, peak.reserved_bytes, peak.device_bytes)
        yield f"  {left(words(f'phase.{name}'), 16)}" + "".join(f"{format_bytes(value):>14}" for value in values)


def changes(answer: Answer, words: Words) -> Iterator[str]:
    if not any(change.fits for change in answer.changes):
        yield "  " + words("no_changes")
    for change in answer.changes:
        name, size, mark, cost = change_cells(change, answer, words)
        if width_of(name) >= OPTIONS_WIDTH:  # several options: what they come to stands beneath them
            yield f"  {name}"
            name = ""
        yield f"  {left(name, OPTIONS_WIDTH)}{size:>13}  {left(mark, 13)} {cost}".rstrip()


def change_cells(change: Change, answer: Answer, words: Words) -> tuple[str, str, str, str]:
    """A change of an answer's plan, what it leads to, the verdict on that, and what it costs."""
    mark = word_of(change.verdict, words)
    size = format_bytes(change.device_bytes)
    if change.concurrency:
        size = words("holds", sequences=f"{change.concurrency:,.1f}")
    return change.change, size, mark, cost_words(change, words)


def cost_words(change: Change, words: Words) -> str:
    """What a change costs, the time in figures where it is known."""
    cost = change.cost
    if change.slowdown is None:
        return cost
    key = "change.slower" if change.slowdown >= 0 else "change.faster"
    return words(key, cost=cost, share=f"{abs(change.slowdown):.0%}")


def left(text: str, columns: int = NAME_WIDTH) -> str:
    """A text with blanks behind it, as many as fill so many columns of a terminal."""
    return text + " " * (columns - width_of(text))
