"""Configuration files of other tools, as a question names them."""

from __future__ import annotations

from pathlib import Path
from typing import Final, NamedTuple


class Configs(NamedTuple):
    """Files that a search starts from."""

    paths: tuple[str | Path, ...] = ()
    format_name: str | None = None  # None: recognised


NO_CONFIGS: Final = Configs()
