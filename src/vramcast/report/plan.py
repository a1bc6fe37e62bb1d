"""The answer of a search for a terminal: the winner, the table, why it wins, what nearly fits, the way there."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from datetime import date
from typing import Final, NamedTuple

from vramcast.domain.answer import Answer, ServeAnswer
from vramcast.domain.planning import NO_ROOM, Decision, Goal, MissedLimit, PlanAnswer, Technique
from vramcast.report.columns import table_lines, table_rows
from vramcast.report.document import decision_words, fleet_words, reason_words, split_labels, technique_words
from vramcast.report.messages import Words
from vramcast.report.picture import scatter
from vramcast.report.sentences import dated, headline, money, run_length, word_of
from vramcast.report.text import cost_words, host, under_traffic, unread
from vramcast.units import format_bytes

SHOWN_TECHNIQUES: Final = 0.01
"""Techniques that save less than this share are left to --explain."""

SAVES: Final = 2

AGAINST: Final = 6
"""Column of the engine that a technique is compared on."""

SERVED_KEYS: Final = {
    False: ("tokens_per_s", "plan.price"), True: ("plan.rate_of_all", "plan.price_generated"),
}
"""Whether plans are of deployments -> heads of their last columns."""

GIVES_BACK: Final = "*"
"""Mark of plans that fit only because the allocator gives cached memory back."""


def render(answer: PlanAnswer, words: Words, *, explain: bool = False, today: date | None = None) -> str:
    """The whole report; `today` is what the age of a price counts from."""
    answer = words.spoken(answer)
    sections: list[tuple[str, Iterable[str]]] = [
        ("", _lead(answer, words, today)),
        ("plan.table", _plans(answer, words)),
        (reasons_key(answer), reasons_of(answer, words)),
        (nearest_key(answer), nearest(answer, words)),
        ("plan.decisions", decisions_of(answer.decisions, words, engine=engine_of(answer))),
        ("plan.techniques", _techniques(answer, words, explain=explain)),
        ("plan.picture", scatter(answer.front, words)),
        ("assumed", (f"  - {text}" for text in answer.assumptions)),
        ("warnings", (f"  - {text}" for text in answer.warnings if text != words.said(NO_ROOM))),
    ]
    lines: list[str] = []
    for key, body in sections:
        found = list(body)
        if found:
            lines += [*([words(key)] if key else []), *found, ""]
    return "\n".join(lines).rstrip() + "\n"


def _lead(answer: PlanAnswer, words: Words, today: date | None) -> tuple[str, ...]:
    """The winner; what the answer is without stands behind its first line."""
    first = tuple(winner(answer, words, today))
    return (*first[:1], *unread(answer.ignored, words), *first[1:])


def opening(answer: PlanAnswer, words: Words, today: date) -> tuple[str, ...]:
    """The same where nothing indents its lines; where nothing was searched, what was computed instead."""
    lines = stripped(_lead(answer, words, today))
    return tuple(lines) if answer.num_plans else (words("plan.techniques"), *lines)


def stripped(lines: Iterable[str]) -> Iterator[str]:
    """Lines of the report for a terminal without what indents and marks them there."""
    for line in lines:
        yield line.strip().removeprefix("- ")


def lack(answer: PlanAnswer) -> str:
    """Ending of the messages where nothing is found: the nearest may have room, and miss a limit or have no speed."""
    nearest = answer.nearest_failing
    if answer.plans or nearest is None or not nearest.fits:
        return ""
    timed = not isinstance(nearest, ServeAnswer) or nearest.speed is not None
    return ".limit" if timed else ".untimed"


def nearest_key(answer: PlanAnswer) -> str:
    """What the nearest plan is: it may fit, and leave too little free to be offered beside the plans found."""
    nearest = answer.nearest_failing
    left_out = answer.plans and nearest is not None and nearest.fits
    return "plan.nearest.left_out" if left_out else f"plan.nearest{lack(answer)}"


def reasons_key(answer: PlanAnswer) -> str:
    return "plan.reasons" if answer.plans else f"plan.why_none{lack(answer)}"


def winner(answer: PlanAnswer, words: Words, today: date | None) -> Iterator[str]:
    """One line that says which plan, one that says what it comes to; nothing where nothing was searched."""
    if not answer.num_plans:
        return
    if not answer.plans:
        count = f"{answer.num_plans:,}"
        if answer.missed:
            yield words("plan.limits_missed", count=count, fitting=f"{answer.num_in_memory:,}")
            yield from _missed(answer.missed, words)
        else:
            yield words(f"plan.nothing_fits{lack(answer)}", count=count)
        return
    best = answer.plans[0]
    goal = answer.question["goal"]
    unpriced = goal == "cheapest" and best.cost is None
    label = _labels(answer, words)[0]
    yield words("plan.best", goal=words("goal.gpu-hours" if unpriced else f"goal.{goal}"), label=label)
    yield "  " + words("plan.comma").join(summary(best, words))
    if words.said(NO_ROOM) in answer.warnings:
        yield "  " + words("plan.caution", text=words.said(NO_ROOM))
    if isinstance(best, ServeAnswer):
        yield from (f"  {line}" for line in under_traffic(best.served, words))
    yield from (f"  {line}" for line in _cautions(best, words))
    if best.cost is not None:
        yield f"  {dated(best.cost.price, words, today)}"
    if answer.command:
        key = "plan.replica" if isinstance(best, ServeAnswer) else "plan.command"
        yield "  " + words(key, command=answer.command)
    yield "  " + words("plan.counts", plans=f"{answer.num_plans:,}", fitting=f"{answer.num_fitting:,}")


def _labels(answer: PlanAnswer, words: Words) -> list[str]:
    """The options of each plan, of deployments with the number of replicas."""
    fleets = [plan.fleet if isinstance(plan, ServeAnswer) else None for plan in answer.plans]
    return [
        label if fleet is None else f"{label} {fleet_words(fleet, words)}"
        for label, fleet in zip(answer.labels, fleets, strict=True)
    ]


def _missed(missed: Iterable[MissedLimit], words: Words) -> Iterator[str]:
    """Each limit of the run with the best there is, and what would keep it."""
    for one in missed:
        least, allowed = (_amount(value, one.unit, words) for value in (one.least, one.allowed))
        yield "  " + words(f"plan.missed.{one.limit}", least=least, allowed=allowed)
        yield f"    {one.label}"
        if one.enough is not None:
            yield "  " + words("plan.enough", times=one.times, amount=_amount(one.enough, one.unit, words))
            yield f"    {one.enough_label}"
        elif one.limit == "deadline":
            yield "  " + words("plan.none_enough")


def _amount(value: float, unit: str, words: Words) -> str:
    return run_length(value, words) if unit == "hours" else money(value, unit)


def _cautions(best: Answer, words: Words) -> Iterator[str]:
    """How sure the winner's memory is, what it needs beside the cards, and what to know before running it."""
    low, high = best.interval_bytes
    yield words("plan.interval", low=format_bytes(low), high=format_bytes(high))
    if best.host is not None:
        yield from host(best.host, words)
    yield from (words("plan.caution", text=text) for text in best.warnings)


def summary(answer: Answer, words: Words) -> Iterator[str]:
    """Memory, speed and price of one plan, as far as they are known."""
    yield headline(answer, words)
    if isinstance(answer, ServeAnswer):
        yield from _served(answer, words)
    if answer.time is not None:
        yield words("plan.step", seconds=seconds(answer.time.step_s))
        yield words("plan.speed", rate=f"{answer.time.tokens_per_s:,.0f}")
        if answer.time.mfu is not None:
            yield f"{answer.time.mfu:.0%} MFU"
    if answer.cost is not None:
        currency, cost = answer.cost.price.currency, answer.cost
        yield words("plan.per_hour", amount=money(cost.per_hour, currency))
        if cost.per_million_tokens is not None:
            key = "plan.per_generated" if isinstance(answer, ServeAnswer) else "plan.per_tokens"
            yield words(key, amount=money(cost.per_million_tokens, currency))
        if cost.per_run is not None:
            yield words("plan.per_run", amount=money(cost.per_run, currency))
    if answer.run_hours is not None:
        yield words("plan.run_length", length=run_length(answer.run_hours, words))


def _served(answer: ServeAnswer, words: Words) -> Iterator[str]:
    served = answer.served
    if served is not None:
        yield words("plan.ttft_most", seconds=seconds(served.first_token_s.p90))
        if served.token_s.p50:
            yield words("plan.median_speed", rate=f"{1 / served.token_s.p50:,.1f}")
    elif answer.speed is not None:
        yield words("plan.ttft", seconds=seconds(answer.speed.time_to_first_token_s))
        if answer.speed.tokens_per_s_per_user is not None:
            yield words("plan.per_user", rate=f"{answer.speed.tokens_per_s_per_user:,.1f}")
    if answer.fleet is not None:
        yield words("plan.all_replicas", rate=f"{answer.fleet.tokens_per_s:,.0f}")


def _plans(answer: PlanAnswer, words: Words) -> Iterator[str]:
    """The ranked plans; options that all of them have stand above the table."""
    if not answer.plans:
        return
    above, cells, right, below = plan_cells(answer, words)
    yield from (f"  {line}" for line in above)
    yield from table_lines(cells, right=right, folded=1)
    yield from (f"  {line}" for line in below)


class PlanCells(NamedTuple):
    """The table of ranked plans."""

    above: tuple[str, ...]  # what holds for all of them
    cells: list[tuple[str, ...]]  # the head first
    right: frozenset[int]  # columns of figures
    below: tuple[str, ...]


def plan_cells(answer: PlanAnswer, words: Words) -> PlanCells:
    """A row for each plan; what nothing is known of has no column."""
    shared, own = split_labels(answer.labels)
    fleets = [label.removeprefix(text) for label, text in zip(_labels(answer, words), answer.labels, strict=True)]
    served = isinstance(answer.plans[0], ServeAnswer)
    least = answer.question.get("goal") == Goal.LEAST_MEMORY.value and served
    above = [words("plan.shared", options=shared)] if shared and len(answer.labels) > 1 else []
    above += [words("plan.measure")] if least else []
    marks = [any(rank.gives_back_cache for rank in plan.ranks) for plan in answer.plans]
    blank = " " if any(marks) else ""  # figures stay below each other
    keys = ("", "plan", "plan.memory", "plan.needed", "plan.needed_each", "plan.step_s", "plan.first_token",
            "plan.users_each", *SERVED_KEYS[served])
    rows = [tuple(words(key) if key else "" for key in keys)]
    for rank, (text, fleet, plan, marked) in enumerate(zip(own, fleets, answer.plans, marks, strict=True), 1):
        rows.append(_row(rank, text + fleet, plan, GIVES_BACK if marked else blank, load=least))
    kept = [index for index in range(len(rows[0])) if index < 3 or any(row[index] for row in rows[1:])]
    cells = [tuple(row[index] for index in kept) for row in rows]
    below = [words("plan.gives_back", mark=GIVES_BACK)] if any(marks) else []
    below += [words("plan.alike")] if not served and answer.num_fitting > len(answer.plans) else []
    return PlanCells(tuple(above), cells, frozenset(range(2, len(kept))) | {0}, tuple(below))


def _row(rank: int, text: str, plan: Answer, mark: str, *, load: bool) -> tuple[str, ...]:
    time, cost = plan.time, plan.cost
    speed, fleet = (plan.speed, plan.fleet) if isinstance(plan, ServeAnswer) else (None, None)
    rate = fleet.tokens_per_s if fleet else time.tokens_per_s if time else None
    each, first = (speed.tokens_per_s_per_user, speed.time_to_first_token_s) if speed else (None, None)
    served = plan.served if isinstance(plan, ServeAnswer) else None
    if served is not None:
        first, each = served.first_token_s.p90, 1 / served.token_s.p50 if served.token_s.p50 else None
    needs = plan.load if isinstance(plan, ServeAnswer) and load else None
    per_tokens = cost.per_million_tokens if cost is not None else None
    return (
        str(rank),
        text,
        format_bytes(plan.fullest.needed_bytes) + mark,
        "" if needs is None else format_bytes(needs.total_bytes * (fleet.replicas if fleet else 1)),
        "" if needs is None else format_bytes(needs.per_gpu_bytes),
        "" if time is None else seconds(time.step_s),
        "" if first is None else seconds(first),
        "" if each is None else f"{each:,.1f}",
        "" if rate is None else f"{rate:,.0f}",
        "" if cost is None or per_tokens is None else money(per_tokens, cost.price.currency),
    )


def reasons_of(answer: PlanAnswer, words: Words) -> Iterator[str]:
    """Why the winner wins, or what the nearest one lacks, a line each."""
    yield from (f"  - {reason_words(reason, str(answer.question['goal']), words)}" for reason in answer.reasons)


def nearest(answer: PlanAnswer, words: Words) -> Iterator[str]:
    if answer.nearest_failing is None:
        return
    yield f"  {answer.nearest_label}"
    yield "  " + words("plan.comma").join(summary(answer.nearest_failing, words))
    change = answer.change
    if change is not None:
        size = format_bytes(change.device_bytes)
        cost = cost_words(change, words)
        fit = word_of(change.verdict, words)
        yield "  " + words(f"plan.change{lack(answer)}", verdict=fit, change=change.change, size=size, cost=cost)


def engine_of(answer: PlanAnswer) -> str | None:
    """The engine that the answer is about: the winner's, or the only one asked for."""
    asked = answer.plans[0].question["engine"] if answer.plans else answer.question.get("engine")
    named = [asked] if isinstance(asked, str) else asked
    return named[0].partition("@")[0] if named and len(named) == 1 else None


def decisions_of(decisions: tuple[Decision, ...], words: Words, *, engine: str | None) -> Iterator[str]:
    """Question, finding with its figures, and what follows; figures of another engine under its name."""
    for number, decision in enumerate(decisions, 1):
        said = decision_words(decision, words)
        other = f"({decision.engine}) " if decision.engine not in ("", engine) else ""
        yield f"  {number}. {said.question} {other}{said.finding} -> {said.action}"


def _techniques(answer: PlanAnswer, words: Words, *, explain: bool) -> Iterator[str]:
    """One row each; --explain adds when to use it and what it needs."""
    techniques = answer.techniques
    shown = [row for row in techniques if explain or abs(_share(row)) >= SHOWN_TECHNIQUES]
    if not shown:
        return
    cells, right = technique_cells(shown, answer, words, short=not explain)
    head, *lines = table_rows(cells, right=right, folded=len(cells[0]) - 1)
    yield from (f"  {line}" for line in head)
    for row, own in zip(shown, lines, strict=True):
        yield from (f"  {line}" for line in own)
        if explain:
            said = technique_words(row, words)
            yield "      " + words("plan.when", when=said.when, needs=said.needs)
    if len(shown) < len(techniques):
        yield "  " + words("plan.more_techniques", count=len(techniques) - len(shown))


def technique_cells(
    techniques: Sequence[Technique], answer: PlanAnswer, words: Words, *, short: bool = False
) -> tuple[list[tuple[str, ...]], frozenset[int]]:
    """The table of techniques; a short one has of what each saves its share alone, and not what it is against."""
    keys = ("technique", "plan.memory", "plan.saves", "plan.slower", "plan.verdict", "plan.against", "plan.options")
    saves = ("", words(keys[2])) if short else (words(keys[2]), "")
    head = (words(keys[0]), words(keys[1]), *saves, *(words(key) for key in keys[3:]))
    rows = [head, *(_technique_row(row, words) for row in techniques)]
    alike = {row.against for row in techniques} <= {"", engine_of(answer)}
    kept = [
        index for index in range(len(head))
        if index in (3, 5) or (any(row[index] for row in rows[1:]) and not (alike and index == AGAINST))
    ]
    kept = [index for index in kept if not (short and index in (SAVES, AGAINST))]
    right = frozenset(place for place, index in enumerate(kept) if index in (1, 2, 3, 4))
    return [tuple(row[index] for index in kept) for row in rows], right


def _technique_row(row: Technique, words: Words) -> tuple[str, ...]:
    return (
        technique_words(row, words).name,
        format_bytes(row.device_bytes),
        format_bytes(row.saves_bytes),
        f"{_share(row):.0%}",
        "" if row.slowdown is None else f"{round(row.slowdown, 2) + 0.0:+.0%}",
        word_of(row.verdict, words),
        row.against,
        f"{row.change} ({row.lacks})" if row.lacks else row.change,
    )


def _share(row: Technique) -> float:
    return row.saves_bytes / max(1, row.device_bytes + row.saves_bytes)


def seconds(value: float) -> str:
    """Three significant digits with their unit.

    >>> seconds(0.0123), seconds(2.5), seconds(75.0)
    ('12.3 ms', '2.50 s', '75.0 s')
    """
    if value < 1:
        return f"{1000 * value:.3g} ms"
    return f"{value:.2f} s" if value < 10 else f"{value:,.1f} s"
