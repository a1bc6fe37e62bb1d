"""A Hugging Face `config.json`, or one of its dialects, as a Model."""

from vramcast.families.table import FAMILIES, model_from_config

__all__ = ["FAMILIES", "model_from_config"]
