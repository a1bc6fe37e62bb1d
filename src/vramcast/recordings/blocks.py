"""Every block of a recording as columns, in the order in which a picture stacks them."""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from typing import Final, NamedTuple

from vramcast.domain.snapshot import Action
from vramcast.recordings.lives import CATEGORIES, Category, Lives
from vramcast.recordings.start import RecordedDevice

UPWARDS: Final = (
    Category.WEIGHTS, Category.HELD, Category.OPTIMIZER, Category.GRADIENTS, Category.CACHE, Category.INPUTS,
    Category.WORKSPACES, Category.COMMUNICATION, Category.UNKNOWN, Category.ACTIVATIONS, Category.BACKWARD,
    Category.TEMPORARIES,
)
"""What stays lies below what comes and goes."""
BEFORE: Final = -1
"""Where a block begins that is older than the recording."""


class Blocks(NamedTuple):
    """Columns of the same length: category by category upwards, in each the oldest first."""

    starts: array[int]  # "i", index of the event that allocates; BEFORE
    ends: array[int]  # "i", index of the event that frees; the number of events where none does
    sizes: array[float]  # "d", as requested [bytes]
    categories: array[int]  # "B", index into CATEGORIES
    stacks: array[int]  # "I", index into Snapshot.stacks


def blocks_of(recorded: RecordedDevice, lives: Lives) -> Blocks:
    """All blocks of a device; none where frees do not say what they free."""
    found = Blocks(array("i"), array("i"), array("d"), array("B"), array("I"))
    if not recorded.device.has_addresses:
        return found
    layers: list[list[tuple[int, int, int, int]]] = [[] for _ in CATEGORIES]
    for number, *block in (*_older(recorded, lives), *_made(recorded, lives)):
        layers[number].append((block[0], block[1], block[2], block[3]))
    for category in UPWARDS:
        number = CATEGORIES.index(category)
        for start, end, size, stack in layers[number]:
            found.starts.append(start)
            found.ends.append(end)
            found.sizes.append(size)
            found.categories.append(number)
            found.stacks.append(stack)
    return found


def _older(recorded: RecordedDevice, lives: Lives) -> Iterator[tuple[int, int, int, int, int]]:
    """What lived before the recording, the largest first."""
    alive = (block for block in recorded.older if not block.awaits_free)
    for block in sorted(alive, key=lambda block: (-block.size_bytes, block.address)):
        yield (CATEGORIES.index(lives.older[block.address]), BEFORE,
               lives.freed_at_start.get(block.address, lives.events), block.requested_bytes or block.size_bytes,
               block.stack)


def _made(recorded: RecordedDevice, lives: Lives) -> Iterator[tuple[int, int, int, int, int]]:
    trace = recorded.trace
    for index, action in enumerate(trace.actions):
        if action == Action.ALLOC:
            yield lives.categories[index], index, lives.ends[index], trace.sizes[index], trace.stacks[index]
