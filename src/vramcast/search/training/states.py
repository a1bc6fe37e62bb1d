"""`states.megatron.states` for many plans at once: what weights, gradients and optimizer states take on one rank.

The same steps in the same order as there, on arrays; a property test holds the two together. The optimizer's wave of
fp32 copies needs no peak of its own: the moments that the first step adds are never smaller than one temporary copy.

`domain.program.Extent` for many plans at once: arrays of net change and highest point, joined by the same rules.

A program whose tensors grow with the tokens of a micro-batch is read once and evaluated for any number of them. Two
builds of it at different token counts have the same nodes, and each tensor's bytes lie on a line. The extent is then a
maximum of sums: one for every node, of the tensors alive behind it, each rounded to its block.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from copy import copy
from itertools import groupby
from typing import Any, NamedTuple, TypeVar

import numpy as np
from msgspec.structs import force_setattr
from numpy.typing import NDArray

from vramcast.domain.model import Noun
from vramcast.domain.program import ALLOCATION_GRANULARITY, Alloc, Loop, Node, Program
from vramcast.states.megatron import PARAMETER_ALIGNMENT, StateRules
from vramcast.units import ceil_div, round_up

Counts = Any
"""Bytes or counts, one for each plan: an array of int64, or one number that stands for all of them."""


Kind = TypeVar("Kind", bound=Noun)


def with_arrays(noun: Kind, **fields: Any) -> Kind:
    """A noun with fields of many at once: it is looked at and nothing else."""
    found = copy(noun)
    for name, value in fields.items():
        force_setattr(found, name, value)
    return found


class Extents(NamedTuple):
    """What a piece of program does to the sum of live bytes, for every plan [bytes]."""

    net: Counts
    peak: Counts

    def then(self, after: Extents) -> Extents:
        """This piece followed by another."""
        return Extents(self.net + after.net, np.maximum(self.peak, self.net + after.peak))

    def times(self, count: Counts) -> Extents:
        """So many repeats: the highest point lies in the first or in the last one."""
        highest = np.maximum(self.peak, (count - 1) * self.net + self.peak)
        return Extents(count * self.net, highest * (count > 0))


NOTHING = Extents(np.int64(0), np.int64(0))


def held(num_bytes: Counts) -> Extents:
    """An allocation that stays."""
    return Extents(num_bytes, num_bytes)


def freed(num_bytes: Counts) -> Extents:
    """A free."""
    return Extents(-num_bytes, np.int64(0))


def joined(*pieces: Extents) -> Extents:
    """One piece after the other."""
    whole = NOTHING
    for piece in pieces:
        whole = whole.then(piece)
    return whole


def tabulate(shape: tuple[int, ...], value: Callable[..., int]) -> Counts:
    """`value` at every index."""
    found = np.empty(shape, np.int64)
    for index in np.ndindex(*shape):
        found[index] = value(*index)
    return found


class NotAffine(Exception):
    """Two builds of a program are not one program at two sizes."""


class Run(NamedTuple):
    """Blocks in program order: (fixed + slope * tokens) / divisor bytes each, allocated (1) or freed (-1)."""

    sign: NDArray[np.int64]
    fixed: NDArray[np.int64]
    slope: NDArray[np.int64]
    divisor: int

    def extents(self, tokens: Counts) -> Extents:
        """Net change and highest point at every number of tokens."""
        exact = self.fixed[:, None] + self.slope[:, None] * tokens
        blocks = -(-exact // (self.divisor * ALLOCATION_GRANULARITY)) * ALLOCATION_GRANULARITY
        live = np.cumsum(self.sign[:, None] * blocks, axis=0)
        return Extents(live[-1], np.maximum(live.max(axis=0), 0))


class Repeat(NamedTuple):
    """A loop."""

    times: int
    body: Affine

    def extents(self, tokens: Counts) -> Extents:
        """Net change and highest point at every number of tokens."""
        return self.body.extents(tokens).times(self.times)


class Affine(NamedTuple):
    """A program as runs of blocks and loops of them."""

    parts: tuple[Run | Repeat, ...]

    def extents(self, tokens: Counts) -> Extents:
        """Net change and highest point at every number of tokens (one axis)."""
        whole = NOTHING
        for part in self.parts:
            whole = whole.then(part.extents(tokens))
        return whole


def affine(small: Program, large: Program, tokens: tuple[int, int]) -> Affine:
    """The program through two of its builds.

    Args:
        small, large: the builds
        tokens: the number each was built for

    Raises: NotAffine when the builds differ in more than sizes
    """
    if len(small) != len(large):
        raise NotAffine
    pairs = zip(small, large, strict=True)
    return Affine(tuple(part for loops, group in groupby(pairs, _is_loop) for part in _parts(loops, group, tokens)))


def _is_loop(pair: tuple[Node, Node]) -> bool:
    if type(pair[0]) is not type(pair[1]):
        raise NotAffine
    return isinstance(pair[0], Loop)


def _parts(loops: bool, group: Iterator[tuple[Node, Node]], tokens: tuple[int, int]) -> Iterator[Run | Repeat]:
    if not loops:
        yield _run(list(group), tokens)
        return
    for left, right in group:
        assert isinstance(left, Loop) and isinstance(right, Loop)
        if left.count != right.count:
            raise NotAffine
        yield Repeat(left.count, affine(left.body, right.body, tokens))


def _run(pairs: list[tuple[Node, Node]], tokens: tuple[int, int]) -> Run:
    low, high = tokens
    first, second = (np.array([pair[side].tensor.num_bytes for pair in pairs], np.int64) for side in (0, 1))  # type: ignore[union-attr]
    sign = np.array([1 if isinstance(pair[0], Alloc) else -1 for pair in pairs], np.int64)
    slope = second - first
    return Run(sign, first * (high - low) - slope * low, slope, high - low)


Mask = NDArray[np.bool_]

BUFFER_ALIGNMENT = 128
"""The distributed optimizer pads its buffers to a multiple of this and of its ranks [elements]."""


class WeightGroups(NamedTuple):
    """Groups of equal weight tensors of one rank in the order of registration, for every plan; `states.megatron.Weight`
    as arrays."""

    elements: Counts  # groups x plans
    copies: Counts  # groups x plans
    expert: Mask  # of each group
    matrix: Mask
    decays: Mask

    def where(self, kept: Mask) -> WeightGroups:
        """Some of the groups."""
        return WeightGroups(*(axis[kept] for axis in self))


def joined_groups(parts: Sequence[tuple[int, WeightGroups]]) -> WeightGroups:
    """Groups of several parts of a model, each so many times."""
    repeated = [groups._replace(copies=groups.copies * times) for times, groups in parts]
    return WeightGroups(*map(np.concatenate, zip(*repeated, strict=True)))


class Ranks(NamedTuple):
    """Ranks that divide the states of dense weights and of experts, for every plan."""

    dense: Counts
    expert: Counts


class HeldStates(NamedTuple):
    """What a rank holds between steps [bytes]."""

    load: Counts  # weights, gradient buffers, fp32 main parameters
    load_peak: Counts  # while the model is built and moves into its buffers
    first_step: Counts  # what the first optimizer step adds
    update: Counts  # what a step of the optimizer makes and frees, at its highest

    @property
    def steady(self) -> Counts:
        """From the second step on."""
        return self.load + self.first_step


def held_states(weights: WeightGroups, rules: StateRules, ranks: Ranks) -> HeldStates:
    """All persistent tensors of one rank's weights, for every plan."""
    built = sum_of(weights, rules.weight_bytes)
    net: Counts = built
    peak: Counts = built
    first = added = update = np.zeros_like(ranks.dense)
    for chosen, divided in ((~weights.expert, ranks.dense), (weights.expert, ranks.expert)):
        if not chosen.any():
            continue
        group = weights.where(chosen)
        net = net + _buffers(group, rules, divided)
        peak = np.maximum(peak, net)
        if rules.distributed:
            net = net - sum_of(group, rules.weight_bytes)  # each weight becomes a view of the buffer
        if rules.on_gpu:
            shards = _slices(group, divided) if rules.distributed else group
            if rules.on_gpu < 1:
                shards = shards._replace(elements=np.ceil(shards.elements * rules.on_gpu).astype(np.int64))
            added = added + _main_parameters(shards, rules)
            first = first + _first_step(shards, rules)
            update = np.maximum(update, _update(shards, rules))
    return HeldStates(net + added, np.maximum(peak, net + added), first, update)


def sum_of(weights: WeightGroups, width: int, each: Counts = 1) -> Counts:
    """Blocks of all tensors with `width` bytes an element, of each group so many for a weight."""
    return (_blocks(weights.elements * width) * weights.copies * each).sum(axis=0)


def _blocks(num_bytes: Counts) -> Counts:
    return round_up(num_bytes, ALLOCATION_GRANULARITY)


def _buffers(group: WeightGroups, rules: StateRules, ranks: Counts) -> Counts:
    """Parameter and gradient buffers."""
    elements = _buffer_elements(group, ranks) if rules.distributed else (group.elements * group.copies).sum(axis=0)
    share = ceil_div(elements, ranks)
    total: Counts = np.zeros_like(ranks)
    if rules.distributed:
        total = total + _blocks((share if rules.weights_divided else elements) * rules.weight_bytes)
    if rules.gradient_bytes:
        total = total + _blocks((share if rules.gradients_divided else elements) * rules.gradient_bytes)
    return total


def _buffer_elements(group: WeightGroups, ranks: Counts) -> Counts:
    """Of the distributed optimizer's buffer."""
    return round_up((_aligned(group.elements) * group.copies).sum(axis=0), np.lcm(ranks, BUFFER_ALIGNMENT))


def _aligned(elements: Counts) -> Counts:
    return round_up(elements, PARAMETER_ALIGNMENT)


def _main_parameters(shards: WeightGroups, rules: StateRules) -> Counts:
    if rules.main_parameters and not (rules.precision_aware and rules.weight_bytes == 2):
        return sum_of(shards, 4)
    return np.int64(0)


def _first_step(shards: WeightGroups, rules: StateRules) -> Counts:
    """Moments, and fp32 gradients kept between steps."""
    total: Counts = np.int64(0)
    if rules.precision_aware and rules.weight_bytes == 2:
        total = total + sum_of(shards, 2)
    if rules.gradient_bytes == 2 and not rules.precision_aware:
        total = total + sum_of(shards, 4)
    moments = np.where(shards.matrix & rules.muon, 1, rules.moments)
    return total + sum_of(shards, rules.moment_bytes, moments[:, None])


def _update(shards: WeightGroups, rules: StateRules) -> Counts:
    """fp32 copies of states: those of the weights that decay, then of the others."""
    highest: Counts = np.int64(0)
    stepped = ~(shards.matrix & rules.muon)
    for decays in (shards.decays, ~shards.decays) if rules.copied_bytes else ():
        highest = np.maximum(highest, sum_of(shards.where(decays & stepped), rules.copied_bytes))
    return highest


def _slices(group: WeightGroups, ranks: Counts) -> WeightGroups:
    """The pieces of weights in the last rank's slice of the buffer, where weights lie in reverse order: of each group
    the one that the slice begins in, and those behind it."""
    size = _aligned(group.elements)
    filled = np.cumsum((size * group.copies)[::-1], axis=0)[::-1]
    elements: Counts = round_up(filled[0], np.lcm(ranks, BUFFER_ALIGNMENT))
    start = elements - elements // ranks
    first = filled - size * group.copies
    before = np.clip((start - first) // size, 0, group.copies)
    position, left = first + before * size, group.copies - before
    cut = (left > 0) & (position < start)
    piece = np.where(cut, np.minimum(group.elements, position + size - start), 0)
    return WeightGroups(
        np.concatenate((piece, group.elements)), np.concatenate((cut.astype(np.int64), left - cut)),
        *(np.concatenate((axis, axis)) for axis in group[2:]),
    )
