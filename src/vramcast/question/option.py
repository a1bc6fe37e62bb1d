"""What one option is: where its value goes and how that is written. The tables of options are beside it."""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple


class Kind(StrEnum):
    """How a value is written."""

    COUNT = "count"  # whole number, "8k" and "1M" allowed
    TEXT = "text"
    CHOICE = "choice"
    FLAG = "flag"
    NAMES = "names"  # comma-separated
    NUMBER = "number"
    AMOUNT = "amount"  # whole number in decimal units, "1T" and "15B"


class Option(NamedTuple):
    """One thing a user can say."""

    section: str  # which noun it goes to: workload, plan, peft, model, job
    field: str
    kind: Kind
    help: str
    choices: tuple[str, ...] = ()
    versioned: bool = False  # "@" and a version may stand behind a choice
    also: tuple[str, ...] = ()  # other names of it on the command line
