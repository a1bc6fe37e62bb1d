"""LLaMA-like decoders of any size, for questions about the largest model: from 100M parameters up without gaps."""

from __future__ import annotations

from typing import Final

from vramcast.blocks.parameters import count_parameters
from vramcast.domain.model import MLP, Attention, Layer, Model, Run, Stack
from vramcast.units import round_up

HEAD_DIM: Final = 128
VOCABULARY: Final = 32000
LAYERS_OF_STEP: Final = 8
HIDDEN_OF_STEP: Final = 1024
"""Layers and width grow together in steps of 8 and 1024, as in LLaMA: 32 x 4096 is 7B, 40 x 5120 13B, and tensor and
pipeline degrees up to 8 divide them."""

PARAMETERS_OF_STEP: Final = 12 * HIDDEN_OF_STEP**2 * LAYERS_OF_STEP
"""12 H^2 a layer: 4 H^2 of attention and 3 x H x 8/3 H of a gated MLP; times the cube of the step's number."""

WIDTH_MULTIPLE: Final = 64


def scaled_model(parameters: int) -> Model:
    """The decoder with at most so many parameters: its feed-forward width takes what depth and width leave.

    >>> count_parameters(scaled_model(7_000_000_000)).total
    6990073856
    """
    step = max(1, round((parameters / PARAMETERS_OF_STEP) ** (1 / 3)))
    while step > 1 and count_parameters(_decoder(step, WIDTH_MULTIPLE)).total > parameters:
        step -= 1
    bare = count_parameters(_decoder(step, WIDTH_MULTIPLE)).total
    a_width = 3 * step * HIDDEN_OF_STEP * step * LAYERS_OF_STEP
    width = WIDTH_MULTIPLE + max(0, parameters - bare) // a_width
    return _decoder(step, max(WIDTH_MULTIPLE, round_up(width + 1, WIDTH_MULTIPLE) - WIDTH_MULTIPLE))


def _decoder(step: int, width: int) -> Model:
    hidden = step * HIDDEN_OF_STEP
    heads = hidden // HEAD_DIM
    attention = Attention(num_heads=heads, num_kv_heads=heads, head_dim=HEAD_DIM)
    layer = Layer(mixer=attention, channel=MLP(width=width, gated=True))
    stack = Stack(name="decoder", hidden=hidden, runs=(Run(count=step * LAYERS_OF_STEP, layer=layer),))
    return Model(name="LLaMA-like", family="llama", vocab=VOCABULARY, stacks=(stack,))
