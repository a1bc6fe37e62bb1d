"""Configs and headers of models on Hugging Face and ModelScope, without their weights.

`HF_ENDPOINT` names a mirror, `HF_TOKEN` opens gated models, the local hub cache is looked at first. Headers of
safetensors come by HTTP range requests. A token goes to the configured host only, never along a redirect elsewhere.
"""

from __future__ import annotations

import os
import urllib.error
import urllib.parse
import urllib.request
from http.client import HTTPException, HTTPMessage
from pathlib import Path
from typing import IO, Final

from vramcast.domain.model import Model
from vramcast.errors import SourceError
from vramcast.sources.resolve import LARGEST_CONFIG, model_from_json, noted, read_bounded
from vramcast.sources.safetensors import INDEX, LENGTH_BYTES, SINGLE, header_length, parse_header, parse_index
from vramcast.sources.weights import StoredWeights, comparison_notes, joined

HUGGING_FACE: Final = "https://huggingface.co"
MODELSCOPE: Final = "https://www.modelscope.cn"
SECONDS: Final = 15
MOST_REDIRECTS: Final = 5
MOST_HEADER_REQUESTS: Final = 64
"""Shards whose headers are fetched; beyond that the index's stated size has to do."""


def model_from_hub(text: str) -> Model:
    """The model of a hub id such as `Qwen/Qwen3-8B` or `modelscope:Qwen/Qwen3-8B`.

    Raises: SourceError of one sentence when the hub cannot be reached, refuses, or answers with nonsense
    """
    scheme, _, rest = text.partition(":") if ":" in text else ("", "", text)
    if scheme != "modelscope":
        cached = _cached_config(rest)
        if cached is not None:
            return model_from_json(read_bounded(cached), name=rest)
    fetch = _Repository(rest, modelscope=scheme == "modelscope")
    model = model_from_json(fetch.file("config.json", LARGEST_CONFIG), name=rest)
    try:
        weights = _weights(fetch)
    except SourceError as error:
        return noted(model, (f"headers of the weights were not read: {error}",))
    return model if weights is None else noted(model, comparison_notes(model, weights))


def _cached_config(name: str) -> Path | None:
    """config.json in the local hub cache (layout of huggingface_hub: models--org--name/snapshots/REVISION)."""
    home = os.environ.get("HF_HOME") or str(Path.home() / ".cache" / "huggingface")
    cache = Path(os.environ.get("HF_HUB_CACHE") or str(Path(home) / "hub"))
    folder = cache / f"models--{name.replace('/', '--')}"
    try:
        revision = (folder / "refs" / "main").read_text(encoding="utf-8").strip()[:80]
        path = folder / "snapshots" / Path(revision).name / "config.json"
        return path if path.is_file() else None
    except (OSError, UnicodeDecodeError):
        return None


def _weights(fetch: _Repository) -> StoredWeights | None:
    """Tensors of the checkpoint from its headers; None where it has no safetensors."""
    index = fetch.optional(INDEX, 64 << 20)
    if index is None:
        return fetch.header(SINGLE) if fetch.exists(SINGLE) else None
    shards, size = parse_index(index, file=INDEX)
    if len(shards) > MOST_HEADER_REQUESTS:
        return StoredWeights(listed_bytes=size)
    return joined(fetch.header(shard) for shard in shards)


class _SameHostToken(urllib.request.HTTPRedirectHandler):
    """Follows a few redirects, and drops the token where they leave the host."""

    max_redirections = MOST_REDIRECTS

    def redirect_request(
        self, req: urllib.request.Request, fp: IO[bytes], code: int, msg: str, headers: HTTPMessage, newurl: str
    ) -> urllib.request.Request | None:
        if urllib.parse.urlsplit(newurl).scheme not in ("http", "https"):
            raise SourceError(f"{req.host}: redirects to {newurl[:80]!r}, which is no web address")
        following = super().redirect_request(req, fp, code, msg, headers, newurl)
        if following is not None and urllib.parse.urlsplit(newurl).netloc != urllib.parse.urlsplit(req.full_url).netloc:
            following.headers.pop("Authorization", None)
            following.unredirected_hdrs.pop("Authorization", None)
        return following


class _Repository:
    """Files of one model on one hub."""

    def __init__(self, name: str, *, modelscope: bool) -> None:
        self.name = name
        if modelscope:
            endpoint = os.environ.get("MODELSCOPE_ENDPOINT") or MODELSCOPE
            self.pattern = f"{endpoint.rstrip('/')}/models/{name}/resolve/master/"
            self.token = ""
        else:
            endpoint = os.environ.get("HF_ENDPOINT") or HUGGING_FACE
            self.pattern = f"{endpoint.rstrip('/')}/{name}/resolve/main/"
            self.token = os.environ.get("HF_TOKEN", "")
        if urllib.parse.urlsplit(endpoint).scheme not in ("http", "https"):
            raise SourceError(f"HF_ENDPOINT={endpoint[:80]!r} must begin with https:// or http://")
        self.host = urllib.parse.urlsplit(endpoint).netloc
        self.opener = urllib.request.build_opener(_SameHostToken())

    def file(self, path: str, most: int) -> bytes:
        """A whole small file."""
        body = self._get(path, most)
        if len(body) > most:
            raise SourceError(f"{self.name}: {path} is larger than {most} bytes and was not read")
        return body

    def optional(self, path: str, most: int) -> bytes | None:
        """A small file, or None where the repository has none."""
        try:
            return self.file(path, most)
        except _Missing:
            return None

    def exists(self, path: str) -> bool:
        """Whether a file is there; asks for its first bytes."""
        try:
            self._get(path, LENGTH_BYTES, span=(0, LENGTH_BYTES - 1))
        except _Missing:
            return False
        return True

    def header(self, path: str) -> StoredWeights:
        """The header of a safetensors file, by two range requests."""
        file = f"{self.name}/{path}"
        length = header_length(self._get(path, LENGTH_BYTES, span=(0, LENGTH_BYTES - 1)), file=file)
        body = self._get(path, length, span=(LENGTH_BYTES, LENGTH_BYTES + length - 1))
        return parse_header(body, file=file)

    def _get(self, path: str, most: int, *, span: tuple[int, int] | None = None) -> bytes:
        """At most `most` + 1 bytes of a file, or exactly `most` of a span."""
        request = urllib.request.Request(self.pattern + urllib.parse.quote(path), headers={"User-Agent": "vramcast"})
        if self.token:
            request.add_unredirected_header("Authorization", f"Bearer {self.token}")
        if span is not None:
            request.add_header("Range", f"bytes={span[0]}-{span[1]}")
        try:
            with self.opener.open(request, timeout=SECONDS) as answer:
                if span is not None and answer.status != 206 and span[0]:
                    raise SourceError(f"{self.host}: does not serve parts of files, so headers cannot be read")
                return bytes(answer.read(most if span is not None else most + 1))
        except urllib.error.HTTPError as error:
            raise self._refusal(error.code, path) from None
        except (urllib.error.URLError, HTTPException, TimeoutError, OSError, ValueError) as error:
            reason = getattr(error, "reason", error)
            raise SourceError(
                f"{self.name}: {self.host} cannot be reached ({str(reason)[:100]}); "
                "download its config.json and give the path"
            ) from None

    def _refusal(self, code: int, path: str) -> SourceError:
        if code == 404 and path != "config.json":
            return _Missing(f"{self.name}: no {path}")
        if code in (401, 403):
            return SourceError(f"{self.name}: {self.host} wants a token for it (or it does not exist); set HF_TOKEN")
        if code == 404:
            return SourceError(f"{self.name}: {self.host} has no such model with a config.json")
        return SourceError(f"{self.name}: {self.host} answered with status {code}; try again later")


class _Missing(SourceError):
    """The repository has no such file."""
