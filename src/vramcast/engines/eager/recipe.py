"""A run's choices as eager engines need them: implementations, what learns, how states are kept."""

from __future__ import annotations

from typing import Final, NamedTuple

from msgspec.structs import replace

from vramcast.blocks.parameters import layer_parameters, named_parameters
from vramcast.blocks.parameters.targets import Place, parts_of, within, word_of, word_outside
from vramcast.blocks.projection import corrected
from vramcast.blocks.sizes import Sizes
from vramcast.domain.model import Head, Model, Parameter, Stack
from vramcast.operators.lora import ADAPTERS, Adapter
from vramcast.operators.quantised import QUANTISED
from vramcast.states.steps import Weight, kind_of
from vramcast.states.storage import BITSANDBYTES, bitsandbytes_converts, is_linear

IN_MEMORY: Final = BITSANDBYTES | {"int8"}
"""Storages that bitsandbytes makes of the network in memory; "int8" of a frozen base is its LLM.int8()."""

HEAD: Final = "head.output"

WEIGHTS_SOURCE: Final = "the model's configuration and its code in transformers"


class Tower(NamedTuple):
    """An encoder or vision tower beside the main stack."""

    stack: Stack
    sizes: Sizes


def scorer(model: Model) -> Model:
    """The model with one number a position in place of a vocabulary: reward models, and the critics of PPO.

    Source: [TRL] trl/trainer/reward_trainer.py and examples/scripts/ppo/ppo.py: `AutoModelForSequenceClassification`,
    num_labels=1; [transformers] modeling_layers.py `GenericForSequenceClassification`
    """
    return replace(model, head=Head.CLASSIFIER, num_labels=1, tied=False, head_bias=False)


class Recipe(NamedTuple):
    """One model's forward and backward on one rank."""

    model: Model
    sizes: Sizes
    towers: tuple[Tower, ...] = ()
    loss: str = "eager"  # key of the loss tables
    returns_fp32: bool = False  # forward makes the logits fp32 and forgets the narrow ones
    outputs_fp32: bool = False  # returned logits are converted to fp32 (Accelerate's mixed precision)
    kept_logits: int = 0  # bytes per logit that the loop's variables hold until backward has ended
    recompute: bool = False  # every layer keeps only its input
    reentrant: bool = True  # the checkpoint's recomputed output lives during its backward
    recompute_layers: int | None = None  # only that many layers
    learning: tuple[str, ...] = ()  # paths that learn although `sizes.frozen`: "embedding.tokens", "head.output"
    virtual_elements: int = 0  # trained prompts or prefixes
    copies_learning: bool = False  # they are trained in a copy (PEFT modules_to_save)
    adapted: tuple[Place, ...] = ()  # where adapters are

    def at(self, stack: Stack, sizes: Sizes, first: int, last: int) -> Sizes:
        """What some layers of a stack are like: their adapters among those of the model."""
        if sizes.adapter is None:
            return sizes
        return sizes._replace(adapter=sizes.adapter._replace(targets=within(self.adapted, stack.name, first, last)))

    def learns(self, path: str) -> bool:
        """Whether the weight called `path` has a gradient."""
        return not self.sizes.frozen or any(path.startswith(name) for name in self.learning)


def weights(recipe: Recipe) -> tuple[Weight, ...]:
    """Every weight tensor of the model as it is stored, adapters behind the layers they correct."""
    sizes = recipe.sizes
    found: list[Weight] = []
    behind = _adapters(recipe)
    for owned in named_parameters(recipe.model):
        parameter, path = owned.parameter, owned.parameter.path
        learns = recipe.learns(path) and parameter.trainable
        in_layer = ".layers." in owned.owner
        width = (sizes.norm_weights if parameter.kind == "norm" else None) or sizes.numerics.weight
        weight = Weight(
            owned.owner, path, parameter.shape, owned.repeats, width, learns, source=WEIGHTS_SOURCE,
            kind=kind_of(parameter),
        )
        if not learns and sizes.packs(path) and _packed(parameter, sizes, in_layer=in_layer):
            found += _quantised(weight, sizes.stored)
        elif learns and sizes.frozen and recipe.copies_learning:
            # PEFT's modules_to_save trains a copy and keeps the original
            found += [weight._replace(learns=False), weight._replace(path=f"{path}.trained copy")]
        else:
            found.append(weight)
        found += behind.pop((owned.owner, path), ())
    found += (weight for corrections in behind.values() for weight in corrections)
    if recipe.model.tied and HEAD in recipe.learning:
        shape = (recipe.model.vocab, recipe.model.hidden)
        found.append(Weight("head", f"{HEAD}.trained copy", shape, 1, sizes.numerics.weight, source=WEIGHTS_SOURCE))
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


def _adapters(recipe: Recipe) -> dict[tuple[str, str], list[Weight]]:
    """Corrections, by the owner and the path of the weight that they stand behind."""
    adapter, model = recipe.sizes.adapter, recipe.model
    if adapter is None:
        return {}
    found: dict[tuple[str, str], list[Weight]] = {}
    for stack in model.stacks:
        first = 0
        for run in stack.runs:
            last = first + run.count - 1
            owner = f"{stack.name}.layers.{first}" + (f"-{last}" if last > first else "")
            shapes = {owned.path: owned.shape for owned in layer_parameters(run.layer, hidden=stack.hidden)}
            here = recipe.at(stack, recipe.sizes, first, last)
            for path, used in corrected(here, run.layer, stack.hidden):
                parts = [shapes[part] for part in parts_of(path)]
                shape = (*parts[0][:-2], sum(part[-2] for part in parts), parts[0][-1])
                found[owner, parts_of(path)[-1]] = _corrections(Weight(owner, path, shape, run.count), used)
            first = last + 1
    words = set(map(word_of, recipe.adapted))
    for owned in named_parameters(model):
        if ".layers." not in owned.owner and word_outside(model, owned) in words:
            path = owned.parameter.path
            found[owned.owner, path] = _corrections(Weight(owned.owner, path, owned.parameter.shape), adapter)
    if model.tied and HEAD in words:
        found["head", HEAD] = _corrections(Weight("head", HEAD, (model.vocab, model.hidden)), adapter)
    return found


def _corrections(weight: Weight, adapter: Adapter) -> list[Weight]:
    *copies, rows, columns = weight.shape
    return [
        Weight(
            weight.owner, f"{weight.path}.{adapter.method}.{name}", (*copies, *shape), weight.repeats, width, learns,
            source=f"peft src/peft/tuners, {adapter.method}",
        )
        for name, shape, width, learns in ADAPTERS[adapter.method].weights(rows, columns, adapter)
    ]


def elements(found: tuple[Weight, ...], *, learning_only: bool = False) -> int:
    """Sum of elements."""
    return sum(weight.elements * weight.repeats for weight in found if weight.learns or not learning_only)
