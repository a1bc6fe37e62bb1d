"""Which weights are factors of matrix products, and how many positions each of them meets.

Stable: `matrices`, `met`, `entry_matrices`, `exit_matrices`, `output_elements`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from vramcast.blocks.parameters import embedding_parameters, head_parameters, stack_parameters
from vramcast.domain.model import Channel, Head, Model, MoE, Parameter

OF_DISTANCES: Final = frozenset({"attention.position_k", "attention.position_q"})
"""They project DeBERTa's table of distances, once a layer however many sequences there are: not counted."""

POOLED: Final = frozenset({"head.pooler", "head.classifier", "projection"})
"""They read one position of a sequence: its class token, or its last one."""

OUTPUT: Final = "head.output"
"""The projection to the vocabulary, whose weight may be the embedding's."""

PATCHES: Final = "vision.patch"
"""A convolution whose kernel is its stride: a product of every patch's pixels."""


def matrices(parameters: Iterable[Parameter]) -> Iterator[Parameter]:
    """Weights that multiply activations; tables, vectors and depthwise convolutions left out."""
    return (
        parameter for parameter in parameters
        if parameter.kind == "matrix" and len(parameter.shape) > 1 and parameter.path not in OF_DISTANCES
    )


def met(parameter: Parameter, channel: Channel | None) -> float:
    """Share of a layer's weight that one token meets: of E experts its k."""
    return channel.top_k / channel.num_experts if parameter.expert and isinstance(channel, MoE) else 1.0


def entry_matrices(model: Model) -> tuple[Parameter, ...]:
    """Products between the tokens or patches and the first layer."""
    patches = (p for p in stack_parameters(model.main) if p.path == PATCHES)
    return (*matrices(embedding_parameters(model)), *patches)


def exit_matrices(model: Model) -> tuple[Parameter, ...]:
    """Products behind the last layer, the one with the vocabulary left out."""
    found = matrices((*stack_parameters(model.main), *head_parameters(model)))
    return tuple(parameter for parameter in found if parameter.path != OUTPUT)


def output_elements(model: Model) -> int:
    """Weights of the projection to the vocabulary; 0 without a language-model head."""
    if model.head not in (Head.LM, Head.MLM):
        return 0
    return model.vocab * (model.embedding_width or model.hidden)
