"""What operators allocate on CUDA beyond their outputs: one table a file.

RULES: operator packet ("aten.cumsum") or overload ("aten.cumsum.default") -> rule.
PLAIN: operators that somebody has read: they allocate their outputs and nothing else.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from vramcast.tracing.call import Rule
from vramcast.tracing.rules import engine

RULES: Final[Mapping[str, Rule]] = {**engine.RULES}
PLAIN: Final[frozenset[str]] = frozenset()
