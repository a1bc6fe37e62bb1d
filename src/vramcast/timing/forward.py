"""A whole forward on one pipeline stage: embedding, layers, head and sampler."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from vramcast.blocks.parameters import embedding_parameters, head_parameters
from vramcast.domain.model import Head, Layer, Model, Run
from vramcast.states.storage import format_of
from vramcast.timing.layers import layer_work
from vramcast.timing.work import Placement, Setting, Work, collective
from vramcast.units import ceil_div

LOGIT_PASSES: Final = 3
"""How often the sampler goes over fp32 logits: softmax, filter, draw."""


def forward_work(
    model: Model, runs: Iterable[Run], setting: Setting, *, first: bool = True, last: bool = True
) -> Iterator[tuple[Work, int]]:
    """What one rank does in a step: each operator and how often it runs.

    Leaves out: towers beside the main stack (vision, encoder), drafts of speculative decoding.

    Args:
        model: the network
        runs: layers of the rank's stage
        setting: sequences and tokens, degrees and formats, how the engine runs kernels
        first: whether the stage has the embedding
        last: whether the stage has the head
    """
    counts: dict[Layer, int] = {}
    for run in runs:
        counts[run.layer] = counts.get(run.layer, 0) + run.count
    if first:
        yield from ((work, 1) for work in _embedding(model, setting))
    for layer, count in counts.items():
        yield from ((work, count) for work in layer_work(layer, setting, hidden=model.hidden))
    if last:
        yield from ((work, 1) for work in _head(model, setting))
    else:
        size = setting.step.rows * model.hidden * setting.placement.width
        # the next stage begins behind the tensor-parallel ranks of this one
        yield collective("send", size, ranks=2 * setting.placement.tp), 1


def _embedding(model: Model, setting: Setting) -> Iterator[Work]:
    """Rows are gathered: a table is never read whole."""
    step, placement = setting.step, setting.placement
    width = sum(parameter.shape[-1] for parameter in embedding_parameters(model) if parameter.kind == "embedding")
    yield Work("embedding", activation_bytes=2.0 * step.rows * width * placement.width)
    if placement.tp > 1:
        yield collective("all-reduce", step.rows * model.hidden * placement.width, ranks=placement.tp)


def _head(model: Model, setting: Setting) -> Iterator[Work]:
    if model.head not in (Head.LM, Head.MLM):
        return
    step, placement = setting.step, setting.placement
    rows = step.sequences * step.head_rows
    shape = (ceil_div(model.vocab, placement.tp), model.hidden)
    stored = _head_format(model, placement)
    yield Work(
        "head",
        flops=2.0 * rows * shape[0] * shape[1],
        operands=stored,
        weight_bytes=format_of(stored).num_bytes(shape),
        activation_bytes=rows * (shape[0] + shape[1]) * placement.width,
        kernels=setting.execution.kernels_of(stored),
    )
    if placement.tp > 1:
        yield collective("all-gather", rows * model.vocab * placement.width, ranks=placement.tp)
    sampled = step.sequences * model.vocab * 4
    yield Work("sampler", activation_bytes=float(LOGIT_PASSES * sampled), kernels=LOGIT_PASSES)


def _head_format(model: Model, placement: Placement) -> str:
    """Of the head's own weight, or of the embedding it is tied to."""
    own = [parameter for parameter in head_parameters(model) if len(parameter.shape) > 1]
    parameter = (own or list(embedding_parameters(model)))[0]
    return placement.stored_as(parameter)
