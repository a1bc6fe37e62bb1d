"""What operators allocate on CUDA beyond their outputs: one table a file.

RULES: operator packet ("aten.cumsum") or overload ("aten.cumsum.default") -> rule.
PLAIN: operators that somebody has read: they allocate their outputs and nothing else.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib.metadata import entry_points
from typing import Final

from vramcast.tracing.call import Rule
from vramcast.tracing.rules import (
    attention,
    blas,
    convolution,
    engine,
    indexing,
    libraries,
    linear_algebra,
    losses,
    norms,
    pointwise,
    recurrent,
    reductions,
    sorting,
)

TABLES: Final = (
    attention, blas, convolution, engine, indexing, libraries, linear_algebra, losses, norms,
    pointwise, recurrent, reductions, sorting,
)
GROUP: Final = "vramcast.rules"
"""Entry points of other packages: modules with RULES and, where they have any, PLAIN, for operators of their own."""
OTHERS: Final = tuple(point.load() for point in entry_points(group=GROUP))
RULES: Final[Mapping[str, Rule]] = {
    name: rule for table in (*OTHERS, *TABLES) for name, rule in table.RULES.items()
}
PLAIN: Final[frozenset[str]] = frozenset(
    name for table in (*OTHERS, *TABLES) for name in getattr(table, "PLAIN", ())
)
