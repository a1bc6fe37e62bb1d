"""What looking up a card, a model and a price costs a process that knows none yet: `python -m benchmarks.lookups`.

Each `vramcast` command pays that once, so the caches of the catalogue are emptied before every lookup. Printed is the
fastest of several.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from types import ModuleType
from typing import Final, NamedTuple

from vramcast.catalogue import gpus, models, prices

TIMES: Final = 20


class Lookup(NamedTuple):
    """One kind of lookup, and the module whose caches know the answer."""

    name: str
    module: ModuleType
    run: Callable[[], object]


LOOKUPS: Final = (
    Lookup("a card", gpus, lambda: gpus.load_gpu("h100-sxm-80gb")),
    Lookup("a model", models, lambda: models.load_model("deepseek-v3")),
    Lookup("a price", prices, lambda: prices.shipped_prices().of("aws:p5.48xlarge")),
)


def seconds(lookup: Lookup) -> float:
    """One lookup with nothing known."""
    for value in vars(lookup.module).values():
        if hasattr(value, "cache_clear"):
            value.cache_clear()
    start = time.perf_counter()
    lookup.run()
    return time.perf_counter() - start


def main() -> int:
    """The command line."""
    for lookup in LOOKUPS:
        print(f"{lookup.name:<10}{min(seconds(lookup) for _ in range(TIMES)) * 1e3:8.2f} ms")
    return 0


if __name__ == "__main__":
    sys.exit(main())
