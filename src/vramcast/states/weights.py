"""The weights one rank stores: tensor-, expert- and data-parallel shares of the model's parameters.

[FSDP2] pytorch torch/distributed/fsdp/_fully_shard/_fsdp_param.py `FSDPParam._init_sharded_param`: each weight is cut
along its first dimension, padded to a multiple of the group.
[TP] pytorch torch/distributed/tensor/parallel/style.py: columns, rows, or copies.
"""

from __future__ import annotations

from vramcast.domain.model import Parameter
from vramcast.parallel.layout import Layout
from vramcast.states.shapes import Shape
from vramcast.units import ceil_div


def local_shape(parameter: Parameter, layout: Layout) -> Shape:
    """Shape of a weight after tensor and expert parallelism, leading dimension first."""
    if layout.tp == layout.ep == layout.etp == 1 and layout.vocab_divisor == 1:
        return parameter.shape
    local = layout.local_elements(parameter)
    if parameter.expert:
        experts = ceil_div(parameter.shape[0], layout.ep)
        inner = local // experts
        columns = parameter.shape[-1]
        return (experts, inner) if len(parameter.shape) < 3 else (experts, inner // columns, columns)
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
