"""Money, durations, shares and sizes as users write them: "100000usd", "30d", "5%", "24GiB"."""

from __future__ import annotations

import re
from collections.abc import Mapping
from decimal import Decimal
from typing import Final

from msgspec import Struct

from vramcast.errors import InvalidSpec
from vramcast.lazy import lazy_pattern
from vramcast.units import GB, GIB, KIB, MB, MIB

NUMBER: Final = lazy_pattern(r"(\d{1,18}(?:\.\d{1,9})?)([a-z% ]*)", re.ASCII)
DECIMAL: Final = {"": 1, "k": 10**3, "m": 10**6, "b": 10**9}
HOURS: Final = {"m": Decimal(1) / 60, "h": Decimal(1), "d": Decimal(24), "w": Decimal(168)}
BYTES: Final = {
    "": 1, "b": 1, "bytes": 1, "k": KIB, "kib": KIB, "kb": 1000, "m": MIB, "mib": MIB, "mb": MB, "g": GIB, "gib": GIB,
    "gb": GB, "t": 1 << 40, "tib": 1 << 40, "tb": 10**12,
}
"""Units of sizes; one letter is what torch and its tools mean by it."""

LARGEST: Final = 10**18
"""No amount a user can mean is larger."""


class Money(Struct, frozen=True):
    """An amount in one currency."""

    amount: float
    currency: str  # ISO 4217


def parse_money(name: str, value: object) -> Money:
    """An amount and its currency; "k", "m" and "b" multiply.

    >>> parse_money("budget", "100000usd")
    Money(amount=100000.0, currency='USD')
    >>> parse_money("budget", "1.5m CNY")
    Money(amount=1500000.0, currency='CNY')

    Raises: InvalidSpec that says how to write it
    """
    number, letters = _split(name, value, "an amount with its currency, for example 100000usd or 1.5m cny")
    unit, currency = letters[:-3], letters[-3:]
    if len(currency) != 3 or unit not in DECIMAL:
        raise InvalidSpec(
            "{}={} must be an amount with its currency, for example 100000usd or 1.5m cny", name, _shown(value)
        )
    return Money(float(_positive(name, value, number * DECIMAL[unit])), currency.upper())


def parse_hours(name: str, value: object) -> float:
    """A duration as hours: minutes, hours, days or weeks.

    >>> parse_hours("deadline", "30d"), parse_hours("deadline", "90m")
    (720.0, 1.5)

    Raises: InvalidSpec that says how to write it
    """
    number, unit = _split(name, value, "a duration, for example 12h, 30d or 2w")
    if unit not in HOURS:
        raise InvalidSpec(
            "{}={} must be a duration with its unit, for example 90m, 12h, 30d or 2w", name, _shown(value)
        )
    return float(_positive(name, value, number * HOURS[unit]))


def parse_share(name: str, value: object) -> float:
    """A share from 0 to below 1: "5%" or "0.05".

    >>> parse_share("headroom", "5%"), parse_share("headroom", 0.05)
    (0.05, 0.05)

    Raises: InvalidSpec that says how to write it
    """
    number, unit = _split(name, value, "a share, for example 5% or 0.05")
    if unit not in ("", "%"):
        raise InvalidSpec("{}={} must be a share, for example 5% or 0.05", name, _shown(value))
    share = number / 100 if unit else number
    if share >= 1:
        raise InvalidSpec("{}={} must be below 100%, for example 5% or 0.05", name, _shown(value))
    return float(share)


def headroom_of(values: Mapping[str, object]) -> float | None:
    """The share of each card that is to stay free; None where nobody says one: then the 90 % interval is to fit.

    Raises: as `parse_share`
    """
    return None if values.get("headroom") is None else parse_share("headroom", values["headroom"])


def parse_bytes(name: str, value: object) -> int:
    """A size of memory: GiB and its kin are powers of 1024, GB and its kin of 1000; a bare number is bytes.

    >>> parse_bytes("capacity", "24GiB"), parse_bytes("capacity", "80 GB"), parse_bytes("capacity", 512)
    (25769803776, 80000000000, 512)

    Raises: InvalidSpec that says how to write it
    """
    wanted = "a size of memory, for example 24GiB, 80GB or 512MiB"
    number, unit = _split(name, value, wanted)
    if unit not in BYTES:
        raise InvalidSpec("{}={} must be " + wanted, name, _shown(value))
    return int(_positive(name, value, number * BYTES[unit]))


def _split(name: str, value: object, wanted: str) -> tuple[Decimal, str]:
    """Number and unit of a text; a plain number has none."""
    text = str(value).strip().lower().replace("_", "").replace(",", "")
    match = None if isinstance(value, bool) else NUMBER.fullmatch(text)
    if match is None:
        raise InvalidSpec("{}={} must be " + wanted, name, _shown(value))
    return Decimal(match[1]), match[2].replace(" ", "")


def _positive(name: str, value: object, amount: Decimal) -> Decimal:
    if not 0 < amount <= LARGEST:
        raise InvalidSpec("{}={} must be more than 0 and at most 10^18", name, _shown(value))
    return amount


def _shown(value: object) -> str:
    """As much of a value as a sentence has room for; escapes can make ten characters of one."""
    return repr(str(value)[:40])[:80]
