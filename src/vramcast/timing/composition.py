"""From the seconds of a stage's passes to the seconds of a step: arithmetic that takes floats and NumPy arrays alike.

Nothing here branches on a number; what is chosen by name (the schedule) is a row of a table. `estimate.step_time` and
the search call the same functions, so they cannot disagree. Stable: every name of this module and its keywords.

Symbols:  m micro-batches   p stages   v virtual stages   F, B one micro-batch's forward and backward on a stage
[1F1B] Narayanan et al., arXiv:2104.04473, section 2.2: bubble (p - 1)(F + B), with v chunks a v-th of it
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

from msgspec import Struct

Number = Any
"""A float or an array of floats; mypy cannot say "both operands of the same kind" without a class for arrays."""


def larger(a: Number, b: Number) -> Number:
    """The maximum, element by element.

    >>> larger(2.0, 3.0)
    3.0
    """
    return (a + b + abs(a - b)) / 2


def positive(a: Number) -> Number:
    """`a` where it is above zero, else zero."""
    return (a + abs(a)) / 2


def of_largest(keys: Sequence[Number], values: Sequence[Number]) -> Number:
    """The value whose key is the largest, the first of equals.

    >>> of_largest([1.0, 3.0, 2.0], [10.0, 30.0, 20.0])
    30.0
    """
    key, value = keys[0], values[0]
    for other, candidate in zip(keys[1:], values[1:], strict=True):
        more = (other > key) * 1.0
        key, value = key + (other - key) * more, value + (candidate - value) * more
    return value


class Pipeline(Struct, frozen=True):
    """Seconds of one micro-batch through the stages; with one stage all totals equal the slowest.

    forward, backward: of all stages together, one after the other
    slowest_forward, slowest_backward: of the stage with the largest sum of both
    micro_batches: of a step
    rounds: how often in a step the pipeline fills and drains
    """

    forward: Number
    backward: Number
    slowest_forward: Number
    slowest_backward: Number
    micro_batches: Number
    stages: Number = 1
    virtual_stages: Number = 1
    rounds: Number = 1

    @property
    def busy(self) -> Number:
        """The slowest stage's own work in a step."""
        return self.micro_batches * (self.slowest_forward + self.slowest_backward)

    @property
    def others(self) -> Number:
        """One micro-batch on all stages but the slowest: what fills and drains the pipeline."""
        return self.forward + self.backward - self.slowest_forward - self.slowest_backward


def one_forward_one_backward(pipeline: Pipeline) -> Number:
    """Seconds the slowest stage waits, under 1F1B; GPipe waits as long [1F1B]."""
    return pipeline.others


def interleaved(pipeline: Pipeline) -> Number:
    """With v chunks a stage begins after a v-th of the work [1F1B].

    With fewer micro-batches than stages none is ready for a stage's second chunk when the first one is done with them
    all: each of the v - 1 chunks behind waits for the p - m stages that are missing. One micro-batch passes all stages
    one after the other whatever v is.
    """
    chunks, stages = pipeline.virtual_stages, pipeline.stages
    missing = positive(stages - pipeline.micro_batches / pipeline.rounds) / larger(stages - 1, 1)
    return pipeline.others * (1 + (chunks - 1) * missing) / chunks


BUBBLES: Final[dict[str, Callable[[Pipeline], Number]]] = {
    "1f1b": one_forward_one_backward,
    "gpipe": one_forward_one_backward,
    "interleaved": interleaved,
}
"""Schedule -> seconds of a step in which the slowest stage has nothing to do."""


def overlapped(communication: Number, behind: Number, *, hidden: Number, loss: Number = 0.0) -> Number:
    """Seconds that a transfer adds to a step.

    Args:
        communication: of the transfer on its own [s]
        behind: work that runs meanwhile [s]
        hidden: share of the transfer that can overlap at all; 0: nothing does
        loss: share of what overlaps by which the work becomes longer
    """
    excess = positive(communication * hidden - behind)
    return communication * (1 - hidden) + excess + loss * (communication * hidden - excess)


class Transfers(Struct, frozen=True):
    """Transfers of one micro-batch's or one step's gradients and weights among data-parallel ranks [s].

    reduce, gather: all gradients and all weights of a rank, on their own
    forward, backward: of the slowest stage on one micro-batch, which transfers can run under
    gradients_hidden, weights_hidden: shares that can overlap at all
    loss: share of what overlaps by which the passes become longer
    again: 1 where weights are gathered for backward once more, else 0
    """

    reduce: Number
    gather: Number
    forward: Number
    backward: Number
    micro_batches: Number
    gradients_hidden: Number
    weights_hidden: Number
    loss: Number
    again: Number = 0


def once(transfers: Transfers) -> tuple[Number, Number]:
    """Gradients behind the last backward, updated weights before the next forward."""
    return (
        overlapped(transfers.reduce, transfers.backward, hidden=transfers.gradients_hidden, loss=transfers.loss),
        overlapped(transfers.gather, transfers.forward, hidden=transfers.weights_hidden, loss=transfers.loss),
    )


def gradients_each(transfers: Transfers) -> tuple[Number, Number]:
    """Gradients after every micro-batch, because nobody keeps them whole; weights once."""
    gradients, weights = once(transfers)
    return transfers.micro_batches * gradients, weights


def everything_each(transfers: Transfers) -> tuple[Number, Number]:
    """Weights before every pass, gradients after every backward; both run under the layers before and behind."""
    moved = transfers.reduce + transfers.again * transfers.gather
    backward = overlapped(moved, transfers.backward, hidden=transfers.gradients_hidden, loss=transfers.loss)
    forward = overlapped(transfers.gather, transfers.forward, hidden=transfers.weights_hidden, loss=transfers.loss)
    return transfers.micro_batches * backward, transfers.micro_batches * forward


EXCHANGES: Final[dict[str, Callable[[Transfers], tuple[Number, Number]]]] = {
    "once": once, "gradients": gradients_each, "everything": everything_each,
}
"""What is exchanged with every micro-batch -> seconds that gradients and weights add to a step."""


class Step(NamedTuple):
    """Seconds of one optimizer step, cause by cause; the sum is the step."""

    busy: Number  # the slowest stage's passes
    bubble: Number
    gradients: Number  # reducing them over data-parallel ranks, what sticks out
    weights: Number  # gathering updated or sharded weights, what sticks out
    optimizer: Number  # clipping and update
    offload: Number  # transfers to and from the host, what sticks out
    host: Number  # what the process does between two steps
    stragglers: Number = 0.0  # waiting for the slowest machine

    @property
    def total(self) -> Number:
        return sum(self)


def step(
    pipeline: Pipeline, *, schedule: str, gradients: Number = 0.0, weights: Number = 0.0, optimizer: Number = 0.0,
    offload: Number = 0.0, host: Number = 0.0, spread: Number = 0.0,
) -> Step:
    """One optimizer step.

    Args:
        pipeline: seconds of the passes
        schedule: key of BUBBLES
        gradients, weights, offload: what sticks out of `overlapped` [s]
        optimizer, host: [s]
        spread: share by which the slowest machine is slower than the mean one, `timing.training.states.spread_of`
    """
    bubble = pipeline.rounds * BUBBLES[schedule](pipeline)
    waiting = spread * (pipeline.busy + bubble + gradients + weights)
    return Step(pipeline.busy, bubble, gradients, weights, optimizer, offload, host, waiting)
