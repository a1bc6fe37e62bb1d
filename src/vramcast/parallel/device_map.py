"""Which layers `device_map="auto"` puts on which card of one process.

Source: huggingface/accelerate utils/modeling.py, since transformers 5.0 its integrations/accelerate.py:
`get_balanced_memory`, `infer_auto_device_map`; quantizers/quantizer_bnb_4bit.py `adjust_max_memory`
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple

from vramcast.domain.version import Version
from vramcast.errors import InvalidSpec

COUNTS_LEAVES_SINCE: Final = (5, 18)
"""Release of transformers whose buffer is at least as large as the largest module without parts."""

KEPT_FREE: Final = 0.9
"""Of each card, where bitsandbytes packs the network."""


def require_layers(layers: int, gpus: int) -> None:
    """Raises: InvalidSpec when there are more GPUs than layers"""
    if gpus > layers:
        raise InvalidSpec("pp={} is more than the {} layers; use at most {}", gpus, layers, layers)


class Modules(NamedTuple):
    """What is placed, in this order [bytes]."""

    first: int  # before the layers
    layers: tuple[int, ...]
    last: int  # behind them
    leaf: int  # the largest module without parts outside the layers


def modules_of(weights: Iterable[tuple[str, int, int]], main: str) -> Modules:
    """Of weights by their owner.

    Args:
        weights: owner, size [bytes] and how many such there are, as they are loaded
        main: name of the stack whose layers are placed
    """
    first = last = leaf = 0
    layers: dict[str, tuple[int, int]] = {}
    for owner, size, repeats in weights:
        if owner.startswith(f"{main}.layers"):
            layers[owner] = (repeats, layers.get(owner, (0, 0))[1] + size)
            continue
        leaf = max(leaf, size)
        if owner in ("head", main):
            last += size * repeats
        else:
            first += size * repeats
    return Modules(first, tuple(size for count, size in layers.values() for _ in range(count)), last, leaf)


def balanced(found: Modules, *, gpus: int, release: Version, packed: bool = False) -> tuple[int, ...]:
    """Layers of each GPU, in order: every GPU but the last takes an equal share and 1.25 times the largest module more;
    the first one keeps room for the largest that is still to come. The last may get what is behind the layers alone.

    Args:
        gpus: more than one [count]
        release: of transformers
        packed: by bitsandbytes, which keeps a part of each card free

    >>> balanced(Modules(4, (2,) * 8, 4, 4), gpus=2, release=(4, 57)), balanced(Modules(4, (2,) * 8, 4, 4), gpus=2,
    ...     release=(5, 20))
    ((3, 5), (4, 4))
    """
    first, layers, last, leaf = found
    largest = max(leaf if release >= COUNTS_LEAVES_SINCE else 0, *layers)
    share = ((first + sum(layers) + last) // gpus + int(1.25 * largest)) * (KEPT_FREE if packed else 1)
    sizes, used, room = [0], first, share - max(last, *layers)
    for size in (*layers, last):
        if used + size > room and len(sizes) < gpus and sizes[-1]:
            sizes.append(0)
            used, room = 0, share
        sizes[-1] += 1
        used += size
    return (*sizes[:-1], sizes[-1] - 1)
