"""What a hub would send, where it is not there: the files of `repositories`, which the libraries' own loaders read.

What a cache has is read from there. Weights that a script takes by address are not fetched: loading them changes
nothing.
"""

from __future__ import annotations

import json
import socket
import struct
import urllib.request
from base64 import b64encode
from collections.abc import Callable, Iterator, Mapping
from functools import cache, partial, wraps
from importlib import import_module
from itertools import chain, islice, product
from pathlib import Path
from types import MethodType, ModuleType
from typing import Any, Final
from urllib.parse import urlsplit

import torch

from vramcast.errors import Note, Unsupported
from vramcast.tracing.environment.patches import Answer, Patches, answered
from vramcast.tracing.environment.repositories import INDEX, VARIANT, WEIGHTS, Maker, files_of, make_weights
from vramcast.tracing.environment.saving import OF_TENSORS, Unread
from vramcast.tracing.simulation import Simulation, running

OF_WEIGHTS: Final = (".safetensors", *OF_TENSORS, ".h5", ".msgpack", ".index.json")
NO_HUB: Final = (
    "torch.hub cannot fetch {} here; clone it and give torch.hub.load the folder with source='local', or put it in the "
    "cache of torch.hub"
)
OF_TORCHVISION: Final = "pytorch/vision"
PIECES: Final = "tiktoken: its vocabulary is not fetched; one of the same size stands in, of 2 characters a token"
UNWRITTEN: Final = "{}: nothing is written to the hub"
USER: Final = "user"
UNFETCHED: Final = "weights at an address are not fetched; those that a module is made with stay"
VOCABULARIES: Final = {
    "cl100k": 100_256, "o200k": 199_998, "p50k": 50_280, "gpt-2": 50_256, "r50k": 50_256,
    "llama3": 128_000,
}
"""Part of an address -> pieces [tiktoken tiktoken_ext/openai_public.py: what its special tokens leave of each]
[llama3] meta-llama/llama3 llama/tokenizer.py: 128,256 with 256 special ones."""


def loading_nothing_unread() -> Callable[..., Any]:
    """`torch.nn.Module.load_state_dict` for which `Unread` fits every module."""
    load = torch.nn.Module.load_state_dict
    Unread.is_about = False  # what an earlier run was given says nothing of this one

    def loaded(module: torch.nn.Module, state: Mapping[str, Any], *args: Any, **kwargs: Any) -> Any:
        if isinstance(state, Unread) or (Unread.is_about and not state):  # what a script took out of it is empty
            if kwargs.get("assign"):
                _give_data(module)
            return torch.nn.modules.module._IncompatibleKeys([], [])
        return load(module, state, *args, **kwargs)

    return loaded


def _give_data(module: torch.nn.Module) -> None:
    """Parameters of a module that was made without data come from the checkpoint, which is read to the host."""
    for part in module.modules():
        for name, parameter in part._parameters.items():
            if parameter is not None and parameter.is_meta:
                fresh = torch.empty(parameter.size(), dtype=parameter.dtype, device="cpu")
                part._parameters[name] = torch.nn.Parameter(fresh, parameter.requires_grad)


def patch_addresses(patches: Patches, simulation: Simulation) -> None:
    """Replace `torch.hub.load_state_dict_from_url`, which torchvision and many scripts ask."""

    def from_address(*_args: Any, **_kwargs: Any) -> Unread:
        simulation.assumptions.note(UNFETCHED, simulation.origins.place())
        return Unread()

    load, to_file, retrieve = torch.hub.load, torch.hub.download_url_to_file, urllib.request.urlretrieve

    @wraps(load)
    def loaded(repo_or_dir: str, model: str, *args: Any, **kwargs: Any) -> Any:
        if kwargs.get("source", "github") == "local":
            return load(repo_or_dir, model, *args, **kwargs)
        if repo_or_dir.partition(":")[0] == OF_TORCHVISION:
            models: Any = import_module("torchvision.models")
            for word in ("source", "trust_repo", "force_reload", "verbose", "skip_validation"):
                kwargs.pop(word, None)
            return getattr(models, model)(*args, **kwargs)
        try:
            return load(repo_or_dir, model, *args, **kwargs)
        except OSError as error:
            raise Unsupported(NO_HUB, repo_or_dir) from error

    names = torch.hub.list

    def listed(*args: Any, **kwargs: Any) -> list[str]:
        try:
            return names(*args, **kwargs)
        except OSError:
            return []

    patches.set(torch.hub, "load", loaded)
    patches.set(torch.hub, "list", listed)
    patches.set(torch.hub, "load_state_dict_from_url", from_address)
    patches.set(torch.hub, "download_url_to_file", answered(to_file, unless_weights))
    patches.set(urllib.request, "urlretrieve", answered(retrieve, unless_weights))
    patches.set(torch.nn.Module, "load_state_dict", loading_nothing_unread())


def unless_weights(simulation: Simulation, fetch: Any, /, url: Any, *args: Any, **kwargs: Any) -> Any:
    """A file fetched by its address; weights are not, so that `torch.load` does not find them."""
    if not urlsplit(str(url)).path.endswith(OF_WEIGHTS):
        return fetch(url, *args, **kwargs)
    simulation.assumptions.note(UNFETCHED, simulation.origins.place())
    return None


def cached_file(
    simulation: Simulation, cached: Any, /, repo_id: str, filename: str, *args: Any, **kwargs: Any
) -> Any:
    """`huggingface_hub.try_to_load_from_cache`."""
    found, made = cached(repo_id, filename, *args, **kwargs), _place(simulation, repo_id, filename)
    return str(made) if not isinstance(found, str) and made.exists() else found


def lists_of_hub(module: ModuleType) -> None:
    """`huggingface_hub.hf_api`: what a repository of the catalogue holds, where the hub does not answer; nothing is
    written to it."""
    api = vars(module)["HfApi"]
    ask = api.model_info

    @wraps(ask)
    def told(self: Any, repo_id: str, *args: Any, **kwargs: Any) -> Any:
        files = None if running() is None or answers() else files_of(repo_id)
        if files is None:
            return ask(self, repo_id, *args, **kwargs)
        return vars(module)["ModelInfo"](id=repo_id, sha="0" * 40, siblings=[{"rfilename": name} for name in files])

    methods: dict[str, Callable[..., Any]] = {"model_info": told, **_unwritten(module)}
    for name, method in methods.items():
        setattr(api, name, method)
        vars(module)[name] = MethodType(method, vars(module)["api"])


def _unwritten(module: ModuleType) -> dict[str, Callable[..., Any]]:
    """Methods through which everything is written to a hub, and who writes: what a simulated run made is not."""
    api, made = vars(module)["HfApi"], vars(module)
    future_compatible = made["future_compatible"]

    def noted(repo_id: str) -> str:
        simulation = running()
        if simulation is not None:
            simulation.assumptions.note(Note(UNWRITTEN, repo_id))
        return repo_id if "/" in repo_id else f"{USER}/{repo_id}"

    def repository(self: Any, repo_id: str, *_args: Any, **kwargs: Any) -> Any:
        kind = f"{kwargs['repo_type']}s/" if kwargs.get("repo_type") in ("dataset", "space") else ""
        return made["RepoUrl"](f"{self.endpoint}/{kind}{noted(repo_id)}")

    @future_compatible
    def commit(self: Any, *args: Any, commit_message: str | None = None, **kwargs: Any) -> Any:
        repo_id = noted(kwargs.get("repo_id") or args[0])
        return made["CommitInfo"](f"{self.endpoint}/{repo_id}/commit/0", commit_message or "", "", "0" * 40)

    def user(_self: Any, *_args: Any, **_kwargs: Any) -> dict[str, Any]:
        return {"type": "user", "name": USER, "orgs": []}

    stand_ins: dict[str, Callable[..., Any]] = {"create_repo": repository, "whoami": user}
    stand_ins |= dict.fromkeys(("create_commit", "upload_file", "upload_folder"), commit)
    return {name: answered(getattr(api, name), partial(_instead, method)) for name, method in stand_ins.items()}


def _instead(stand_in: Any, _simulation: Simulation, _method: Any, /, *args: Any, **kwargs: Any) -> Any:
    return stand_in(*args, **kwargs)


def snapshot(simulation: Simulation, fetch: Any, /, repo_id: str, *args: Any, **kwargs: Any) -> Any:
    """`huggingface_hub.snapshot_download`: a whole repository of the catalogue, where the hub is silent."""
    files = files_of(repo_id) if kwargs.get("repo_type") in (None, "model") and not answers() else None
    if files is None:
        return fetch(repo_id, *args, **kwargs)
    try:
        return fetch(repo_id, *args, **{**kwargs, "local_files_only": True, "local_dir": None})
    except Exception:
        folder = Path(kwargs.get("local_dir") or _place(simulation, f"{repo_id}/snapshot", ""))
    patterns = {name: kwargs.get(name) for name in ("allow_patterns", "ignore_patterns")}
    chosen: Any = import_module("huggingface_hub.utils").filter_repo_objects
    _write_all(folder, {name: files[name] for name in chosen(files, **patterns)}, simulation)
    return str(folder)


def plain_tokenizer(
    simulation: Simulation, load: Any, /, class_: Any, files: Any, *args: Any, **kwargs: Any
) -> Any:
    """`PreTrainedTokenizerBase._from_pretrained`: a tokenizer that stands in is read as its file says, not by a
    family's own class, which would make another of its vocabulary (Qwen2Tokenizer: one that knows no text)."""
    if str(files.get("tokenizer_file")).startswith(str(simulation.folder)):
        class_ = import_module("transformers.tokenization_utils_tokenizers").TokenizersBackend
    return load(class_, files, *args, **kwargs)


def without_pretrained(simulation: Simulation, _load: Any, /, *_args: Any, **_kwargs: Any) -> None:
    """`load_pretrained` of timm: modules keep the weights that they are made with."""
    simulation.assumptions.note(UNFETCHED, simulation.origins.place())


def vocabulary(simulation: Simulation, load: Any, /, *args: Any, **kwargs: Any) -> Any:
    """Of tiktoken: what is at an address that does not answer has pieces of one and two bytes."""
    try:
        return load(*args, **kwargs)
    except OSError:
        address = str(args[0] if args else next(iter(kwargs.values())))
        if "://" not in address:
            raise
    simulation.assumptions.note(PIECES)
    size = next((size for name, size in VOCABULARIES.items() if name in address), min(VOCABULARIES.values()))
    return {piece: rank for rank, piece in enumerate(_pieces(size))}


def file_of_hub(
    simulation: Simulation, fetch: Any, /, repo_id: str, filename: str, *args: Any, **kwargs: Any
) -> Any:
    """`huggingface_hub.hf_hub_download`."""
    if kwargs.get("repo_type") not in (None, "model"):
        return fetch(repo_id, filename, *args, **kwargs)
    whole = "/".join(filter(None, (kwargs.get("subfolder"), filename)))
    silent = kwargs.pop("local_files_only", False) or not answers()
    error: Exception
    try:
        return fetch(repo_id, filename, *args, **kwargs, local_files_only=True)
    except Exception as missing:
        error = missing
    if not (silent or filename.endswith(OF_WEIGHTS)):
        try:
            return fetch(repo_id, filename, *args, **kwargs)
        except Exception as refused:
            if type(refused).__name__ == "RemoteEntryNotFoundError":
                raise
            error = refused
    files = files_of(repo_id)
    if files is None:
        if silent or not filename.endswith(OF_WEIGHTS):
            raise error
        return fetch(repo_id, filename, *args, **kwargs)
    name = VARIANT.sub("", whole)
    if name not in files:
        entry_missing: Any = import_module("huggingface_hub.errors").EntryNotFoundError
        raise entry_missing(f"{repo_id} is a stand-in without {whole}")
    path = _place(simulation, repo_id, name)
    if not path.exists():
        _write_all(path.parent, {path.name: files[name]}, simulation)
    return str(path)


def _pieces(size: int) -> Iterator[bytes]:
    """Each byte, then all of two, then of three."""
    single = [bytes((number,)) for number in range(256)]
    usual = [bytes((number,)) for number in (*range(32, 127), *range(32), *range(127, 256))]
    pairs = (one + two for one in usual for two in usual)
    longer = (one + two for one in (a + b for a in usual for b in usual) for two in usual)
    return islice(chain(single, pairs, longer), size)


def write_pieces(path: Path, simulation: Simulation) -> None:
    """A vocabulary of Llama 3 as tiktoken reads it: a piece in base 64 and its rank a line."""
    simulation.assumptions.note(PIECES)
    lines = (b64encode(piece).decode() + f" {rank}\n" for rank, piece in enumerate(_pieces(VOCABULARIES["llama3"])))
    path.write_text("".join(lines), encoding="utf-8")


def sentencepiece_model(size: int) -> bytes:
    """A vocabulary as SentencePiece reads it: unknown, start, end, then letters, all pairs and triples of them
    [sentencepiece src/sentencepiece_model.proto `ModelProto`]."""
    letters = ["\u2581", *map(chr, range(33, 127))]
    several = (map("".join, product(letters, repeat=length)) for length in (1, 2, 3))
    texts = islice(chain(("<unk>", "<s>", "</s>"), *several), size)
    kinds = {0: 2, 1: 3, 2: 3}  # unknown, control; the rest are plain
    return b"".join(_field(1, b"".join((
        _field(1, text.encode()), b"\x15" + struct.pack("<f", -1.0), bytes((0x18, kinds.get(number, 1))),
    ))) for number, text in enumerate(texts))


def _field(number: int, content: bytes) -> bytes:
    """One of a message, of fewer than 128 bytes."""
    return bytes((number << 3 | 2, len(content))) + content


@cache
def answers() -> bool:
    """Whether the hub can be found; where it cannot its library tries for half a minute, file by file."""
    constants: Any = import_module("huggingface_hub.constants")
    try:
        socket.getaddrinfo(urlsplit(constants.ENDPOINT).hostname, None)
    except OSError:
        constants.HF_HUB_OFFLINE = True
    return not constants.HF_HUB_OFFLINE


def _place(simulation: Simulation, repo_id: str, name: str) -> Path:
    return simulation.folder / "hub" / repo_id.strip("/").replace("/", "--") / name


def _write_all(folder: Path, files: Mapping[str, Maker], simulation: Simulation) -> None:
    for name, made in files.items():
        if (folder / name).exists():  # each asker of a part of a repository asks for much of it again
            continue
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        made(folder / name, simulation)


def pipeline_folder(simulation: Simulation, fetch: Any, /, class_: Any, repo_id: str, **how: Any) -> Any:
    """`DiffusionPipeline.download`: a pipeline of the catalogue that no cache has is a folder here."""
    files = files_of(str(repo_id), is_whole=True) or {}
    if INDEX not in files:
        return fetch(class_, repo_id, **how)
    try:
        return fetch(class_, repo_id, **{**how, "local_files_only": True})
    except Exception:  # no cache has it, whichever way the library says so
        folder = _place(simulation, f"{repo_id}/whole", INDEX).parent
        _write_all(folder, files, simulation)
        return folder


def checkpoint_files(simulation: Simulation, resolve: Any, /, *args: Any, **kwargs: Any) -> Any:
    """`_get_resolved_checkpoint_files` of transformers: a folder with a config alone has weights without data."""
    name = args[0] if args else kwargs["pretrained_model_name_or_path"]
    config = Path(str(name)) / "config.json"
    holds = (path.name.endswith(OF_WEIGHTS) for path in config.parent.glob("*"))
    if not config.is_file() or any(holds):
        return resolve(*args, **kwargs)
    path = _place(simulation, str(config.parent.resolve()), WEIGHTS)
    path.parent.mkdir(parents=True, exist_ok=True)
    make_weights(json.loads(config.read_text(encoding="utf-8")), str(name), path, simulation)
    return [str(path)], None


ANSWERS: Final[Mapping[str, Mapping[str, Answer]]] = {
    "huggingface_hub.file_download": {"hf_hub_download": file_of_hub, "try_to_load_from_cache": cached_file},
    "huggingface_hub._snapshot_download": {"snapshot_download": snapshot},
    "transformers.modeling_utils": {"_get_resolved_checkpoint_files": checkpoint_files},
    "transformers.tokenization_utils_base": {"PreTrainedTokenizerBase._from_pretrained": plain_tokenizer},
    "diffusers.pipelines.pipeline_utils": {"DiffusionPipeline.download": pipeline_folder},
    "timm.models._builder": {"load_pretrained": without_pretrained},
    "torchvision.datasets.utils": {"download_url": unless_weights},
    "tiktoken.load": dict.fromkeys(("data_gym_to_mergeable_bpe_ranks", "load_tiktoken_bpe"), vocabulary),
}
"""Module -> what is answered of it."""
