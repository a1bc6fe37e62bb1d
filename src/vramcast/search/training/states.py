"""`states.megatron.states` for many plans at once: what weights, gradients and optimizer states take on one rank.

The same steps in the same order as there, on arrays; a property test holds the two together. The optimizer's wave of
fp32 copies needs no peak of its own: the moments that the first step adds are never smaller than one temporary copy.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from vramcast.domain.program import ALLOCATION_GRANULARITY
from vramcast.search.training.extents import Counts
from vramcast.states.megatron import PARAMETER_ALIGNMENT, StateRules
from vramcast.units import ceil_div, round_up

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
