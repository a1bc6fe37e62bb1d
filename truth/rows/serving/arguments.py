"""Arguments that the notes of a row repeat: `--name value`, `name=value` and `'name': value` alike."""

from __future__ import annotations

import re
from typing import Any, Final

ARGUMENT: Final = re.compile(
    r"--(?P<flag>no-)?(?P<dashed>[a-z][a-z0-9-]+)(?:[ =](?P<after>[\w./]+))?"
    r"|'(?P<quoted>[a-z][a-z0-9_]+)': '?(?P<value>[\w./-]+)"
    r"|\b(?P<plain>[a-z]+_[a-z0-9_]+)=(?P<given>[\w./]+)"
)


def arguments_of(row: dict[str, Any]) -> dict[str, str]:
    """Name with underscores -> its value, "" for a flag; the first mention counts.

    >>> arguments_of({"notes": "--max-num-seqs 8 --enforce-eager; max_num_batched_tokens=2048, {'dtype': 'half'}"})
    {'max_num_seqs': '8', 'enforce_eager': '', 'max_num_batched_tokens': '2048', 'dtype': 'half'}
    """
    found: dict[str, str] = {}
    for match in ARGUMENT.finditer(str(row.get("notes") or "")):
        name = match["dashed"] or match["quoted"] or match["plain"]
        value = "False" if match["flag"] else match["after"] or match["value"] or match["given"] or ""
        found.setdefault(name.replace("-", "_"), value)
    return found
