"""What recomputing the modules that repeat would save, from a tape alone: for scripts, which are not run again changed.

What a module's forward leaves for backward is freed where its forward ends, but for its output, and is there again from
where its backward begins.
Leaves out: what random-number states and the recomputation's own temporaries take beside it.
"""

from __future__ import annotations

import re
from collections import Counter
from typing import Final, NamedTuple

from vramcast.domain.program import Category
from vramcast.tracing.tape import Aside, Block, Mark, Phase, Tape

ROOT: Final = re.compile(r"(?:.*?\.)?\d+(?=\.|$)")
"""Of "model.layers.3.mlp": "model.layers.3"."""
FEWEST: Final = 2
"""Modules of a name before they count as repeated."""


class Recomputed(NamedTuple):
    """A tape as it would be."""

    modules: str  # "model.layers.*"
    tape: Tape


class _Pass:
    """One forward of one module, and where its backward begins."""

    __slots__ = ("backward", "blocks", "end", "root")

    def __init__(self, root: str) -> None:
        self.root = root
        self.blocks: list[Block] = []
        self.end = 0  # events until its forward is over
        self.backward: int | None = None


def recompute(tape: Tape, labels: list[Category]) -> Recomputed | None:
    """The tape with the modules recomputed that repeat and save most; None where none repeat.

    Args:
        tape: of a run
        labels: category of every block, by index
    """
    passes = [one for one in _passes(tape, labels) if one.backward is not None]
    sizes: Counter[str] = Counter()
    roots: dict[str, set[str]] = {}
    for one in passes:
        name = _pattern(one.root)
        sizes[name] += sum(block.num_bytes for block in one.blocks)
        roots.setdefault(name, set()).add(one.root)
    chosen = next((name for name, _ in sizes.most_common() if len(roots[name]) >= FEWEST), None)
    if chosen is None:
        return None
    return Recomputed(chosen, _rewritten(tape, [one for one in passes if _pattern(one.root) == chosen]))


def _pattern(root: str) -> str:
    return f"{root.rpartition('.')[0]}.*".lstrip(".")


def _root(block: Block) -> str:
    found = ROOT.match(block.origin.module)
    return found[0] if found else ""


def _passes(tape: Tape, labels: list[Category]) -> list[_Pass]:
    passes: list[_Pass] = []
    waiting: dict[str, list[_Pass]] = {}
    now = _Pass("")
    for index, event in enumerate(tape.events):
        if event < 0:
            continue
        block = tape.blocks[event - 1]
        root, phase = _root(block), block.origin.phase
        if phase is Phase.FORWARD:
            if root != now.root:
                now = _Pass(root)
                if root:
                    passes.append(now)
                    waiting.setdefault(root, []).append(now)
            now.end = index + 1
            if labels[block.index] is Category.ACTIVATIONS:
                now.blocks.append(block)
        elif phase is Phase.BACKWARD and root and waiting.get(root):
            waiting[root].pop().backward = index
            now = _Pass("")
    return passes


def _rewritten(tape: Tape, passes: list[_Pass]) -> Tape:
    """The tape with what these passes save freed and made again."""
    freed: dict[int, list[Block]] = {}  # before this event
    made: dict[int, list[Block]] = {}
    for one in passes:
        assert one.backward is not None
        for block in one.blocks[:-1]:  # the last is the output: the next module's input stays
            if block.died is None or block.died > one.backward:
                freed.setdefault(one.end, []).append(block)
                made.setdefault(one.backward, []).append(block)
    changed = Tape()
    present: dict[int, Block] = {}
    latest: dict[int, int] = {-1: -1}  # block -> its last copy
    named = _moments(tape)
    for index, event in enumerate(tape.events):
        for moment in named.get(index, ()):
            _repeat(changed, moment, latest)
        for block in freed.get(index, ()):
            changed.end(present.pop(block.index))
        for block in made.get(index, ()):
            present[block.index] = _copied(changed, block, latest)
        block = tape.blocks[abs(event) - 1]
        if event > 0:
            present[block.index] = _copied(changed, block, latest)
        else:
            changed.end(present.pop(block.index))
    for moment in named.get(len(tape.events), ()):
        _repeat(changed, moment, latest)
    return changed


def _moments(tape: Tape) -> dict[int, list[Mark | Aside]]:
    """What a tape has beside events, by position."""
    found: dict[int, list[Mark | Aside]] = {}
    moments: list[Mark | Aside] = [*tape.asides, *tape.marks]
    for moment in moments:
        found.setdefault(moment.position, []).append(moment)
    return found


def _repeat(tape: Tape, moment: Mark | Aside, latest: dict[int, int]) -> None:
    if isinstance(moment, Mark):
        tape.mark(moment.name, moment.optimizer)
    else:
        tape.tell(moment.action, block=latest[moment.block], number=moment.number)


def _copied(tape: Tape, block: Block, latest: dict[int, int]) -> Block:
    copy = tape.add(block.num_bytes, block.stream, block.operator, block.origin)
    copy.kind, copy.name = block.kind, block.name
    latest[block.index] = copy.index
    return copy
