"""Weight tensors of layers, embeddings and heads, and how many there are."""

from vramcast.blocks.parameters.layer import layer_parameters
from vramcast.blocks.parameters.model import (
    OwnedParameter,
    ParameterCount,
    Stored,
    checkpoint_elements,
    count_parameters,
    embedding_parameters,
    head_parameters,
    mtp_parameters,
    named_parameters,
    stack_parameters,
    stored_elements,
)

__all__ = [
    "OwnedParameter",
    "ParameterCount",
    "Stored",
    "checkpoint_elements",
    "count_parameters",
    "embedding_parameters",
    "head_parameters",
    "layer_parameters",
    "mtp_parameters",
    "named_parameters",
    "stack_parameters",
    "stored_elements",
]
