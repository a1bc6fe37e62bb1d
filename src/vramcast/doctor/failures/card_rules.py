"""Evidence in the figures of a card: what they add up to, and which cause that speaks for.

[message] pytorch c10/cuda/CUDACachingAllocator.cpp; [specification of the figures] `case.py`
"""

from __future__ import annotations

from typing import Final, NamedTuple

from vramcast.doctor.failures.case import LIBRARIES, ROUNDING, Case, Holds, Rule, Values, between, known, percent, size
from vramcast.domain.failure import Cause
from vramcast.units import GIB, MIB

BESIDE: Final = 2 * GIB
"""More than a context with libraries and NCCL takes in a usual process: `catalogue/contexts.csv` has 0.1 to 1.6 GiB,
libraries that are loaded eagerly 1 GiB [bytes]."""

BESIDE_SHARE: Final = 0.3
BESIDE_SMALL: Final = GIB
"""Of a small card: few multiprocessors make a small context, 0.2 to 0.9 GiB on cards of 1 to 4 GiB."""

NEAR: Final = 64 * MIB
"""Less free memory than this above a request is none: the driver maps pages of 2 MiB, and keeps some [bytes]."""

BEGUN: Final = 64 * MIB
"""A process that holds less has not begun its work: nothing can be in pieces yet [bytes]."""

SMALLEST_LARGE_SEGMENT: Final = 20 * MIB
"""Of the caching allocator, for requests from 1 to 10 MiB [bytes]."""

CHANCE: Final = 0.002
"""Share of a card up to which a request is so small that passing one of 19 round shares is no chance."""

LARGE: Final = 0.05
"""Share of a card from which on a request is large: it then matters that Windows counts as free what it may not map."""

SMALL_CARD: Final = int(4.5 * GIB)
"""Of such a card context and libraries alone take a tenth or more [bytes]."""

USUAL_SCATTER: Final = 0.1
"""Share of reserved memory that is unallocated in healthy runs: median 0.09 of twelve recorded from their first
allocation on, at their peak."""

MUCH_SCATTER: Final = 0.25
"""More than the largest of the same twelve, 0.19."""

HUGE: Final = 1 << 50
"""No tensor of this size was meant: a product of sizes overflowed [bytes]."""


class Shares(NamedTuple):
    """Shares of the card, 0 where the figures do not give them."""

    allocated: float = 0.0
    tried: float = 0.0
    others: float = 0.0
    beside: float = 0.0
    outside: float = 0.0  # beyond what a context takes


def shares(case: Case) -> Shares:
    """What part of the card each holder has."""
    figures = case.figures
    if not figures.total:
        return Shares()
    total = figures.total
    usual = min(BESIDE, max(BESIDE_SMALL, int(BESIDE_SHARE * total)))
    unexplained = max(0, (figures.outside or 0) - usual) if figures.process is None else 0
    return Shares(
        allocated=(figures.allocated or 0) / (figures.limit or total),
        tried=(figures.tried or 0) / total,
        others=(figures.others or 0) / total,
        beside=(figures.beside or 0) / total,
        outside=unexplained / total if figures.others is None else 0.0,
    )


def enough_free(case: Case) -> bool:
    """Whether the driver had the request free, and to spare."""
    figures = case.figures
    return known(figures.tried, figures.free) and figures.free >= figures.tried + NEAR  # type: ignore[operator]


def _joined(case: Case) -> bool:
    """Whether free memory and pieces together would have been enough, where free memory was not."""
    figures = case.figures
    if not known(figures.tried, figures.free, figures.unallocated) or enough_free(case):
        return False
    return figures.unallocated + figures.free >= figures.tried  # type: ignore[operator]


def _pieces(low: float, high: float) -> Holds:
    """The pieces alone would have been enough, and are this share of what is reserved."""

    def holds(case: Case) -> bool:
        figures = case.figures
        return _joined(case) and (figures.unallocated or 0) >= (figures.tried or 0) and (
            between(low, figures.scattered, high)
        )

    return holds


def _table_in_pieces(case: Case) -> bool:
    """A summary after a failure: much of what is reserved lies between live tensors, whatever was asked for."""
    failed = case.number("num_ooms") or case.number("num_alloc_retries")
    return case.family == "memory-summary" and bool(failed) and between(MUCH_SCATTER, case.figures.scattered, 2)


def _both(case: Case) -> bool:
    return _joined(case) and (case.figures.unallocated or 0) < (case.figures.tried or 0) and (
        between(USUAL_SCATTER, case.figures.scattered, 2)
    )


def _without(case: Case, held: int | None) -> bool:
    """Whether the request would have been served without what somebody holds, and only without it."""
    figures = case.figures
    return not enough_free(case) and known(figures.tried, figures.free, held) and figures.free + held >= figures.tried  # type: ignore[operator]


def _others(low: float, high: float) -> Holds:
    return lambda case: between(low, shares(case).others, high) and _without(case, case.figures.others)


def _outside(low: float, high: float) -> Holds:
    return lambda case: between(low, shares(case).outside, high) and _without(case, case.figures.outside)


def _beside(low: float, high: float) -> Holds:
    return lambda case: between(low, shares(case).beside, high) and not enough_free(case) and not _spilled(case)


def _spilled(case: Case) -> bool:
    figures = case.figures
    held = max(figures.allocated or 0, figures.reserved or 0)
    return bool(figures.total) and held > figures.total  # type: ignore[operator]


def _fraction(case: Case) -> bool:
    figures = case.figures
    held = figures.reserved if figures.reserved is not None else figures.allocated
    if not known(figures.allowed, figures.tried, held) or case.family == "torch-mps":
        return False
    # a message names the fraction only where one is set; with enough free nothing else refuses
    return enough_free(case) or held + figures.tried > figures.allowed  # type: ignore[operator]


def round_share(case: Case) -> float | None:
    """The round share of the card that the request would have passed, with memory free: a fraction not named.

    Torch 2.1 to 2.7 leave the limit out of the message. What is reserved stays below share times card, and the segment
    for the request would have gone beyond; for small requests a chance hit is rare.
    """
    figures = case.figures
    if figures.allowed is not None or not enough_free(case) or not known(figures.reserved, figures.total):
        return None
    total, reserved = figures.total, figures.reserved
    segment = max(figures.tried or 0, SMALLEST_LARGE_SEGMENT)
    if not total or reserved is None or reserved < BEGUN or segment > total * CHANCE:
        return None
    limits = ((share / 20, share * total / 20) for share in range(1, 20))
    return next((share for share, limit in limits if reserved <= limit + ROUNDING and reserved + segment > limit), None)


def _running(case: Case) -> bool:
    return enough_free(case) and not _fraction(case) and (case.figures.reserved or 0) >= BEGUN


def _starting(case: Case) -> bool:
    return enough_free(case) and not _fraction(case) and (
        known(case.figures.reserved) and case.figures.reserved < BEGUN  # type: ignore[operator]
    )


def _short(case: Case) -> bool:
    """Neither what is free nor what would be free without gaps or others holds the request."""
    figures = case.figures
    if not known(figures.tried, figures.free, figures.unallocated) or enough_free(case) or _joined(case):
        return False
    elsewhere = figures.others is not None and _without(case, figures.others)
    return not (_spilled(case) or elsewhere or (shares(case).outside > 0 and _without(case, figures.outside)))


def _live_and_free(case: Case) -> bool:
    """Of what live tensors hold and what is free most is live, where the size of the card is not told."""
    figures = case.figures
    if figures.total is not None or figures.unallocated is not None:
        return False
    if not known(figures.tried, figures.free, figures.allocated):
        return False
    return figures.tried > figures.free and figures.allocated > 3 * figures.free  # type: ignore[operator]


def _missing(case: Case) -> dict[str, str]:
    figures = case.figures
    both = (figures.unallocated or 0) + (figures.free or 0)
    return _on_card("tried", "free", "unallocated")(case) | {"missing": size(max(0, (figures.tried or 0) - both))}


def _on_card(*names: str) -> Values:
    """The figures of a sentence, with their share of the card."""

    def values(case: Case) -> dict[str, str]:
        figures = case.figures
        found = {name: size(getattr(figures, name)) for name in names}
        return found | {f"{name}_share": percent(getattr(shares(case), name, 0.0)) for name in names}

    return values


def _sum(case: Case) -> dict[str, str]:
    figures = case.figures
    both = (figures.unallocated or 0) + (figures.free or 0)
    return _on_card("tried", "free", "unallocated", "reserved")(case) | {
        "scattered": percent(figures.scattered), "both": size(both),
        "together": size((figures.allocated or 0) + (figures.tried or 0)),
    }


CARD_RULES: Final[tuple[Rule, ...]] = (
    # the job itself
    Rule("why.spilled", Cause.TOO_BIG, 5, _spilled, _on_card("allocated", "reserved", "total")),
    Rule("why.larger_than_card", Cause.TOO_BIG, 5, lambda case: shares(case).tried > 1, _on_card("tried", "total")),
    Rule("why.one_tensor", Cause.TOO_BIG, 2, lambda case: 0.5 <= shares(case).tried <= 1, _on_card("tried", "total")),
    Rule(
        "why.live_fills", Cause.TOO_BIG, 2.5, lambda case: 0.9 <= shares(case).allocated <= 1,
        _on_card("allocated", "limit"),
    ),
    Rule(
        "why.live_fills", Cause.TOO_BIG, 1.5, lambda case: 0.75 <= shares(case).allocated < 0.9,
        _on_card("allocated", "limit"),
    ),
    Rule(
        "why.live_half", Cause.TOO_BIG, 0.75, lambda case: 0.5 <= shares(case).allocated < 0.75,
        _on_card("allocated", "limit"),
    ),
    Rule(
        "why.small_card", Cause.TOO_BIG, 1,
        lambda case: 0 < (case.figures.total or 0) < SMALL_CARD and not _running(case), _on_card("total"),
    ),
    Rule("why.short", Cause.TOO_BIG, 0.5, _short, _missing),
    Rule("why.live_and_free", Cause.TOO_BIG, 1.5, _live_and_free, _on_card("tried", "free", "allocated")),
    Rule("", Cause.TOO_BIG, -2, enough_free),
    Rule(
        "why.large_request", Cause.TOO_BIG, 3, lambda case: enough_free(case) and shares(case).tried >= LARGE,
        _on_card("tried", "free"),
    ),
    # pieces
    Rule("why.pieces_enough", Cause.FRAGMENTED, 6, _pieces(MUCH_SCATTER, 2), _sum),
    Rule("why.pieces_enough", Cause.FRAGMENTED, 4.5, _pieces(USUAL_SCATTER, MUCH_SCATTER), _sum),
    Rule("why.pieces_usual", Cause.FRAGMENTED, 1, _pieces(0, USUAL_SCATTER), _sum),
    Rule("why.pieces_table", Cause.FRAGMENTED, 3.5, _table_in_pieces, _sum),
    Rule("why.pieces_and_free", Cause.FRAGMENTED, 2, _both, _sum),
    # memory was free: a limit that the figures do not show
    Rule("why.free_enough_running", Cause.FRAGMENTED, 3, _running, _on_card("free", "tried")),
    Rule("why.free_enough", Cause.UNKNOWN, 0.5, _running, _on_card("free", "tried")),
    Rule("why.free_enough", Cause.UNKNOWN, 1.5, _starting, _on_card("free", "tried")),
    Rule("why.free_enough_host", Cause.HOST_MEMORY, 1.5, enough_free, _on_card("free", "tried")),
    Rule("why.free_enough_others", Cause.OTHER_PROCESS, 1, enough_free, _on_card("free", "tried")),
    Rule("why.free_enough_others", Cause.OTHER_PROCESS, 1, _starting, _on_card("free", "tried")),
    Rule(
        "why.outside", Cause.OTHER_PROCESS, 1.5,
        lambda case: enough_free(case) and max(shares(case).outside, shares(case).others) >= 0.15,
        _on_card("outside", "total", "reserved"),
    ),
    # somebody else
    Rule("why.others", Cause.OTHER_PROCESS, 7, _others(0.5, 2), _on_card("others", "total")),
    Rule("why.others", Cause.OTHER_PROCESS, 5, _others(0.2, 0.5), _on_card("others", "total")),
    Rule("why.others", Cause.OTHER_PROCESS, 3, _others(0.08, 0.2), _on_card("others", "total")),
    Rule("why.outside", Cause.OTHER_PROCESS, 6, _outside(0.4, 2), _on_card("outside", "total", "reserved")),
    Rule("why.outside", Cause.OTHER_PROCESS, 4, _outside(0.15, 0.4), _on_card("outside", "total", "reserved")),
    # this process outside the allocator
    Rule("why.beside", Cause.CONTEXT_AND_LIBRARIES, 5, _beside(0.25, 2), _on_card("beside", "total")),
    Rule("why.beside", Cause.CONTEXT_AND_LIBRARIES, 3, _beside(0.15, 0.25), _on_card("beside", "total")),
    # limits
    Rule(
        "why.fraction", Cause.MEMORY_FRACTION, 8, lambda case: _fraction(case) and enough_free(case),
        _on_card("allowed", "reserved", "tried", "free"),
    ),
    Rule(
        "why.fraction", Cause.MEMORY_FRACTION, 3, lambda case: _fraction(case) and not enough_free(case),
        _on_card("allowed", "reserved", "tried", "free"),
    ),
    Rule(
        "why.round_share", Cause.MEMORY_FRACTION, 5, lambda case: round_share(case) is not None,
        lambda case: _on_card("reserved", "tried", "free")(case) | {"share": percent(round_share(case))},
    ),
    # captured graphs
    Rule(
        "why.pools", Cause.PRIVATE_POOLS, 4,
        lambda case: 0 < (case.figures.tried or 0) <= (case.figures.pools or 0) and not enough_free(case),
        _on_card("pools", "tried"),
    ),
    Rule(
        "why.pools_large", Cause.PRIVATE_POOLS, 2,
        lambda case: (case.figures.pools or 0) > 0.1 * (case.figures.total or 1 << 62), _on_card("pools", "total"),
    ),
    # impossible
    Rule("why.overflow", Cause.BUG, 9, lambda case: (case.figures.tried or 0) >= HUGE, _on_card("tried")),
    Rule(
        "why.library_free", Cause.BUG, 5,
        lambda case: case.family in LIBRARIES and (case.figures.free or 0) > GIB, _on_card("free"),
    ),
)
"""In order of subject; a sentence may stand in several rows, one for each strength of the same evidence."""
