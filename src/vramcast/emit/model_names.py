"""What other tools call a model."""

from __future__ import annotations

import re
from typing import Final

from vramcast.catalogue.models import known_names, read_entry
from vramcast.domain.model import Model
from vramcast.emit.files import PLACEHOLDER

HUB: Final = re.compile(r"https://(?:huggingface\.co|modelscope\.cn/models)/([\w.-]+/[\w.-]+)")

def hub_id(model: Model) -> str:
    """What a hub calls the model; only the user knows where a model of numbers or of a local file lies."""
    name = model.name.split(" cut to ")[0]
    own = known_names().get(name.lower())
    if own is None:
        return name if re.fullmatch(r"[\w.-]+/[\w.-]+", name) else PLACEHOLDER
    entry = read_entry(own)
    match = HUB.match(entry.source)
    if match is not None:
        return match[1]
    return next((alias for alias in entry.aliases if alias.count("/") == 1), PLACEHOLDER)


def is_cut(model: Model) -> bool:
    """Whether the question took only some of the model's layers."""
    return " cut to " in model.name
