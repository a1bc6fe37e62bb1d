"""Options as texts of reports write them, "--recompute full --no-graphs", back as options."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from typing import Any, Final

from vramcast.question.options import Kind, Option

ALWAYS: Final = ("model", "gpus")

RIVALS: Final[dict[str, tuple[str, ...]]] = {
    "zero": ("shards",), "shards": ("zero",), "grad-accum": ("global-batch",), "global-batch": ("grad-accum",),
    "engine": ("engine-option", "sharded-by", "precision"),
}
"""Option -> others that a question cannot keep where a change says it: they say the same, or were another engine's."""


def applied_in(text: str, table: Mapping[str, Option]) -> dict[str, Any] | None:
    """What a change makes of a question's options, None for those that it takes out; None where it is none.

    >>> from vramcast.question.options import OPTIONS
    >>> applied_in("--shards everything", OPTIONS)
    {'zero': None, 'shards': 'everything'}
    """
    found = options_in(text, table)
    if found is None:
        return None
    rivals = (rival for name in found for rival in RIVALS.get(name, ()) if rival in table)
    return dict.fromkeys(rivals) | found


def options_in(text: str, table: Mapping[str, Option]) -> dict[str, Any] | None:
    """The options that a text writes, as a question takes them; None where it says anything else.

    >>> from vramcast.question.options import OPTIONS
    >>> options_in("--gpus 2xh100 --tp 2 --no-compile", OPTIONS)
    {'gpus': '2xh100', 'tp': '2', 'compile': False}
    >>> options_in("PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True", OPTIONS)
    """
    found: dict[str, Any] = {}
    words = iter(shlex.split(text))
    for word in words:
        name = word.removeprefix("--")
        positive = name.removeprefix("no-")
        if name == word or name in found:
            return None
        if positive in table and table[positive].kind is Kind.FLAG:
            found[positive] = positive == name
            continue
        value = next(words, None)
        if value is None or (name not in table and name not in ALWAYS):
            return None
        found[name] = value
    return found or None
