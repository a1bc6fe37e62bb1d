"""The figures of a failure: quantities that conditions compare, and what sentences say of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeAlias

from vramcast.doctor.failures.case import ROUNDING, Case, percent, size
from vramcast.units import GIB, MIB, ceil_div

BESIDE: Final = 2 * GIB
"""More than a context with libraries and NCCL takes in a usual process: `catalogue/contexts.csv` has 0.1 to 1.6 GiB,
libraries that are loaded eagerly 1 GiB [bytes]."""

BESIDE_SHARE: Final = 0.3
BESIDE_SMALL: Final = GIB
"""Of a small card: few multiprocessors make a small context, 0.2 to 0.9 GiB on cards of 1 to 4 GiB."""

CHANCE: Final = 0.002
"""Share of a card up to which a request is so small that passing one of 19 round shares is no chance."""

FEW_TOKENS: Final = 1024
"""A prefill of so few tokens takes megabytes in any model [tokens]."""

HIGHEST_FRACTION: Final = 0.97
"""A larger share of the card leaves nothing for graphs and libraries."""

NEAR: Final = 64 * MIB
"""Less free memory than this above a request is none: the driver maps pages of 2 MiB, and keeps some [bytes]."""

BEGUN: Final = 64 * MIB
"""A process that holds less has not begun its work: nothing can be in pieces yet [bytes]."""

SMALLEST_LARGE_SEGMENT: Final = 20 * MIB
"""Of the caching allocator, for requests from 1 to 10 MiB [bytes]."""


def enough_free(case: Case) -> bool:
    """Whether the driver had the request free, and to spare."""
    tried, free = case.figures.tried, case.figures.free
    return tried is not None and free is not None and free >= tried + NEAR


def round_share(case: Case) -> float | None:
    """The round share of the card that the request would have passed, with memory free: a fraction not named.

    Torch 2.1 to 2.7 leave the limit out of the message. What is reserved stays below share times card, and the segment
    for the request would have gone beyond; for small requests a chance hit is rare.
    """
    figures = case.figures
    total, reserved = figures.total, figures.reserved
    if figures.allowed is not None or not enough_free(case) or reserved is None or not total:
        return None
    segment = max(figures.tried or 0, SMALLEST_LARGE_SEGMENT)
    if reserved < BEGUN or segment > total * CHANCE:
        return None
    limits = ((share / 20, share * total / 20) for share in range(1, 20))
    return next((share for share, limit in limits if reserved <= limit + ROUNDING and reserved + segment > limit), None)


def needed_bytes(case: Case) -> float | None:
    """What a program or model needs in all, as the text counts it [bytes]."""
    needed = case.number("needed_bytes")
    return case.number("used_bytes") if needed is None else needed


def _of_card(name: str) -> Callable[[Case], float]:
    """A figure as share of the card; 0 where the figures do not give it."""
    return lambda case: (getattr(case.figures, name) or 0) / case.figures.total if case.figures.total else 0.0


def _live(case: Case) -> float:
    return (case.figures.allocated or 0) / (case.figures.limit or case.figures.total) if case.figures.total else 0.0


def beyond_context(case: Case) -> float:
    """The share of the card that is held outside this allocator, beyond what a context takes."""
    figures = case.figures
    if not figures.total or figures.others is not None or figures.process is not None:
        return 0.0
    usual = min(BESIDE, max(BESIDE_SMALL, int(BESIDE_SHARE * figures.total)))
    return max(0, (figures.outside or 0) - usual) / figures.total


def _held_bytes(case: Case) -> int:
    return max(0, (case.figures.total or 0) - (case.figures.free or 0))


def _prefill_tokens(case: Case) -> float | None:
    tokens = case.number("tried_tokens")
    is_told = case.family == "tgi" and not case.says(r"total tokens with")
    return None if not is_told else FEW_TOKENS if tokens is None else tokens


def kv_missing(case: Case) -> int | None:
    """What the cache lacks for one sequence [bytes]."""
    needed, available = case.number("kv_needed_bytes"), case.number("kv_available_bytes")
    return int(needed - available) if needed is not None and available is not None and needed > available else None


def higher_share(case: Case) -> float | None:
    """The share of the card at which one sequence would fit, to the hundredth above."""
    missing, total, now = kv_missing(case), case.figures.total, case.number("memory_fraction")
    if missing is None or not total or now is None:
        return None
    higher = ceil_div(round(1e6 * (now + missing / total)), 10_000) / 100
    return higher if higher <= HIGHEST_FRACTION else None


QUANTITIES: Final[dict[str, Callable[[Case], float | None]]] = {
    "beside": _of_card("beside"),
    "busy": lambda case: case.facts.busy,
    "card": lambda case: (case.figures.total or 0) / GIB,
    "fraction": lambda case: case.number("memory_fraction"),
    "free": lambda case: (case.figures.free or 0) / GIB,
    "held": lambda case: _held_bytes(case) / GIB,
    "higher_share": higher_share,
    "live": _live,
    "missing": lambda case: case.figures.short or 0,
    "ooms": lambda case: case.number("num_ooms"),
    "others": _of_card("others"),
    "outside": beyond_context,
    "pools": lambda case: (case.figures.pools or 0) / (case.figures.total or 1 << 62),
    "mine": _of_card("process"),
    "prefill_tokens": _prefill_tokens,
    "request": lambda case: (case.figures.tried or 0) / GIB,
    "retries": lambda case: case.number("num_alloc_retries"),
    "round_share": round_share,
    "scattered": lambda case: case.figures.scattered,
    "tried": _of_card("tried"),
}
"""Shares of the card or of what is reserved, GiB (card, free, held, request), counts."""

Values: TypeAlias = Callable[[Case], dict[str, str]]


def _missing(case: Case) -> dict[str, str]:
    figures = case.figures
    both = (figures.unallocated or 0) + (figures.free or 0)
    return {"missing": size(max(0, (figures.tried or 0) - both))}


def _sum(case: Case) -> dict[str, str]:
    figures = case.figures
    return {
        "scattered": percent(figures.scattered), "both": size((figures.unallocated or 0) + (figures.free or 0)),
        "together": size((figures.allocated or 0) + (figures.tried or 0)),
    }


def _limits(case: Case) -> dict[str, str]:
    limit, needed = case.number("limit_bytes"), needed_bytes(case)
    over = None if limit is None or needed is None else needed - limit
    return {
        "limit": size(limit), "needed": size(needed), "over": size(over), "tried": size(case.figures.tried),
        "allocated": size(case.figures.allocated),
    }


VALUES: Final[dict[str, Values]] = {
    "busy": lambda case: {"busy": percent(case.facts.busy)},
    "fraction": lambda case: {"fraction": percent(case.number("memory_fraction"))},
    "grew": lambda case: {"grew": size(case.grew_bytes)},
    "held": lambda case: {"held": size(_held_bytes(case))},
    "limits": _limits,
    "missing": _missing,
    "round_share": lambda case: {"share": percent(round_share(case))},
    "setting": lambda case: {"setting": case.replay_avoids},
    "step": lambda case: {"step": f"{case.facts.steps[-1]:,}" if case.facts.steps else ""},
    "sum": _sum,
    "tokens": lambda case: {
        "length": f"{int(case.number('max_model_len') or 0):,}", "tokens": f"{int(case.number('kv_tokens') or 0):,}",
    },
}
SHARES: Final = {
    "allocated": "live", "tried": "tried", "others": "others", "process": "mine", "beside": "beside",
    "outside": "outside",
}
"""Figure -> the quantity that is its share of the card, 0 for others."""


def values(cell: str, case: Case) -> dict[str, str]:
    """The figures of a sentence: a figure as `free`, with its share of the card as `free%`, a number as `name=number`,
    and what `VALUES` works out."""
    words = cell.split()
    shared = [word[:-1] for word in words if word.endswith("%")]
    found = {name: size(getattr(case.figures, name)) for name in shared}
    found |= {
        f"{name}_share": percent(QUANTITIES[SHARES[name]](case) if name in SHARES else 0.0) for name in shared
    }
    for word in words[len(shared) :]:
        name, _, number = word.partition("=")
        if number:
            found[name] = size(case.number(number))
        else:
            found |= VALUES[name](case) if name in VALUES else {name: size(getattr(case.figures, name))}
    return found
