"""Weight tensors of layers, embeddings and heads, and how many there are."""

from vramcast.blocks.parameters.checkpoint import Stored, checkpoint_elements, stored_elements
from vramcast.blocks.parameters.count import OwnedParameter, ParameterCount, count_parameters, named_parameters
from vramcast.blocks.parameters.layer import layer_parameters
from vramcast.blocks.parameters.model import embedding_parameters, head_parameters, mtp_parameters, stack_parameters

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
