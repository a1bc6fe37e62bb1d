"""A run's choices as eager engines need them: implementations, what learns, how states are kept."""

from __future__ import annotations

from typing import NamedTuple

from vramcast.blocks.parameters import named_parameters
from vramcast.blocks.sizes import Sizes
from vramcast.domain.model import Model
from vramcast.operators.lora import ADAPTERS
from vramcast.operators.quantised import QUANTISED


class Recipe(NamedTuple):
    """One model's forward and backward on one rank."""

    model: Model
    sizes: Sizes
    loss: str = "eager"  # key of the loss tables
    outputs_fp32: bool = False  # returned logits are converted to fp32 (Accelerate's mixed precision)
    recompute: bool = False  # every layer keeps only its input
    reentrant: bool = True  # the checkpoint's recomputed output lives during its backward
    recompute_layers: int | None = None  # only that many layers
    learning: tuple[str, ...] = ()  # paths that learn although `sizes.frozen`: "embedding.tokens", "head.output"
    learning_width: int | None = None  # bytes of those weights, when not numerics.weight
    expert_loop: bool = True

    def learns(self, path: str) -> bool:
        """Whether the weight called `path` has a gradient."""
        return not self.sizes.frozen or any(path.startswith(name) for name in self.learning)


class Weight(NamedTuple):
    """Equal weight tensors, and whether they learn."""

    owner: str
    path: str
    elements: int
    count: int
    width: int  # bytes of one element
    learns: bool
    copied: bool = False  # a trained copy beside the frozen original (PEFT modules_to_save)
    matrix: bool = True


def weights(recipe: Recipe) -> tuple[Weight, ...]:
    """Every weight tensor of the model as it is stored, adapters behind their layers."""
    sizes, found = recipe.sizes, []
    for owned in named_parameters(recipe.model):
        parameter, path = owned.parameter, owned.parameter.path
        learns = recipe.learns(path) and parameter.trainable
        matrix = len(parameter.shape) > 1
        in_layer = ".layers." in owned.owner
        quantised = sizes.stored in QUANTISED and in_layer and parameter.kind == "matrix" and not learns
        if quantised:
            found += _quantised(owned.owner, path, parameter.elements, owned.repeats, sizes.stored)
        else:
            found.append(
                Weight(owned.owner, path, parameter.elements, owned.repeats, sizes.numerics.weight, learns, matrix=matrix)
            )
        adapter = sizes.adapter
        if adapter is not None and in_layer and path in adapter.targets:
            rows, columns = parameter.shape[-2:]
            for index, elements in enumerate(ADAPTERS[adapter.method].elements(rows, columns, adapter)):
                name = f"{path}.{adapter.method}_{index}"
                found.append(Weight(owned.owner, name, elements, owned.repeats, adapter.width, learns=True))
    return tuple(found)


def _quantised(owner: str, path: str, elements: int, count: int, stored: str) -> list[Weight]:
    parts = QUANTISED[stored].stored_bytes(elements)
    return [Weight(owner, f"{path}.{name}", size, count, 1, learns=False) for name, size in parts]


def elements(found: tuple[Weight, ...], *, learning_only: bool = False) -> int:
    """Sum of elements."""
    return sum(weight.elements * weight.count for weight in found if weight.learns or not learning_only)
