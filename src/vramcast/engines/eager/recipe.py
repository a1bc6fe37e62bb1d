"""A run's choices as eager engines need them: implementations, what learns, how states are kept."""

from __future__ import annotations

from typing import Final, NamedTuple

from vramcast.blocks.parameters import named_parameters
from vramcast.blocks.sizes import Sizes
from vramcast.domain.model import Model, Parameter, Stack
from vramcast.operators.lora import ADAPTERS, Adapter
from vramcast.operators.quantised import QUANTISED
from vramcast.states.steps import Weight
from vramcast.states.storage import BITSANDBYTES, bitsandbytes_converts, is_linear

IN_MEMORY: Final = BITSANDBYTES | {"int8"}
"""Storages that bitsandbytes makes of the network in memory; "int8" of a frozen base is its LLM.int8()."""

WEIGHTS_SOURCE: Final = "the model's configuration and its code in transformers"


class Tower(NamedTuple):
    """An encoder or vision tower beside the main stack."""

    stack: Stack
    sizes: Sizes


class Recipe(NamedTuple):
    """One model's forward and backward on one rank."""

    model: Model
    sizes: Sizes
    towers: tuple[Tower, ...] = ()
    loss: str = "eager"  # key of the loss tables
    outputs_fp32: bool = False  # returned logits are converted to fp32 (Accelerate's mixed precision)
    kept_logits: int = 0  # bytes per logit that the loop's variables hold until backward has ended
    recompute: bool = False  # every layer keeps only its input
    reentrant: bool = True  # the checkpoint's recomputed output lives during its backward
    recompute_layers: int | None = None  # only that many layers
    learning: tuple[str, ...] = ()  # paths that learn although `sizes.frozen`: "embedding.tokens", "head.output"
    virtual_elements: int = 0  # trained prompts or prefixes
    copies_learning: bool = False  # they are trained in a copy (PEFT modules_to_save)

    def learns(self, path: str) -> bool:
        """Whether the weight called `path` has a gradient."""
        return not self.sizes.frozen or any(path.startswith(name) for name in self.learning)


def weights(recipe: Recipe) -> tuple[Weight, ...]:
    """Every weight tensor of the model as it is stored, adapters behind the layers they correct."""
    sizes = recipe.sizes
    found: list[Weight] = []
    for owned in named_parameters(recipe.model):
        parameter, path = owned.parameter, owned.parameter.path
        learns = recipe.learns(path) and parameter.trainable
        in_layer = ".layers." in owned.owner
        width = (sizes.norm_weights if parameter.kind == "norm" else None) or sizes.numerics.weight
        weight = Weight(owned.owner, path, parameter.shape, owned.repeats, width, learns, source=WEIGHTS_SOURCE)
        if not learns and sizes.packs(path) and _packed(parameter, sizes, in_layer=in_layer):
            found += _quantised(weight, sizes.stored)
        elif learns and sizes.frozen and recipe.copies_learning:
            # PEFT's modules_to_save trains a copy and keeps the original
            found += [weight._replace(learns=False), weight._replace(path=f"{path}.trained copy")]
        else:
            found.append(weight)
        if sizes.adapter is not None and in_layer and path in sizes.adapter.targets:
            found += _corrections(weight, sizes.adapter)
    if recipe.virtual_elements:
        found.append(Weight("adapter", "virtual tokens", (recipe.virtual_elements,), source="peft src/peft/tuners"))
    return tuple(found)


def _packed(parameter: Parameter, sizes: Sizes, *, in_layer: bool) -> bool:
    """Whether the format is one for this weight: bitsandbytes takes all linear layers, a checkpoint the inner ones."""
    if sizes.stored in IN_MEMORY:
        return bitsandbytes_converts(parameter, sizes.left_whole)
    return in_layer and is_linear(parameter)


def _quantised(weight: Weight, stored: str) -> list[Weight]:
    parts = QUANTISED[stored].stored_bytes(weight.elements)
    return [weight._replace(path=f"{weight.path}.{name}", shape=(size,), width=1) for name, size in parts]


def _corrections(weight: Weight, adapter: Adapter) -> list[Weight]:
    rows, columns = weight.shape[-2:]
    return [
        Weight(
            weight.owner, f"{weight.path}.{adapter.method}.{name}", shape, weight.repeats, width, learns,
            source=f"peft src/peft/tuners, {adapter.method}",
        )
        for name, shape, width, learns in ADAPTERS[adapter.method].weights(rows, columns, adapter)
    ]


def elements(found: tuple[Weight, ...], *, learning_only: bool = False) -> int:
    """Sum of elements."""
    return sum(weight.elements * weight.repeats for weight in found if weight.learns or not learning_only)
