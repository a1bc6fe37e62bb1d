"""Who held the peak: the ledger of a run by category, and the same blocks by module, line and operator."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import Final

from vramcast.allocator import round_size
from vramcast.domain.answer import LedgerEntry, Peak
from vramcast.domain.program import Basis, Category
from vramcast.domain.snapshot import Frame
from vramcast.domain.traced import Holding, Holdings
from vramcast.recordings.stacks import is_python, is_users, shown
from vramcast.tracing.tape import Block

NUMBER: Final = re.compile(r"(?<![^.])\d+(?![^.])")
"""A part of a module's name that only counts."""
TORCH: Final = re.compile(r"(^|/)torch/|^<")
NAMED: Final = frozenset({Category.WEIGHTS, Category.GRADIENTS, Category.OPTIMIZER})
"""Categories whose blocks are called after parameters."""


class Places:
    """The line of each stack that tells most: the user's own, else the innermost that is not torch's."""

    def __init__(self, stacks: tuple[tuple[Frame, ...], ...]) -> None:
        self._stacks = stacks
        self._known: dict[int, str] = {}

    def __getitem__(self, stack: int) -> str:
        line = self._known.get(stack)
        if line is None:
            frames = self._stacks[stack] if 0 <= stack < len(self._stacks) else ()
            line = self._known[stack] = line_of(frames)
        return line


def line_of(stack: Iterable[Frame]) -> str:
    """"train.py:50 step" of a stack, innermost frame first; "" of one without frames of Python."""
    frames = [frame for frame in stack if is_python(frame)]
    for is_telling in (is_users, lambda frame: TORCH.search(frame.filename) is None):
        found = next((frame for frame in frames if is_telling(frame)), None)
        if found is not None:
            return shown(found)
    return shown(frames[0]) if frames else ""


class Live:
    """A block alive at the peak, in the words of the ledger."""

    __slots__ = ("category", "leaf", "line", "module", "num_bytes", "operator")

    def __init__(self, block: Block, category: Category, places: Places, *, rounds: bool = True) -> None:
        origin = block.origin
        self.category = category
        self.num_bytes = round_size(block.num_bytes) if rounds else block.num_bytes
        self.operator = _packet(block.operator)
        self.line = places[origin.forward_stack]
        self.module, self.leaf = origin.module, self.operator.removeprefix("aten.")
        if category is Category.OPTIMIZER and block.name:
            parameter, _, self.leaf = block.name.rpartition(".")
            self.module = parameter.rpartition(".")[0]
        elif category in NAMED and block.name:
            self.module, _, self.leaf = block.name.rpartition(".")
        elif block.name:
            self.leaf = block.name


def _packet(operator: str) -> str:
    """"aten.mm" of "aten.mm.default"."""
    parts = operator.split(".")
    return ".".join(parts[:2]) if len(parts) > 2 else operator


def entries(live: Iterable[Live], peak: Peak, outside: tuple[LedgerEntry, ...]) -> tuple[LedgerEntry, ...]:
    """The ledger at the peak, largest first; it adds up to the device bytes.

    Modules that differ in numbers alone are one entry: "layers.*.mlp" x 32.

    Args:
        live: the blocks at the highest point of allocated memory
        peak: of the step
        outside: what the process holds beside the allocator
    """
    groups: dict[tuple[Category, str, str], dict[str, list[int]]] = {}
    for one in live:
        group = groups.setdefault((one.category, NUMBER.sub("*", one.module), one.leaf), {})
        group.setdefault(one.module, []).append(one.num_bytes)
    found = [_entry(category, pattern, leaf, modules) for (category, pattern, leaf), modules in groups.items()]
    blocks = sum(entry.num_bytes for entry in found)
    found += [*outside, *_between(blocks, peak)]
    return tuple(sorted(found, key=lambda entry: (-entry.num_bytes, entry.path)))


def _entry(category: Category, pattern: str, leaf: str, modules: dict[str, list[int]]) -> LedgerEntry:
    module = next(iter(modules)) if len(modules) == 1 else pattern
    sizes = [size for each in modules.values() for size in each]
    return LedgerEntry(
        path="/".join(part for part in (category, module, leaf) if part), num_bytes=sum(sizes), count=len(sizes),
        basis=Basis.TRACED,
    )


def _between(blocks: int, peak: Peak) -> list[LedgerEntry]:
    """What the allocator adds: the rest of blocks too small to be split off, and cached memory."""
    parts = {
        "slack/rest of blocks": peak.allocated_bytes - blocks,
        "allocator/cached": peak.reserved_bytes - peak.allocated_bytes,
    }
    return [LedgerEntry(path=path, num_bytes=size, basis=Basis.TRACED) for path, size in parts.items() if size]


def holdings(live: Iterable[Live]) -> Holdings:
    """The same blocks by module, by line and by operator."""
    blocks = list(live)
    return Holdings(
        by_module=_held(blocks, lambda one: one.module), by_line=_held(blocks, lambda one: one.line),
        by_operator=_held(blocks, lambda one: one.operator),
    )


def _held(blocks: Iterable[Live], key: Callable[[Live], str]) -> tuple[Holding, ...]:
    sums: dict[str, list[int]] = {}
    for one in blocks:
        total = sums.setdefault(key(one), [0, 0])
        total[0] += one.num_bytes
        total[1] += 1
    found = (Holding(name=name, num_bytes=size, count=count) for name, (size, count) in sums.items())
    return tuple(sorted(found, key=lambda one: (-one.num_bytes, one.name)))
