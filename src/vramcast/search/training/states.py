"""`states.megatron.states` for many plans at once: what weights, gradients and optimizer states take on one rank.

The same steps in the same order as there, on arrays; a property test holds the two together. The optimizer's wave of
fp32 copies needs no peak of its own: the moments that the first step adds are never smaller than one temporary copy.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from vramcast.domain.program import ALLOCATION_GRANULARITY
from vramcast.search.training.extents import Counts
from vramcast.states.megatron import PARAMETER_ALIGNMENT, StateRules
from vramcast.units import ceil_div, round_up

BUFFER_ALIGNMENT = 128
"""The distributed optimizer pads its buffers to a multiple of this and of its ranks [elements]."""


class WeightGroup(NamedTuple):
    """Equal weight tensors of one rank, for every plan; `states.megatron.Weight` as arrays."""

    elements: Counts
    copies: Counts
    expert: bool
    matrix: bool
    decays: bool


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


def held_states(weights: Sequence[WeightGroup], rules: StateRules, ranks: Ranks) -> HeldStates:
    """All persistent tensors of one rank's weights, for every plan."""
    dense = [weight for weight in weights if not weight.expert]
    experts = [weight for weight in weights if weight.expert]
    built = sum_of(weights, rules.weight_bytes)
    net: Counts = built
    peak: Counts = built
    first = added = update = np.zeros_like(ranks.dense)
    for group, divided in ((dense, ranks.dense), (experts, ranks.expert)):
        if not group:
            continue
        net = net + _buffers(group, rules, divided)
        peak = np.maximum(peak, net)
        if rules.distributed:
            net = net - sum_of(group, rules.weight_bytes)  # each weight becomes a view of the buffer
        if rules.on_gpu:
            shards = list(_slices(group, divided)) if rules.distributed else group
            added = added + _main_parameters(shards, rules)
            first = first + _first_step(shards, rules)
            update = np.maximum(update, _update(shards, rules))
    return HeldStates(net + added, np.maximum(peak, net + added), first, update)


def sum_of(weights: Sequence[WeightGroup], width: int) -> Counts:
    """Blocks of all tensors with `width` bytes an element."""
    return sum(_blocks(weight.elements * width) * weight.copies for weight in weights)


def _blocks(num_bytes: Counts) -> Counts:
    return round_up(num_bytes, ALLOCATION_GRANULARITY)


def _buffers(group: Sequence[WeightGroup], rules: StateRules, ranks: Counts) -> Counts:
    """Parameter and gradient buffers."""
    elements = _buffer_elements(group, rules, ranks)
    share = ceil_div(elements, ranks)
    total: Counts = np.zeros_like(ranks)
    if rules.distributed:
        total = total + _blocks((share if rules.weights_divided else elements) * rules.weight_bytes)
    if rules.gradient_bytes:
        total = total + _blocks((share if rules.gradients_divided else elements) * rules.gradient_bytes)
    return total


def _buffer_elements(group: Sequence[WeightGroup], rules: StateRules, ranks: Counts) -> Counts:
    if not rules.distributed:
        return sum((weight.elements * weight.copies for weight in group), start=np.zeros_like(ranks))
    used: Counts = sum((_aligned(weight.elements) * weight.copies for weight in group), start=np.zeros_like(ranks))
    return round_up(used, np.lcm(ranks, BUFFER_ALIGNMENT))


def _aligned(elements: Counts) -> Counts:
    return round_up(elements, PARAMETER_ALIGNMENT)


def _main_parameters(shards: Sequence[WeightGroup], rules: StateRules) -> Counts:
    if rules.main_parameters and not (rules.precision_aware and rules.weight_bytes == 2):
        return sum_of(shards, 4)
    return np.int64(0)


def _first_step(shards: Sequence[WeightGroup], rules: StateRules) -> Counts:
    """Moments, and fp32 gradients kept between steps."""
    total: Counts = np.int64(0)
    if rules.precision_aware and rules.weight_bytes == 2:
        total = total + sum_of(shards, 2)
    if rules.gradient_bytes == 2 and not rules.precision_aware:
        total = total + sum_of(shards, 4)
    for weight in shards:
        moments = 1 if rules.muon and weight.matrix else rules.moments
        total = total + moments * sum_of([weight], rules.moment_bytes)
    return total


def _update(shards: Sequence[WeightGroup], rules: StateRules) -> Counts:
    """fp32 copies of states: those of the weights that decay, then of the others."""
    highest: Counts = np.int64(0)
    for decays in (True, False) if rules.copied_bytes else ():
        held = [weight for weight in shards if weight.decays is decays and not (rules.muon and weight.matrix)]
        highest = np.maximum(highest, sum_of(held, rules.copied_bytes))
    return highest


def _slices(group: Sequence[WeightGroup], ranks: Counts) -> Iterator[WeightGroup]:
    """The pieces of weights in the last rank's slice of the buffer, where weights lie in reverse order."""
    used: Counts = sum((_aligned(weight.elements) * weight.copies for weight in group), start=np.zeros_like(ranks))
    elements: Counts = round_up(used, np.lcm(ranks, BUFFER_ALIGNMENT))
    start = elements - elements // ranks
    position = np.zeros_like(ranks)
    for weight in reversed(group):
        size = _aligned(weight.elements)
        before = np.clip((start - position) // size, 0, weight.copies)
        position = position + before * size
        left = weight.copies - before
        cut: NDArray[np.bool_] = (left > 0) & (position < start)
        piece = np.where(cut, np.minimum(weight.elements, position + size - start), 0)
        yield weight._replace(elements=piece, copies=cut.astype(np.int64))
        position = position + np.where(cut, size, 0)
        left = left - cut
        yield weight._replace(copies=left)
        position = position + left * size
