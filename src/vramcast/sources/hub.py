"""Configs and headers of models on Hugging Face and ModelScope, without their weights.

`HF_ENDPOINT` names a mirror, `HF_TOKEN` opens gated models, `HF_HUB_OFFLINE` forbids the network. The local cache of
huggingface_hub is looked at first, then this package's own, which keeps configs and headers for a month.
"""

from __future__ import annotations

import json
import os
import re
import time
import urllib.parse
from pathlib import Path
from typing import Final

import msgspec

from vramcast.domain.model import Checkpoint, Noun, StoredWeights
from vramcast.errors import Note, SourceError, text_of
from vramcast.sources.by_name import ByName, by_name, network_of_mixed
from vramcast.sources.fetch import Refused, read_url
from vramcast.sources.files import write_whole
from vramcast.sources.resolve import LARGEST_CONFIG, model_from_json, read_bounded
from vramcast.sources.weights import (
    INDEX,
    LARGEST_HEADER,
    LENGTH_BYTES,
    SINGLE,
    compared,
    header_length,
    joined,
    noted,
    parse_header,
    parse_index,
    read_directory,
)

HUGGING_FACE: Final = "https://huggingface.co"
MODELSCOPE: Final = "https://www.modelscope.cn"
LARGEST_INDEX: Final = 64 << 20
FIRST_READ: Final = 128 << 10
"""One request gets most headers whole; only longer ones need a second [bytes]."""

MOST_HEADER_REQUESTS: Final = 64
"""Shards whose headers are fetched; beyond that the index's stated size has to do."""

KEPT_SECONDS: Final = 30 * 24 * 3600.0
LARGEST_KEPT: Final = 64 << 20


class _Unreachable(SourceError):
    """Nobody could be asked about a repository."""

    def __init__(self, repository: Repository, why: str, instead: str) -> None:
        super().__init__("{}: {}; {}", repository.name, why, instead)
        self.why = why


class Repository(Noun, frozen=True):
    """One revision of one model on one hub."""

    name: str
    endpoint: str
    revision: str
    modelscope: bool = False
    token: str = ""

    @property
    def host(self) -> str:
        """What messages call the hub."""
        return urllib.parse.urlsplit(self.endpoint).netloc

    def url(self, path: str) -> str:
        """Address of one of its files."""
        models = "models/" if self.modelscope else ""
        revision = urllib.parse.quote(self.revision, safe="")
        return f"{self.endpoint}/{models}{self.name}/resolve/{revision}/{urllib.parse.quote(path)}"

    def read(self, path: str, *, most: int, first: int | None = None) -> bytes:
        """A file, or a part of it."""
        return read_url(self.url(path), most=most, token=self.token, first=first)


class _Kept(msgspec.Struct):
    """What the own cache holds of a repository."""

    config: bytes
    weights: StoredWeights | None


def checkpoint_from_hub(text: str) -> Checkpoint:
    """The model and headers of a hub id: `Qwen/Qwen3-8B`, `Qwen/Qwen3-8B@main`, `modelscope:Qwen/Qwen3-8B`.

    Raises: SourceError of one sentence when the hub cannot be reached, refuses, or answers with nonsense
    """
    repository = repository_of(text)
    if not repository.modelscope:
        folder = hub_cache_folder(repository)
        if folder is not None:
            return _from_snapshot(repository, folder)
    kept = _read_kept(repository)
    if kept is not None:
        return compared(model_from_json(kept.config, name=repository.name), kept.weights)
    try:
        _refuse_offline(repository)
        return _download(repository)
    except _Unreachable as unreachable:
        return _named(repository, unreachable).checkpoint(repository.name, unreachable.why)


def config_from_hub(text: str) -> bytes:
    """The config.json of a hub id as it stands there, from a cache where one holds it.

    Raises: SourceError of one sentence when the hub cannot be reached or refuses
    """
    repository = repository_of(text)
    folder = None if repository.modelscope else hub_cache_folder(repository)
    if folder is not None:
        return read_bounded(folder / "config.json")
    kept = _read_kept(repository)
    if kept is not None:
        return kept.config
    try:
        _refuse_offline(repository)
        return _config(repository)
    except _Unreachable as unreachable:
        return json.dumps(_named(repository, unreachable).config).encode()


def _named(repository: Repository, unreachable: _Unreachable) -> ByName:
    """What the name of a repository says, where nobody could be asked."""
    found = by_name(repository.name)
    if found is None:
        network = network_of_mixed(repository.name)
        if network:
            raise SourceError(
                "{}, or {} with --weights: the name does not say how each layer is stored", unreachable, network
            ) from None
        raise SourceError("{}", unreachable) from None
    return found


def _refuse_offline(repository: Repository) -> None:
    if os.environ.get("HF_HUB_OFFLINE", "").lower() in ("1", "true", "yes", "on"):
        raise _Unreachable(repository, "HF_HUB_OFFLINE is set and no cache holds it", "give a path to config.json")


def _config(repository: Repository) -> bytes:
    try:
        return repository.read("config.json", most=LARGEST_CONFIG)
    except Refused as refused:
        raise _explained(repository, refused.status) from None
    except SourceError as error:
        raise _Unreachable(repository, str(error), "download its config.json and give the path") from None


def repository_of(text: str) -> Repository:
    """Hub, name and revision of a hub id."""
    scheme, _, rest = text.rpartition(":")
    name, _, revision = rest.partition("@")
    modelscope = scheme == "modelscope"
    variable, default = ("MODELSCOPE_ENDPOINT", MODELSCOPE) if modelscope else ("HF_ENDPOINT", HUGGING_FACE)
    endpoint = (os.environ.get(variable) or default).rstrip("/")
    if urllib.parse.urlsplit(endpoint).scheme not in ("http", "https"):
        raise SourceError("{}={!r} must begin with https:// or http://", variable, endpoint[:80])
    token = "" if modelscope else os.environ.get("HF_TOKEN", "").strip()
    if token and not re.fullmatch(r"[!-~]{1,512}", token):
        raise SourceError("HF_TOKEN holds characters no token has; copy it anew")
    revision = revision or ("master" if modelscope else "main")
    return Repository(name=name, endpoint=endpoint, revision=revision, modelscope=modelscope, token=token)


def _download(repository: Repository) -> Checkpoint:
    config = _config(repository)
    model = model_from_json(config, name=repository.name)
    try:
        weights = read_weights(repository)
    except SourceError as error:
        return Checkpoint(model=noted(model, (Note("headers of the weights were not read: {}", error),)))
    _keep(repository, _Kept(config=config, weights=weights))
    return compared(model, weights)


def _from_snapshot(repository: Repository, folder: Path) -> Checkpoint:
    model = model_from_json(read_bounded(folder / "config.json"), name=repository.name)
    try:
        return compared(model, read_directory(folder))
    except SourceError as error:
        return Checkpoint(model=noted(model, (Note("headers of the weights were not read: {}", error),)))


def _explained(repository: Repository, status: int) -> SourceError:
    """What to do about an error status."""
    name, host = repository.name, repository.host
    if status in (401, 403):
        if repository.token:
            return SourceError(
                "{}: {} refuses the token given; accept the model's terms there or correct it", name, host
            )
        return SourceError("{}: {} wants a token for it (or it does not exist); set HF_TOKEN", name, host)
    if status == 404:
        return SourceError(
            "{}: {} has no such model with a config.json at revision {}; for a GGUF repository download the file and "
            "give its path", name, host, repository.revision
        )
    return SourceError(
        "{}: {} answered with status {}; try again later, or give a path to config.json", name, host, status
    )


def read_weights(repository: Repository) -> StoredWeights | None:
    """Tensors of the checkpoint from its headers; None where it has no safetensors.

    Raises: SourceError naming the file whose header cannot be used
    """
    index = _optional(repository, INDEX)
    if index is None:
        try:
            return _header(repository, SINGLE)
        except Refused as refused:
            if refused.status == 404:
                return None
            raise
    shards, size = parse_index(index, file=INDEX)
    if len(shards) > MOST_HEADER_REQUESTS:
        return StoredWeights(listed_bytes=size)
    return joined(_header(repository, shard) for shard in shards)


def _optional(repository: Repository, path: str) -> bytes | None:
    try:
        return repository.read(path, most=LARGEST_INDEX)
    except Refused as refused:
        if refused.status == 404:
            return None
        raise


def _header(repository: Repository, path: str) -> StoredWeights:
    """The header of a safetensors file, by one or two range requests."""
    file = f"{repository.name}/{path}"
    start = repository.read(path, most=FIRST_READ, first=0)
    length = header_length(start, file=file)
    missing = LENGTH_BYTES + length - len(start)
    if missing > 0:
        if len(start) + missing > LENGTH_BYTES + LARGEST_HEADER:
            raise SourceError("{}: a header of {} bytes is refused", file, length)
        start += repository.read(path, most=missing, first=len(start))
    return parse_header(start[LENGTH_BYTES : LENGTH_BYTES + length], file=file)


def hub_cache_folder(repository: Repository) -> Path | None:
    """The snapshot in the cache of huggingface_hub: models--org--name/snapshots/COMMIT, where it has a config.json."""
    home = os.environ.get("HF_HOME") or str(Path.home() / ".cache" / "huggingface")
    cache = Path(os.environ.get("HF_HUB_CACHE") or str(Path(home) / "hub"))
    folder = cache / f"models--{repository.name.replace('/', '--')}"
    try:
        reference = folder / "refs" / repository.revision
        commit = reference.read_text(encoding="utf-8").strip()[:80] if reference.is_file() else repository.revision
        snapshot = folder / "snapshots" / Path(commit).name
        return snapshot if (snapshot / "config.json").is_file() else None
    except (OSError, UnicodeDecodeError):
        return None


def kept_path(repository: Repository) -> Path:
    """Where the own cache keeps a repository: $XDG_CACHE_HOME/vramcast/hub/HOST/ORG--NAME@REVISION.msgpack."""
    home = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    host = re.sub(r"[^\w.-]", "_", repository.host)
    name = re.sub(r"[^\w.@-]", "_", f"{repository.name.replace('/', '--')}@{repository.revision}")
    return Path(home) / "vramcast" / "hub" / host / f"{name}.msgpack"


def _read_kept(repository: Repository) -> _Kept | None:
    """The own cache's entry, unless it is old or unusable."""
    path = kept_path(repository)
    try:
        facts = path.stat()
        if time.time() - facts.st_mtime > KEPT_SECONDS or facts.st_size > LARGEST_KEPT:
            return None
        return msgspec.msgpack.decode(path.read_bytes(), type=_Kept)
    except (OSError, msgspec.DecodeError, RecursionError):
        return None


def _keep(repository: Repository, kept: _Kept) -> None:
    """Writes the own cache's entry whole or not at all; a read-only home costs nothing."""
    path = kept_path(repository)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, msgspec.msgpack.encode(kept, enc_hook=text_of))
    except (OSError, SourceError):
        return
