"""Configuration files of other tools, as a question names them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

from vramcast.errors import InvalidSpec


class Configs(NamedTuple):
    """Files that a question starts from."""

    paths: tuple[str | Path, ...] = ()
    format_name: str | None = None  # None: recognised
    ignore_unread: bool = False  # what is not understood is left out, and said, instead of refused


OPTIONS: Final = ("from", "from-format", "ignore-unread")
"""Options of a question that name them."""

SCRIPTS: Final = (".sh", ".bash")
"""Ends of names of files whose arguments may describe a network."""


def is_script(text: object) -> bool:
    """Whether a text is the path of a launch script."""
    path = Path(text) if isinstance(text, (str, Path)) else Path()
    return path.suffix in SCRIPTS and path.is_file()


def configs_in(options: Mapping[str, Any]) -> Configs:
    """The files that options name.

    Raises: InvalidSpec where an option says how files are read, and there are none
    """
    paths, ignored = options.get("from") or (), options.get("ignore-unread")
    if ignored is not None and not isinstance(ignored, bool):
        raise InvalidSpec(f"ignore-unread={ignored!r} must be true or false")
    found = Configs(
        (paths,) if isinstance(paths, (str, Path)) else tuple(paths), options.get("from-format"), bool(ignored)
    )
    if not found.paths and found.format_name is not None:
        raise InvalidSpec("--from-format says whose a file of --from is; give --from FILE")
    if not found.paths and found.ignore_unread and not is_script(options.get("model")):
        raise InvalidSpec("--ignore-unread says how a file of --from is read; give --from FILE")
    return found
