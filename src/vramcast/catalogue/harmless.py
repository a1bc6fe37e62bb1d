"""Names of other tools' configurations that change neither memory nor time: a table of data with a reason for each."""

from __future__ import annotations

from functools import cache
from typing import Final

from vramcast.catalogue.formats import FOLDER

FILE: Final = FOLDER / "harmless.toml"
CONDITIONS: Final = FOLDER / "conditional.toml"


@cache
def harmless(format_name: str, section: str) -> frozenset[str]:
    """The names of one section that say nothing about memory or time, dashes as underscores; none: nobody looked.

    >>> "steps_per_print" in harmless("deepspeed", "config"), "zero_optimization" in harmless("deepspeed", "config")
    (True, False)
    """
    return frozenset(name for names in reasons(format_name, section).values() for name in names)


def reasons(format_name: str, section: str) -> dict[str, tuple[str, ...]]:
    """Why names of a section change nothing -> those names, dashes as underscores."""
    groups = _tables().get(format_name, {}).get(section, {})
    return {why: tuple(names.replace("-", "_").split()) for why, names in groups.items()}


@cache
def conditions(format_name: str, section: str) -> dict[str, str]:
    """Names that say nothing unless the network has a part -> that part, dashes as underscores.

    >>> conditions("vllm", "EngineArgs")["moe_backend"]
    'experts'
    """
    import tomllib

    table = tomllib.loads(CONDITIONS.read_text(encoding="utf-8")).get(format_name, {}).get(section, {})
    return {name: part for part, names in table.items() for name in names.split()}


def sections() -> tuple[tuple[str, str], ...]:
    """Format and section of every table."""
    return tuple(
        (name, section) for name, table in _tables().items() for section, groups in table.items()
        if isinstance(groups, dict)
    )


@cache
def _tables() -> dict[str, dict[str, dict[str, str]]]:
    import tomllib

    found: dict[str, dict[str, dict[str, str]]] = tomllib.loads(FILE.read_text(encoding="utf-8"))
    return found
