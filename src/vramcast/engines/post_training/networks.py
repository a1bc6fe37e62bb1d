"""A network as one rank of a trainer has it, whoever shards it."""

from __future__ import annotations

from typing import Final, NamedTuple

from vramcast.domain.program import Alloc, Free, Loop, Program, Tensor

ON_HOST: Final = "steps_on_host"
"""Option of the trainer: Megatron's `optimizer_cpu_offload`, of all states, or FSDP2's CPUOffloadPolicy."""

Held = tuple[tuple[Tensor, int], ...]
"""Tensors, and how many of each."""


class Network(NamedTuple):
    """What is moved between card and host, and what runs."""

    load: Program  # from nothing to what is there before the first step
    weights: Held = ()  # of it: what the offload of weights moves
    masters: Held = ()  # of it: what the offload of the optimizer moves
    states: Held = ()  # of the optimizer, made in the first update
    first: Program = ()  # one mini-batch, whose optimizer step makes the states
    update: Program = ()  # any later one
    rising: Program = ()  # one whose micro-batches have other lengths, each more than those before

    @property
    def moments(self) -> Held:
        """All that the offload of the optimizer moves once there are states."""
        return (*self.masters, *self.states)


def alloc(held: Held) -> Program:
    """Everything comes to the card."""
    return tuple(Loop(count, (Alloc(tensor),)) for tensor, count in held)


def free(held: Held) -> Program:
    """Everything leaves it."""
    return tuple(Loop(count, (Free(tensor),)) for tensor, count in held)


def num_bytes(held: Held) -> int:
    """Of all of them, as the allocator counts them [bytes]."""
    return sum(tensor.block_bytes * count for tensor, count in held)
