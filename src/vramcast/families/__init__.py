"""A Hugging Face `config.json`, or one of its dialects, as a Model."""

from vramcast.families.table import FAMILIES, model_from_config

__all__ = ["FAMILIES", "model_from_config"]

from typing import TYPE_CHECKING

from vramcast.lazy import submodules

if TYPE_CHECKING:
    from vramcast.families import module_names as module_names

__getattr__ = submodules(__name__)
