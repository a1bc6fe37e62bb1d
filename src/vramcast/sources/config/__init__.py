"""A Hugging Face `config.json`, or one of its dialects, as a Model."""

from vramcast.sources.config.families import FAMILIES, model_from_config

__all__ = ["FAMILIES", "model_from_config"]
