"""Every family there is a builder for, in one table."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from vramcast.domain.model import Model
from vramcast.errors import InvalidSpec, UnknownName
from vramcast.sources.config.architectures import ARCHITECTURES
from vramcast.sources.config.deepseek import LATENT
from vramcast.sources.config.defaults import DEFAULTS
from vramcast.sources.config.dialects import hugging_face_names
from vramcast.sources.config.encoders import ENCODERS
from vramcast.sources.config.fields import Fields, shown
from vramcast.sources.config.gpt import GPT
from vramcast.sources.config.hybrids import HYBRIDS
from vramcast.sources.config.llama import DENSE
from vramcast.sources.config.moe import SPARSE
from vramcast.sources.config.seq2seq import SEQ2SEQ
from vramcast.sources.config.sparse_attention import SPARSE_ATTENTION
from vramcast.sources.config.vision import VISION
from vramcast.sources.config.vision_language import VISION_LANGUAGE

FAMILIES: Final[dict[str, Callable[[Fields], Model]]] = {
    **DENSE,
    **SPARSE,
    **LATENT,
    **HYBRIDS,
    **SPARSE_ATTENTION,
    **GPT,
    **ENCODERS,
    **SEQ2SEQ,
    **VISION,
    **VISION_LANGUAGE,
}
"""`model_type` -> builder."""


def family_of(fields: Fields) -> str:
    """The config's `model_type`; without one, what its architecture says."""
    given = fields.get("model_type")
    if isinstance(given, str) and given:
        return given
    if given is not None and not isinstance(given, str):
        raise fields.wrong("model_type", "must be a text")
    for architecture in fields.words("architectures"):
        if architecture in ARCHITECTURES:
            return ARCHITECTURES[architecture]
        raise UnknownName.of("architecture", architecture, ARCHITECTURES)
    raise InvalidSpec(f"config of {fields.name} has neither model_type nor architectures")


def model_from_config(config: Mapping[str, object], *, name: str) -> Model:
    """The network a `config.json` describes.

    Leaves out weights that only a checkpoint knows: buffers it stores, quantised formats, adapters.

    Args:
        config: the parsed JSON, of Hugging Face or of a dialect in `dialects.py`
        name: how the model is called in messages and answers

    Raises: InvalidSpec for a value that cannot be, UnknownName for a family without a builder
    """
    if not isinstance(config, Mapping) or not all(isinstance(key, str) for key in config):
        raise InvalidSpec(f"config of {name} must be a table, not {shown(config)}")
    fields = Fields(hugging_face_names(config), name=name)
    family = family_of(fields)
    if family not in FAMILIES:
        raise UnknownName.of("model type", family, FAMILIES)
    return FAMILIES[family](fields.over({"model_type": family}).behind(DEFAULTS.get(family, {})))
