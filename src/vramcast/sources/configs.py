"""The config of a model as its library reads it: from the catalogue, a file, a folder or a hub."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from vramcast.errors import SourceError, UnknownName
from vramcast.sources.resolve import HUB_ID, read_bounded


def config_of(text: str) -> dict[str, Any]:
    """The config.json behind a name, a path or a hub id.

    Raises: UnknownName with the nearest catalogue names, SourceError for unusable files and hubs
    """
    from vramcast.catalogue.models import read_entry, resolve_name

    try:
        return dict(read_entry(resolve_name(text)).config)
    except UnknownName:
        if Path(text).exists():
            return read_config(text)
        if HUB_ID.fullmatch(text):
            from vramcast.sources.hub import config_from_hub

            return decoded(config_from_hub(text), name=text)
        raise


def read_config(text: str) -> dict[str, Any]:
    """A config.json, or that of a folder.

    Raises: SourceError of one sentence
    """
    path = Path(text)
    return decoded(read_bounded(path / "config.json" if path.is_dir() else path), name=text)


def decoded(data: bytes, *, name: str) -> dict[str, Any]:
    """The object of a JSON text.

    Raises: SourceError of one sentence
    """
    try:
        found = msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise SourceError(f"{name}: config.json is not JSON ({str(error)[:120]})") from None
    if not isinstance(found, dict):
        raise SourceError(f"{name}: config.json holds no object")
    return found
