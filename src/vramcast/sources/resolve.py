"""MODEL as users write it: a catalogue name, a path, or a hub id."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any, Final

import msgspec

from vramcast import sources
from vramcast.catalogue.index import MODELS, PIPELINES
from vramcast.catalogue.models import load_model, read_entry
from vramcast.domain.model import Checkpoint, Model
from vramcast.errors import Note, SourceError, UnknownName, Unsupported
from vramcast.families import model_from_config
from vramcast.lazy import lazy_pattern

HUB_ID: Final = lazy_pattern(
    r"(?:(?:hf|huggingface|modelscope):)?[A-Za-z0-9][\w.-]{0,95}/[A-Za-z0-9][\w.-]{0,95}(?:@[\w.-]{1,95})?", re.ASCII
)
PAGES: Final = {
    "https://huggingface.co/": "",
    "https://hf-mirror.com/": "",
    "https://www.modelscope.cn/models/": "modelscope:",
    "https://modelscope.cn/models/": "modelscope:",
}
"""Web pages of models, as pasted -> prefix of the hub id."""

FACTORY: Final = lazy_pattern(r"(?:timm|[A-Za-z_]\w*(?:\.\w+)+):[A-Za-z_]\w*")
"""What makes a module, as `vramcast trace` takes it: torchvision.models:resnet50."""

LARGEST_CONFIG: Final = 4 << 20
"""A config.json is a few KiB; more is refused [bytes]."""


def resolve_model(text: str) -> Model:
    """The model a text means; what its headers say beside, see `resolve_checkpoint`."""
    return resolve_checkpoint(text).model


def resolve_checkpoint(text: str) -> Checkpoint:
    """The model a text means: catalogue name first, then a path that exists, then a hub id.

    Raises: UnknownName with the nearest catalogue names, SourceError for unusable files and hubs
    """
    if not text or len(text) > 4096 or "\0" in text:
        raise UnknownName("an empty or endless model name")
    text = _hub_id_of_page(text)
    try:
        return Checkpoint(model=load_model(text))
    except UnknownName as unknown:
        if os.path.exists(text):  # noqa: PTH110  # a name longer than a path may be is none
            return _from_path(text)
        if HUB_ID.fullmatch(text):
            return sources.hub.checkpoint_from_hub(text)
        # files and commands come from the machine that runs them, where the folder of a model has the model's name
        is_path = os.sep in text or "\\" in text
        folder = folder_name(text)
        named = sources.by_name.by_name(folder) or sources.by_name.by_name(sources.by_name.as_repository(folder))
        if named is not None:
            return named.checkpoint(folder, Note("{} is not on this machine", text[:200]) if is_path else "")
        if is_path or text.endswith((".json", ".gguf", ".safetensors")):
            raise SourceError(
                "{}: no such file or directory, and {} is no name of the catalogue; name the model that it is a copy "
                "of, or its config.json", text[:200], folder[:80]
            ) from None
        if FACTORY.fullmatch(text):
            raise Unsupported(
                "{} is code, of which no catalogue knows the layers; vramcast trace {} follows it", text[:80], text[:80]
            ) from None
        if text.strip().lower() in PIPELINES.aliases:
            raise Unsupported(
                "{} is a diffusion pipeline, and asked for as a language model; vramcast serve {} says what "
                "generating takes", text[:80], text[:80]
            ) from None
        if "did you mean" not in str(unknown):
            raise UnknownName("{}; a network that is code is traced: vramcast trace MODULE:FUNCTION", unknown) from None
        raise unknown from None


def folder_name(path: str) -> str:
    """What the last part of a path calls a model, in the cache of a hub too.

    >>> folder_name("../models/Qwen3-8B/"), folder_name("/hub/models--meta-llama--Llama-3.1-8B/snapshots/0e9e39f2")
    ('Qwen3-8B', 'Llama-3.1-8B')
    """
    parts = [part for part in re.split(r"[/\\]", path) if part not in ("", ".", "..")]
    cached = next((part for part in parts if part.startswith("models--")), None)
    return cached.rpartition("--")[2] if cached else parts[-1] if parts else path


def _hub_id_of_page(text: str) -> str:
    """The hub id of a model's web page; any other text as it is."""
    for page, scheme in PAGES.items():
        if text.startswith(page):
            return scheme + "/".join(text.removeprefix(page).split("?")[0].split("#")[0].split("/")[:2])
    return text


def _from_path(text: str) -> Checkpoint:
    path = Path(text)
    if path.is_dir():
        return _from_directory(path)
    if path.suffix == ".gguf":
        return _from_gguf(path)
    if path.suffix == ".safetensors" or path.name.endswith(".safetensors.index.json"):
        return _from_directory(path.parent, missing=path.name)
    if path.suffix == ".json":
        return _with_weights(model_from_json(read_bounded(path), name=path.parent.name or path.stem), path.parent)
    raise SourceError("{}: give a config.json, a directory, a .safetensors or a .gguf file", path)


def _from_directory(folder: Path, missing: str = "") -> Checkpoint:
    config = folder / "config.json"
    if config.is_file():
        return _with_weights(model_from_json(read_bounded(config), name=folder.resolve().name), folder)
    gguf = sorted(folder.glob("*.gguf"))
    if gguf and not missing:
        return _from_gguf(gguf[0])
    if missing:
        raise SourceError(
            "{}: no config.json beside {}, and weights alone do not tell the architecture", folder, missing
        )
    raise SourceError("{}: no config.json in it, and weights alone do not tell the architecture", folder)


def _from_gguf(path: Path) -> Checkpoint:
    header = sources.gguf.read_file(path)
    model = model_from_config(sources.gguf.config_of(header, name=path.name), name=path.stem)
    return sources.weights.compared(model, header.weights)


def _with_weights(model: Model, folder: Path) -> Checkpoint:
    """The model with its headers, and a note where the checkpoint beside its config disagrees."""
    return sources.weights.compared(model, sources.weights.read_directory(folder))


def read_bounded(path: Path) -> bytes:
    """A config file, refused when it is larger than any config is."""
    try:
        with path.open("rb") as file:
            text = file.read(LARGEST_CONFIG + 1)
    except OSError as error:
        raise SourceError("{}: cannot be read ({})", path, error.strerror) from error
    if len(text) > LARGEST_CONFIG:
        raise SourceError("{}: a config of more than {} bytes is refused", path, LARGEST_CONFIG)
    return text


def model_from_json(text: bytes, *, name: str) -> Model:
    """The model of a config.json's text."""
    return model_from_config(decoded(text, name=name), name=name)


def decoded(data: bytes, *, name: str) -> dict[str, Any]:
    """The object of a config.json's text.

    Raises: SourceError of one sentence
    """
    try:
        found = msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise SourceError("{}: config.json is not JSON ({})", name, str(error)[:120]) from None
    if not isinstance(found, dict):
        raise SourceError("{}: config.json holds no object", name)
    return found


def config_of(text: str) -> dict[str, Any]:
    """The config.json behind a name, a path or a hub id, as its library reads it.

    Raises: UnknownName with the nearest catalogue names, SourceError for unusable files and hubs
    """
    try:
        return dict(read_entry(MODELS.resolve(text)).config)
    except UnknownName:
        if os.path.exists(text):  # noqa: PTH110  # a name longer than a path may be is none
            return read_config(text)
        if HUB_ID.fullmatch(text):
            return decoded(sources.hub.config_from_hub(text), name=text)
        raise


def read_config(text: str) -> dict[str, Any]:
    """A config.json, or that of a folder.

    Raises: SourceError of one sentence
    """
    path = Path(text)
    return decoded(read_bounded(path / "config.json" if path.is_dir() else path), name=text)
