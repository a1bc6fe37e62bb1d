"""Configuration files of other tools, as a question names them."""

from __future__ import annotations

from pathlib import Path
from typing import Final, NamedTuple


class Configs(NamedTuple):
    """Files that a search starts from."""

    paths: tuple[str | Path, ...] = ()
    format_name: str | None = None  # None: recognised


NO_CONFIGS: Final = Configs()

SCRIPTS: Final = (".sh", ".bash")
"""Ends of names of files whose arguments may describe a network."""


def is_script(text: str) -> bool:
    """Whether a text is the path of a launch script."""
    path = Path(text)
    return path.suffix in SCRIPTS and path.is_file()
