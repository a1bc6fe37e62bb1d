"""Which parts of a network do not learn, in the words of trainers, as names of parts.

[LF] hiyouga/LLaMA-Factory src/llamafactory/model/model_utils/visual.py: a language model's head is frozen with it
[HF] transformers examples/pytorch/contrastive-image-text/run_clip.py `_freeze_params`: projections learn all the same
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from msgspec.structs import replace

from vramcast.blocks.parameters.model import named_parameters
from vramcast.blocks.parameters.targets import Place, has, paths_within, places_of, word_of
from vramcast.domain.job import Peft
from vramcast.domain.model import Head, Model
from vramcast.engines import eager
from vramcast.errors import InvalidSpec, Note, UnknownName

PROJECTOR, EMBEDDING, HEAD, BACKBONE = "projector", "embedding", "head", "backbone"
TOWERS, PROJECTORS = "towers", "projectors"

WORDS: Final[dict[str, str]] = {
    **dict.fromkeys(("vision_tower", "vision_model", "vision_encoder", "visual", "vit", "image_encoder"), "vision"),
    **dict.fromkeys(("multi_modal_projector", "mm_projector", "aligner", "merger", "connector"), PROJECTOR),
    **dict.fromkeys(("language_model", "llm", "text_model", "lm"), "main"),
    **dict.fromkeys(("feature_encoder", "audio_tower", "audio_encoder"), "encoder"),
    **dict.fromkeys(("base_model", "body", "feature_extractor"), BACKBONE),
    **dict.fromkeys(("classifier", "lm_head", "score"), HEAD), "embed_tokens": EMBEDDING,
}
"""Words of trainers and of model code -> ours; "main" is the stack that reads the tokens."""


def frozen_parts(model: Model, words: Iterable[str]) -> tuple[str, ...]:
    """The parts that words mean: stacks with what goes with them, "projector", "embedding", "head".

    Raises: UnknownName for a word that names no part of the model, InvalidSpec where nothing would learn
    """
    stacks, found = [stack.name for stack in model.stacks], dict[str, None]()
    every = list(dict.fromkeys(eager.recipe.part_of(owned.owner, owned.parameter.path)
                               for owned in named_parameters(model)))
    writes = model.head in (Head.LM, Head.MLM)
    towers = [stack.name for stack in model.stacks[:-1] if stack.vision is not None]
    for word in words:
        if word in (TOWERS, PROJECTORS):  # what a trainer freezes of any network, if it is there
            found |= dict.fromkeys(part for part in every if part in (towers if word == TOWERS else (PROJECTOR,)))
            continue
        name = WORDS.get(word.lower().replace("-", "_").rpartition(".")[2], word.lower().replace("-", "_"))
        name = model.main.name if name == "main" else name
        if name == BACKBONE:
            found |= dict.fromkeys(part for part in every if part != HEAD)
        elif name not in every:
            raise UnknownName.of(Note("part of {}", model.name), word, (*every, BACKBONE))
        elif name == model.main.name:
            found |= dict.fromkeys((name, *(part for part in (EMBEDDING, HEAD) if part in every and (
                part == EMBEDDING or writes))))
        else:
            found[name] = None
    if stacks and set(every) <= set(found):
        raise InvalidSpec("freeze={} leaves nothing of {} that learns; leave a part out", ",".join(found), model.name)
    return tuple(part for part in every if part in found)


def adapted_elsewhere(model: Model, peft: Peft, frozen: Iterable[str]) -> Peft:
    """The adapters outside of frozen parts: beside adapters all else is frozen anyway.

    Raises: InvalidSpec where none is left
    """
    without = set(frozen)
    kept: list[str] = []
    for place in places_of(model, peft.targets):
        kept += map(word_of, _outside(model, place, without))
    if not kept:
        raise InvalidSpec(
            "freeze={} leaves no weight that --peft {} adapts; leave a part out", ",".join(without), peft.method
        )
    return replace(peft, targets=tuple(dict.fromkeys(kept)))


def _outside(model: Model, place: Place, without: set[str]) -> Iterable[Place]:
    if place.stack:
        return () if eager.recipe.part_of(place.stack, place.path) in without else (place,)
    there = [stack.name for stack in model.stacks if has(tuple(paths_within(stack)), place.path)]
    if not there or without.isdisjoint(there):
        return (place,)
    return tuple(place._replace(stack=name) for name in there if name not in without)
