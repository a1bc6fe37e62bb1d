"""Checkpoints whose layer inputs wait on the host between forward and backward.

[Zoo] unsloth_zoo gradient_checkpointing.py `UnslothCheckpointFunction`: inputs above MINIMUM_SIZE are copied to pinned
buffers, the last layer's is not from the second pass on; backward reads them through GPU buffers of the largest input,
two since double buffering.
"""

from __future__ import annotations

from typing import Final

from vramcast.domain.program import Alloc, Category, Free, Loop, Node, Program, Tensor
from vramcast.engines.eager.passes import Around, Piece
from vramcast.units import MIB

SMALLEST: Final = 2 * MIB
"""`MINIMUM_SIZE`: smaller inputs stay [bytes]."""


class Offloaded(Around):
    """What happens around recomputed layers of the main stack.

    Args:
        stack: name of the main stack
        size: of a layer's input [bytes]
        buffers: GPU buffers that inputs come back through
    """

    def __init__(self, stack: str, size: int, buffers: int) -> None:
        self.stack = stack
        self.buffer = Tensor(
            name="buffer of offloaded inputs", num_bytes=size, category=Category.ACTIVATIONS, owner=stack,
            source="unsloth_zoo gradient_checkpointing.py",
        )
        self.buffers = buffers if size > SMALLEST else 0

    def begin(self) -> Program:
        """The buffers last; while backward runs, one of them is the input that was read."""
        return (Alloc(self.buffer),) * self.buffers

    def forward(self, stack: str, pieces: tuple[Piece, ...], *, differentiates: bool = True) -> Program:
        """Each input dies behind its layer."""
        plain = super().forward(stack, pieces, differentiates=differentiates)
        return tuple(self._around(stack, pieces, plain, after=True)) if differentiates else plain

    def turn(self) -> Program:
        """Before backward."""
        return (Free(self.buffer),) * min(1, self.buffers)

    def backward(self, stack: str, pieces: tuple[Piece, ...]) -> Program:
        """Each input comes back before its layer."""
        plain = super().backward(stack, pieces)
        return tuple(reversed(self._around(stack, pieces, tuple(reversed(plain)), after=False)))

    def end(self, gradients: tuple[Tensor, ...]) -> Program:
        """After all backward."""
        return (Free(self.buffer),) * (self.buffers - 1)

    def _around(self, stack: str, pieces: tuple[Piece, ...], loops: Program, *, after: bool) -> list[Node]:
        """The loops of the pieces, their inputs gone in between but for the last recomputed layer's."""
        found: list[Node] = []
        recomputed = [index for index, piece in enumerate(pieces) if piece.graph.checkpoints]
        for index, (piece, loop) in enumerate(zip(pieces, loops, strict=True)):
            assert isinstance(loop, Loop)
            hidden = piece.graph.inputs[0].tensor
            kept = 1 if recomputed and index == recomputed[-1] else 0
            if stack != self.stack or not self.buffers or index not in recomputed or piece.count == kept:
                found.append(loop)
                continue
            body = (*loop.body, Free(hidden)) if after else (Alloc(hidden), *loop.body)
            found.append(Loop(piece.count - kept, body, label=loop.label))
            if kept:
                found.append(Loop(kept, loop.body, label=loop.label))
        return found
