"""All weights of a model, by owner, and how many there are."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from typing import NamedTuple

from msgspec import Struct

from vramcast.blocks.parameters.layer import MOST_KNOWN, layer_parameters
from vramcast.blocks.parameters.model import (
    elements,
    embedding_parameters,
    head_parameters,
    mtp_parameters,
    stack_parameters,
)
from vramcast.domain.model import Layer, Model, MoE, Parameter


class OwnedParameter(NamedTuple):
    """A weight tensor, who owns it, and how many equal ones there are in a row."""

    owner: str  # "embedding", "decoder", "decoder.layers.3-30", "head", "mtp.0"
    parameter: Parameter
    repeats: int


class ParameterCount(Struct, frozen=True, kw_only=True):
    """Weights of a model, each tied or shared tensor once. Multi-token-prediction modules stand apart."""

    total: int  # everything a forward pass to the head needs
    embedding: int  # token embedding, positions and token types not
    head: int  # output projection when untied, poolers, task heads
    active: int  # what one token meets: experts not chosen left out
    frozen: int  # within total, but no gradient: routing corrections, fixed positions
    mtp: int  # multi-token-prediction modules
    buffers: int  # stored by a checkpoint, no parameters

    @property
    def non_embedding(self) -> int:
        """Weights outside the token embedding and an untied output projection."""
        return self.total - self.embedding - self.head

    @property
    def trainable(self) -> int:
        """Weights with a gradient."""
        return self.total - self.frozen


@lru_cache(maxsize=MOST_KNOWN)
def named_parameters(model: Model, *, mtp: bool = False) -> tuple[OwnedParameter, ...]:
    """Every weight tensor with its owner; equal layers in a row come once, with their count.

    Args:
        model: the network
        mtp: also those of the multi-token-prediction modules
    """
    return tuple(_named(model, mtp))


def _named(model: Model, mtp: bool) -> Iterator[OwnedParameter]:
    for parameter in embedding_parameters(model):
        yield OwnedParameter("embedding", parameter, 1)
    for stack in model.stacks:
        for parameter in stack_parameters(stack):
            yield OwnedParameter(stack.name, parameter, 1)
        first = 0
        for run in stack.runs:
            last = first + run.count - 1
            owner = f"{stack.name}.layers.{first}" + (f"-{last}" if last > first else "")
            for parameter in layer_parameters(run.layer, hidden=stack.hidden):
                yield OwnedParameter(owner, parameter, run.count)
            first += run.count
    for parameter in head_parameters(model):
        yield OwnedParameter("head", parameter, 1)
    for index, module in enumerate(mtp_parameters(model) if mtp else ()):
        for parameter in module:
            yield OwnedParameter(f"mtp.{index}", parameter, 1)


def _idle_expert_elements(layer: Layer, hidden: int) -> int:
    """Expert weights of a layer that one token does not meet."""
    if not isinstance(layer.channel, MoE):
        return 0
    moe = layer.channel
    experts = sum(p.elements for p in layer_parameters(layer, hidden=hidden) if p.expert)
    return experts // moe.num_experts * max(0, moe.num_experts - moe.top_k)


@lru_cache(maxsize=MOST_KNOWN)
def count_parameters(model: Model) -> ParameterCount:
    """Number of weights of a model.

    Leaves out padding of any kind and optimizer copies.
    """
    total = frozen = 0
    for owned in named_parameters(model):
        number = owned.parameter.elements * owned.repeats
        total += number
        frozen += 0 if owned.parameter.trainable else number
    idle = sum(
        run.count * _idle_expert_elements(run.layer, stack.hidden) for stack in model.stacks for run in stack.runs
    )
    return ParameterCount(
        total=total,
        embedding=elements(embedding_parameters(model)),
        head=elements(head_parameters(model)),
        active=total - idle,
        frozen=frozen,
        mtp=sum(map(elements, mtp_parameters(model))),
        buffers=model.buffers,
    )
