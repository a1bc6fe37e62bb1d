"""Names that ms-swift gave to models before it took ids of hubs."""

from __future__ import annotations

from functools import cache
from typing import Final

from vramcast.catalogue.formats import FOLDER

FILE: Final = FOLDER / "swift_models.toml"


@cache
def swift_models() -> dict[str, str]:
    """`model_type` -> the network's id.

    >>> swift_models()["qwen1half-7b-chat"]
    'Qwen/Qwen1.5-7B-Chat'
    """
    import tomllib

    found: dict[str, str] = tomllib.loads(FILE.read_text(encoding="utf-8"))["models"]
    return found
