"""A whole forward on one pipeline stage: embedding, layers, head and sampler."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from vramcast.blocks.parameters import embedding_parameters, head_parameters
from vramcast.domain.model import Head, Layer, Model, Run
from vramcast.states.storage import format_for, format_of
from vramcast.timing.execution import Execution
from vramcast.timing.layers import layer_work
from vramcast.timing.work import Placement, Step, Work
from vramcast.units import ceil_div

LOGIT_PASSES: Final = 3
"""How often the sampler goes over fp32 logits: softmax, filter, draw."""


def forward_work(
    model: Model, runs: Iterable[Run], step: Step, placement: Placement, execution: Execution, *,
    first: bool = True, last: bool = True,
) -> Iterator[Work]:
    """What one rank does in a step.

    Leaves out: towers beside the main stack (vision, encoder), drafts of speculative decoding.

    Args:
        model: the network
        runs: layers of the rank's stage
        step: sequences and tokens
        placement: degrees and formats
        execution: how the engine runs kernels
        first: whether the stage has the embedding
        last: whether the stage has the head
    """
    counts: dict[Layer, int] = {}
    for run in runs:
        counts[run.layer] = counts.get(run.layer, 0) + run.count
    if first:
        yield from _embedding(model, step, placement)
    for layer, count in counts.items():
        for work in layer_work(layer, step, placement, execution, hidden=model.hidden):
            yield work._replace(repeats=work.repeats * count)
    if last:
        yield from _head(model, step, placement, execution)
    else:
        size = step.rows * model.hidden * placement.width
        yield Work("to the next stage", message_bytes=size, ranks=2, pattern="send", kernels=0.0)


def _embedding(model: Model, step: Step, placement: Placement) -> Iterator[Work]:
    """Rows are gathered: a table is never read whole."""
    width = sum(parameter.shape[-1] for parameter in embedding_parameters(model) if parameter.kind == "embedding")
    yield Work("embedding", activation_bytes=2.0 * step.rows * width * placement.width)
    if placement.tp > 1:
        size = step.rows * model.hidden * placement.width
        yield Work("all-reduce", message_bytes=size, ranks=placement.tp, pattern="all-reduce", kernels=0.0)


def _head(model: Model, step: Step, placement: Placement, execution: Execution) -> Iterator[Work]:
    if model.head not in (Head.LM, Head.MLM):
        return
    rows = step.sequences * step.head_rows
    shape = (ceil_div(model.vocab, placement.tp), model.hidden)
    stored = _head_format(model, placement)
    yield Work(
        "head",
        flops=2.0 * rows * shape[0] * shape[1],
        operands=stored,
        weight_bytes=format_of(stored).num_bytes(shape),
        activation_bytes=rows * (shape[0] + shape[1]) * placement.width,
        kernels=execution.kernels_of(stored),
    )
    if placement.tp > 1:
        size = rows * model.vocab * placement.width
        yield Work("all-gather", message_bytes=size, ranks=placement.tp, pattern="all-gather", kernels=0.0)
    sampled = step.sequences * model.vocab * 4
    yield Work("sampler", activation_bytes=float(LOGIT_PASSES * sampled), kernels=LOGIT_PASSES)


def _head_format(model: Model, placement: Placement) -> str:
    """Of the head's own weight, or of the embedding it is tied to."""
    own = [parameter for parameter in head_parameters(model) if len(parameter.shape) > 1]
    parameter = (own or list(embedding_parameters(model)))[0]
    return format_for(parameter, quantised=placement.quantised, whole=placement.whole)
