"""Weights as modules register them: one tensor each, scales and zeros beside them.

[bnb] transformers integrations/bitsandbytes.py `replace_with_bnb_linear`: every nn.Linear but the head, which experts
stacked in one parameter are not.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final, NamedTuple

from msgspec.structs import replace

from vramcast.blocks.parameters import named_parameters
from vramcast.domain.checkpoint import StoredWeights
from vramcast.domain.model import Model
from vramcast.domain.program import Category, Tensor
from vramcast.domain.serving import Version
from vramcast.engines.serving.stages import Stage
from vramcast.engines.serving.weights import CHECKPOINT_FORMATS, Formats, on_stage, stage_of
from vramcast.engines.transformers.versions import left_whole
from vramcast.states.storage import BITSANDBYTES, format_of
from vramcast.units import ceil_div

if TYPE_CHECKING:
    from vramcast.engines.serving.headers import Part

SOURCE: Final = "the model's modules in transformers models/*/modeling_*.py"


class Owned(NamedTuple):
    """One tensor, how often it is there, and the module it belongs to."""

    tensor: Tensor
    repeats: int


def formats_of(model: Model, *, weights: str | None, dtype: str | None, version: Version) -> Formats:
    """The formats a question names, else the checkpoint's own: nothing is converted on loading."""
    left = left_whole(model.family, version)
    whole = dtype or (model.dtype if model.dtype in ("bf16", "fp16", "fp32") else "bf16")
    if weights is not None:
        return Formats(weights, whole, left_whole=left)
    if model.quantisation is None:
        return Formats(whole, whole)
    return Formats(CHECKPOINT_FORMATS.get(model.quantisation, model.quantisation), whole, left_whole=left)


def weights(
    model: Model, formats: Formats, stage: Stage, *, stored: StoredWeights | None = None
) -> Iterator[Owned]:
    """The weights of one GPU, in the order of its modules; as large as the checkpoint's headers say, where there are
    any."""
    found = _by_format(model, formats, stage)
    if stored is None:
        yield from found
        return
    from vramcast.engines.serving.headers import factors, part_of_owner

    def part(owned: Owned) -> Part:
        return part_of_owner(owned.tensor.owner, owned.tensor.name, model)

    everything = _by_format(model, formats, Stage(0, model.num_layers, first=True, last=True))
    scale = factors(model, stored, ((part(owned), owned.tensor.num_bytes * owned.repeats) for owned in everything))
    for owned in found:
        top, bottom = scale.get(part(owned), (1, 1))
        tensor = replace(
            owned.tensor, num_bytes=ceil_div(owned.tensor.num_bytes * top, bottom),
            formula=f"{owned.tensor.formula}, as its header says",
        )
        yield owned._replace(tensor=tensor)


def _by_format(model: Model, formats: Formats, stage: Stage) -> Iterator[Owned]:
    for owner, parameter, repeats in named_parameters(stage_of(model, stage)):
        if not on_stage(owner, model, stage):
            continue
        tower = any(owner.startswith(stack.name) for stack in model.stacks[:-1] if stack.vision is not None)
        # GPTQ, AWQ and FP8 checkpoints quantise the language model's layers only
        stored = formats.whole if tower and formats.quantised not in BITSANDBYTES else formats.of(parameter)
        sizes = " x ".join(f"{size:,}" for size in parameter.shape)
        for name, num_bytes in format_of(stored).parts(parameter.shape):
            path = f"{parameter.path}.{name}" if name else parameter.path
            tensor = Tensor(
                name=path, num_bytes=num_bytes, category=Category.WEIGHTS, owner=owner, formula=f"{sizes} in {stored}",
                source=SOURCE,
            )
            yield Owned(tensor, repeats)
