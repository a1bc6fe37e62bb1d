"""Tables of `docs/failures.md`, from the tables that failures are read with."""

from __future__ import annotations


def families_table() -> str:
    """One line per family: its wordings with versions, whose memory it is about, who prints it."""
    from vramcast.sources.failures import FAMILIES

    lines = ["| family | who speaks | memory of | wordings | printed by |", "|---|---|---|---|---|"]
    total = 0
    for name, family in FAMILIES.items():
        wordings: dict[str, str] = {}
        for item in family.wordings:
            wordings[item.name] = wordings.get(item.name) or item.versions
        wordings |= {item: "" for table in family.tables for item in table.names}
        total += len(wordings)
        listed = ", ".join(f"`{item}`" + (f" ({versions})" if versions else "") for item, versions in wordings.items())
        lines.append(f"| `{name}` | {family.title} | {family.about} | {listed} | {family.source} |")
    return "\n".join([*lines, "", f"{len(FAMILIES)} families, {total} wordings."]) + "\n"


def figures_table() -> str:
    """One line per figure."""
    from vramcast.sources.failures import NUMBERS

    lines = ["| figure | unit | meaning |", "|---|---|---|"]
    lines += [f"| `{name}` | {figure.unit} | {figure.meaning} |" for name, figure in NUMBERS.items()]
    return "\n".join(lines) + "\n"


def facts_table() -> str:
    """One line per fact: what stands anywhere, what a traceback passes through, where the run stood."""
    from vramcast.sources.failures.text import FACTS, PATHS

    lines = ["| fact | meaning |", "|---|---|"]
    lines += [f"| `{name}` | {sayings[0].meaning} |" for name, sayings in FACTS.items()]
    lines += [f"| `{name}` | the traceback passes {meaning} |" for name, (_, meaning) in PATHS.items()]
    lines += [
        "| `user_frame`, `last_frame` | the innermost line outside libraries, and of all |",
        "| `epoch`, `step` | the last number stated before the failure |",
        "| `rank` | of the process that failed, as the line says |",
    ]
    return "\n".join(lines) + "\n"
