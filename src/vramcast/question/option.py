"""What one option is: where its value goes and how that is written. The tables of options are beside it.

Which options the questions of a command have; a table is loaded when its command is asked for.

What an option is about: the sections of a command's help, and the groups of a form of the page.

Money, durations, shares and sizes as users write them: "100000usd", "30d", "5%", "24GiB".
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from decimal import Decimal
from enum import StrEnum
from typing import Final

from msgspec import Struct

from vramcast import question
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


class Kind(StrEnum):
    """How a value is written."""

    COUNT = "count"  # whole number, "8k" and "1M" allowed
    TEXT = "text"
    CHOICE = "choice"
    FLAG = "flag"
    NAMES = "names"  # comma-separated
    NUMBER = "number"
    AMOUNT = "amount"  # whole number in decimal units, "1T" and "15B"


class Option(Struct, frozen=True):
    """One thing a user can say."""

    section: str  # which noun it goes to: workload, plan, peft, model, job
    field: str
    kind: Kind
    help: str
    choices: tuple[str, ...] = ()
    versioned: bool = False  # "@" and a version may stand behind a choice
    also: tuple[str, ...] = ()  # other names of it on the command line


def choice_of(section: str, field: str, help_: str, choices: Iterable[str]) -> Option:
    """An option with a few values, which may be members of an enumeration."""
    return Option(section, field, Kind.CHOICE, help_, tuple(map(str, choices)))


TABLES: Final[Mapping[str, Callable[[], Mapping[str, Option]]]] = {
    "train": lambda: question.options.OPTIONS,
    "serve": lambda: question.tables.SERVE_OPTIONS,
    "rl": lambda: question.tables.POST_TRAINING_OPTIONS,
    "plan train": lambda: question.tables.PLAN_OPTIONS,
    "plan serve": lambda: question.plan_serving.PLAN_SERVE_OPTIONS,
}


def table_of(command: str) -> Mapping[str, Option]:
    """The options of a command by name; `model` and `gpus` stand beside them."""
    return TABLES[command]()


SUBJECTS: Final[dict[str, tuple[str, ...]]] = {
    "model": ("model", "params", "layers", "hidden", "heads", "kv-heads", "ffn", "vocab"),
    "cluster": ("gpus", "on", "max-gpus"),
    "search": (
        "goal", "find", "techniques", "ttft", "per-user", "headroom", "budget", "deadline", "top", "allow", "forbid",
    ),
    "workload": (
        "context", "concurrency", "input-len", "output-len", "seq-len", "min-seq-len", "micro-batch", "global-batch",
        "grad-accum", "objective", "teacher", "completion-len", "decoder-seq-len", "images", "vision-tower",
        "image-size",        "height", "width", "frames", "tokens",
    ),
    "arrivals": ("rate", "slo", "burstiness", "shared-prefix", "replicas", "router", "num-requests", "seed"),
    "engine": ("engine", "engine-option", "alloc-conf"),
    "precision": ("precision", "weights", "dtype", "kv-dtype", "v-dtype", "optimizer", "optimizer-kernel"),
    "parallelism": (
        "shards", "zero", "sharded-by", "tp", "pp", "dp", "cp", "ep", "etp", "dcp", "attention-dp", "expert-parallel",
        "sequence-parallel", "virtual-stages", "schedule", "cp-kind", "shard-group", "reshard-after-forward",
        "first-stage-layers", "last-stage-layers",
    ),
    "memory": (
        "recompute", "recompute-layers", "recompute-modules", "attention", "loss", "compile", "offload-optimizer",
        "offload-parameters", "offload-activations", "memory-fraction", "cache-bytes", "max-sequences",
        "batched-tokens", "block-tokens", "prefix-caching", "graphs", "gpu-layers", "offload", "tiling", "slicing",
    ),
    "adapters": (
        "peft", "lora-rank", "lora-targets", "modules-to-save", "lora-dropout", "virtual-tokens",
        "trainable-parameters", "freeze", "base-weights", "adapter-dtype", "lora-slots", "draft", "draft-tokens",
    ),
    "price": ("price", "spot", "region", "currency", "prices", "used", "reserve", "hardware"),
    "files": (
        "from", "from-command", "args", "env", "from-format", "ignore-unread", "arrivals", "calibration", "file",
        "save", "write", "format", "force", "fix", "report", "snapshot", "picture", "reconcile", "save-calibration",
    ),
}
"""Subject -> its options in order."""
