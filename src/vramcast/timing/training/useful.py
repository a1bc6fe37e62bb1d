"""Operations that a model needs whatever runs it: what MFU counts.

Stable: `forward_flops`.

[PaLM] Chowdhery et al., arXiv:2204.02311, appendix B: two operations a weight and token forward, and attention; neither
the engine's kernels nor what they repeat. Here a causal mask's half is left out, which no kernel has to compute.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Final, NamedTuple

from vramcast.blocks.parameters import layer_parameters
from vramcast.domain.model import Layer, Model
from vramcast.timing.training.matrices import POOLED, entry_matrices, exit_matrices, matrices, met, output_elements
from vramcast.timing.training.operators import mixing
from vramcast.timing.training.parts import Shape, Style

MOST_KNOWN: Final = 1024
"""Layers whose active weights are kept [count]."""


class Useful(NamedTuple):
    """Operations of one token forward."""

    products: float  # of layers and ends with their weights
    output: float  # of the projection to the vocabulary
    attention: float  # softmax(QK)V and scans


def forward_flops(model: Model, seq_len: int) -> Useful:
    """What one token of a sequence needs forward.

    Leaves out: norms, gates, losses, depthwise convolutions, tables of relative positions, multi-token prediction.

    Args:
        model: of one stack
        seq_len: positions of a sequence [tokens]
    """
    runs = model.main.runs
    shape = Shape(1, seq_len, causal=model.main.causal)
    ends = sum(
        parameter.elements / (seq_len if parameter.path in POOLED else 1)
        for parameter in (*entry_matrices(model), *exit_matrices(model))
    )
    layers = sum(run.count * active_elements(run.layer, hidden=model.hidden) for run in runs)
    scores = sum(
        run.count * operator.flops for run in runs for operator in mixing(run.layer.mixer, shape, Style())
    )
    return Useful(2.0 * (layers + ends), 2.0 * output_elements(model), scores / seq_len)


@lru_cache(maxsize=MOST_KNOWN)
def active_elements(layer: Layer, *, hidden: int) -> float:
    """Weights of a layer's products that one token meets."""
    return sum(
        parameter.elements * met(parameter, layer.channel)
        for parameter in matrices(layer_parameters(layer, hidden=hidden))
    )
