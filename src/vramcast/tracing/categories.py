"""What every block of a finished run was for.

Weights, gradients and optimizer states are told by who holds them; the rest by when they came and went.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final

from vramcast.domain.program import Category
from vramcast.tracing.tape import Block, Phase, Tape


class Kind(StrEnum):
    """What is known of a block during the run."""

    WEIGHT = "weight"
    BUFFER = "buffer"
    GRADIENT = "gradient"
    STATE = "optimizer state"
    INPUT = "input"
    SCRATCH = "scratch"
    WORKSPACE = "workspace"
    COMMUNICATION = "communication"


UNTOLD: Final = ("", Kind.INPUT)
"""Kinds that say nothing of who holds a block: weights were copied to the device, too."""
BY_KIND: Final = {
    Kind.WEIGHT: Category.WEIGHTS,
    Kind.BUFFER: Category.WEIGHTS,
    Kind.GRADIENT: Category.GRADIENTS,
    Kind.STATE: Category.OPTIMIZER,
    Kind.INPUT: Category.INPUTS,
    Kind.SCRATCH: Category.TEMPORARIES,
    Kind.WORKSPACE: Category.WORKSPACES,
    Kind.COMMUNICATION: Category.COMMUNICATION,
}
INPUTS_FROM: Final = frozenset({"aten.randn", "aten.rand", "aten.randint"})
"""Operators that make data on the device where no module asks for them."""


def categorise(tape: Tape) -> list[Category]:
    """The category of every block, by index."""
    ended = _phases_at_end(tape)
    return [_category(block, ended[block.index]) for block in tape.blocks]


def _phases_at_end(tape: Tape) -> list[Phase | None]:
    """The phase in which each block was freed: that of the last allocation before. None: alive at the end."""
    phases: list[Phase | None] = [None] * len(tape.blocks)
    now = Phase.SETUP
    for event in tape.events:
        if event > 0:
            now = tape.blocks[event - 1].origin.phase
        else:
            phases[-event - 1] = now
    return phases


def _category(block: Block, ended: Phase | None) -> Category:
    if block.kind:
        return BY_KIND[Kind(block.kind)]
    origin = block.origin
    if origin.phase is Phase.OPTIMIZER:
        return Category.TEMPORARIES
    if origin.phase is Phase.BACKWARD:
        is_recomputed = bool(origin.module) and origin.stack == origin.forward_stack
        return Category.ACTIVATIONS if is_recomputed else Category.TEMPORARIES
    if not origin.module and block.operator in INPUTS_FROM:
        return Category.INPUTS
    if origin.phase is Phase.FORWARD and ended is Phase.FORWARD:
        return Category.TEMPORARIES
    return Category.ACTIVATIONS
