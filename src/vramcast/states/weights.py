"""The weights one rank stores: tensor-, expert- and data-parallel shares of the model's parameters.

[FSDP2] pytorch torch/distributed/fsdp/_fully_shard/_fsdp_param.py `FSDPParam._init_sharded_param`: each weight is cut
along its first dimension, padded to a multiple of the group.
[TP] pytorch torch/distributed/tensor/parallel/style.py: columns, rows, or copies.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from vramcast.blocks.parameters import named_parameters
from vramcast.domain.model import Model, Parameter
from vramcast.parallel.layout import Layout
from vramcast.states.shapes import Shape
from vramcast.states.steps import Weight
from vramcast.units import ceil_div


def local_shape(parameter: Parameter, layout: Layout) -> Shape:
    """Shape of a weight after tensor and expert parallelism, leading dimension first."""
    if layout.tp == layout.ep == layout.etp == 1 and layout.vocab_divisor == 1:
        return parameter.shape
    local = layout.local_elements(parameter)
    if parameter.expert:
        experts = ceil_div(parameter.shape[0], layout.ep)
        inner = local // experts
        return (experts, inner) if len(parameter.shape) < 3 else (experts, inner // parameter.shape[-1], parameter.shape[-1])
    if len(parameter.shape) == 1:
        return (local,)
    rest = parameter.elements // parameter.shape[0]
    return (ceil_div(local, rest), *parameter.shape[1:])


def sharded_shape(shape: Shape, ranks: int) -> Shape:
    """The padded share of one of `ranks` data-parallel ranks [FSDP2].

    >>> sharded_shape((4096, 14336), 8)
    (512, 14336)
    """
    return (ceil_div(shape[0], ranks), *shape[1:]) if shape else shape


def rank_weights(
    model: Model, layout: Layout, *, width: int = 4, shard: Callable[[Parameter, Shape], Shape] | None = None
) -> Iterator[Weight]:
    """Every weight tensor as one rank holds it.

    Args:
        model: the network
        layout: tensor and expert parallelism
        width: bytes of a stored element
        shard: what data parallelism leaves of a local shape; None: all of it
    """
    for owned in named_parameters(model):
        shape = local_shape(owned.parameter, layout)
        if shard is not None:
            shape = shard(owned.parameter, shape)
        yield Weight(
            owner=owned.owner, path=owned.parameter.path, shape=shape, repeats=owned.repeats, width=width,
            learns=owned.parameter.trainable,
        )
