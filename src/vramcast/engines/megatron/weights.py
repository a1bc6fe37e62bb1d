"""Weight tensors as one rank holds them.

Source: Megatron-LM megatron/core/models/gpt/gpt_layer_specs.py: one query-key-value weight, one gate-up weight.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from msgspec.structs import replace

from vramcast.blocks.parameters import embedding_parameters, head_parameters, layer_parameters, stack_parameters
from vramcast.domain.model import Attention, Layer, Model, MoE, Parameter, Split
from vramcast.parallel.layout import Layout
from vramcast.states.megatron import Weight

_PACKED = {
    "attention.q": "attention.qkv", "attention.k": "attention.qkv", "attention.v": "attention.qkv",
    "attention.q.bias": "attention.qkv.bias", "attention.k.bias": "attention.qkv.bias",
    "attention.v.bias": "attention.qkv.bias", "mlp.gate": "mlp.up", "mlp.gate.bias": "mlp.up.bias",
    "moe.experts.gate": "moe.experts.up", "moe.shared.gate": "moe.shared.up",
    "cross.attention.k": "cross.attention.kv", "cross.attention.v": "cross.attention.kv",
}


def layer_weights(layer: Layer, *, hidden: int, layout: Layout, owner: str, count: int) -> list[Weight]:
    """Weights of `count` equal layers on one rank."""
    kv_heads = layer.mixer.num_kv_heads if isinstance(layer.mixer, Attention) else 0
    local = replace(layout, kv_heads=kv_heads)
    experts = layout.local_experts(layer.channel.num_experts) if isinstance(layer.channel, MoE) else 1
    found = list(_local(layer_parameters(layer, hidden=hidden), local, owner))
    return [
        weight._replace(count=count * experts, elements=weight.elements // experts)
        if weight.expert
        else weight._replace(count=count)
        for weight in found
    ]


def owned_weights(parameters: Iterable[Parameter], *, layout: Layout, owner: str) -> list[Weight]:
    """Weights outside the layers on one rank."""
    return list(_local(parameters, layout, owner))


def _local(parameters: Iterable[Parameter], layout: Layout, owner: str) -> Iterator[Weight]:
    packed: dict[str, Weight] = {}
    for parameter in parameters:
        if not parameter.trainable:
            continue
        path = _PACKED.get(parameter.path, parameter.path)
        elements = layout.local_elements(parameter)
        if path in packed:
            elements += packed[path].elements
        matrix = len(parameter.shape) >= 2 and parameter.kind != "embedding" and "output" not in path
        decays = len(parameter.shape) - int(parameter.expert) >= 2
        packed[path] = Weight(owner, path, elements, 1, parameter.expert, matrix, decays)
    yield from packed.values()


def embedding_weights(model: Model) -> tuple[Parameter, ...]:
    """The embedding's, of tokens and of positions."""
    owned = [parameter for parameter in stack_parameters(model.main) if parameter.path.startswith("embedding")]
    return (*embedding_parameters(model), *owned)


def head_weights(model: Model, *, copied: bool) -> tuple[Parameter, ...]:
    """Final norm and output projection; a tied one is a copy where the embedding lives on another stage."""
    norms = [parameter for parameter in stack_parameters(model.main) if parameter.path.startswith("final_norm")]
    found = [*norms, *head_parameters(model)]
    if model.tied and copied:
        shape = (model.vocab, model.hidden)
        found.append(Parameter(path="head.output, tied copy", shape=shape, split=Split.VOCAB, kind="embedding"))
    return tuple(found)
