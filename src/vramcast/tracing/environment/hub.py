"""What a hub would send, where it is not there: the files of `repositories`, which the libraries' own loaders read.

What a cache has is read from there. Weights that a script takes by address are not fetched: loading them changes
nothing.
"""

from __future__ import annotations

import json
import socket
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache, wraps
from importlib import import_module
from itertools import chain, islice
from pathlib import Path
from types import MethodType, ModuleType
from typing import Any, Final
from urllib.parse import urlsplit

import torch

from vramcast.errors import Note, Unsupported
from vramcast.tracing.environment.patches import Patches
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
VOCABULARIES: Final = {"cl100k": 100_256, "o200k": 199_998, "p50k": 50_280, "gpt-2": 50_256, "r50k": 50_256}
"""Part of an address -> pieces [tiktoken tiktoken_ext/openai_public.py: what its special tokens leave of each]."""


def loading_nothing_unread() -> Callable[..., Any]:
    """`torch.nn.Module.load_state_dict` for which `Unread` fits every module."""
    load = torch.nn.Module.load_state_dict
    Unread.is_about = False  # what an earlier run was given says nothing of this one

    def loaded(module: torch.nn.Module, state: Mapping[str, Any], *args: Any, **kwargs: Any) -> Any:
        if isinstance(state, Unread) or (Unread.is_about and not state):  # what a script took out of it is empty
            return torch.nn.modules.module._IncompatibleKeys([], [])
        return load(module, state, *args, **kwargs)

    return loaded


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
    patches.set(torch.hub, "download_url_to_file", unless_weights(to_file))
    patches.set(urllib.request, "urlretrieve", unless_weights(retrieve))
    patches.set(torch.nn.Module, "load_state_dict", loading_nothing_unread())


def unless_weights(fetch: Callable[..., Any]) -> Callable[..., Any]:
    """What fetches a file by its address; weights it does not, so that `torch.load` does not find them."""

    @wraps(fetch)
    def fetched(url: Any, *args: Any, **kwargs: Any) -> Any:
        simulation = running()
        if simulation is None or not urlsplit(str(url)).path.endswith(OF_WEIGHTS):
            return fetch(url, *args, **kwargs)
        simulation.assumptions.note(UNFETCHED, simulation.origins.place())
        return None

    return fetched


@contextmanager
def downloads(module: ModuleType) -> Iterator[None]:
    """Around `torchvision.datasets.utils`."""
    yield
    vars(module)["download_url"] = unless_weights(vars(module)["download_url"])


@contextmanager
def hub_of_files(module: ModuleType) -> Iterator[None]:
    """Around `huggingface_hub.file_download`."""
    yield
    vars(module)["hf_hub_download"] = _or_stand_in(vars(module)["hf_hub_download"])
    cached = vars(module)["try_to_load_from_cache"]

    @wraps(cached)
    def loaded(repo_id: str, filename: str, *args: Any, **kwargs: Any) -> Any:
        found, simulation = cached(repo_id, filename, *args, **kwargs), running()
        made = None if simulation is None else _place(simulation, repo_id, filename)
        return str(made) if not isinstance(found, str) and made is not None and made.exists() else found

    vars(module)["try_to_load_from_cache"] = loaded


@contextmanager
def lists_of_hub(module: ModuleType) -> Iterator[None]:
    """Around `huggingface_hub.hf_api`: what a repository of the catalogue holds, where the hub does not answer; nothing
    is written to it."""
    yield
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
    return {name: _while_running(getattr(api, name), method) for name, method in stand_ins.items()}


def _while_running(method: Callable[..., Any], stand_in: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(method)
    def call(*args: Any, **kwargs: Any) -> Any:
        return (method if running() is None else stand_in)(*args, **kwargs)

    return call


@contextmanager
def snapshots_of_hub(module: ModuleType) -> Iterator[None]:
    """Around `huggingface_hub._snapshot_download`: a whole repository of the catalogue, where the hub is silent."""
    yield
    fetch = vars(module)["snapshot_download"]
    chosen: Any = import_module("huggingface_hub.utils").filter_repo_objects

    @wraps(fetch)
    def fetched(repo_id: str, *args: Any, **kwargs: Any) -> Any:
        simulation = running()
        is_model = kwargs.get("repo_type") in (None, "model")
        files = files_of(repo_id) if simulation is not None and is_model and not answers() else None
        if simulation is None or files is None:
            return fetch(repo_id, *args, **kwargs)
        try:
            return fetch(repo_id, *args, **{**kwargs, "local_files_only": True, "local_dir": None})
        except Exception:
            folder = Path(kwargs.get("local_dir") or _place(simulation, f"{repo_id}/snapshot", ""))
        patterns = {name: kwargs.get(name) for name in ("allow_patterns", "ignore_patterns")}
        _write_all(folder, {name: files[name] for name in chosen(files, **patterns)}, simulation)
        return str(folder)

    vars(module)["snapshot_download"] = fetched


@contextmanager
def plain_tokenizers(module: ModuleType) -> Iterator[None]:
    """Around `transformers.tokenization_utils_base`: a tokenizer that stands in is read as its file says, not by a
    family's own class, which would make another of its vocabulary (Qwen2Tokenizer: one that knows no text)."""
    yield
    load = vars(module)["PreTrainedTokenizerBase"]._from_pretrained.__func__

    def loaded(class_: Any, files: Any, *args: Any, **kwargs: Any) -> Any:
        simulation = running()
        if simulation is not None and str(files.get("tokenizer_file")).startswith(str(simulation.folder)):
            backend: Any = import_module("transformers.tokenization_utils_tokenizers")
            class_ = backend.TokenizersBackend
        return load(class_, files, *args, **kwargs)

    vars(module)["PreTrainedTokenizerBase"]._from_pretrained = classmethod(loaded)


@contextmanager
def without_pretrained(module: ModuleType) -> Iterator[None]:
    """Around `timm.models._builder`: modules keep the weights that they are made with."""
    yield
    load = vars(module)["load_pretrained"]

    @wraps(load)
    def loaded(*args: Any, **kwargs: Any) -> None:
        simulation = running()
        if simulation is None:
            load(*args, **kwargs)
        else:
            simulation.assumptions.note(UNFETCHED, simulation.origins.place())

    vars(module)["load_pretrained"] = loaded


@contextmanager
def vocabulary_of_pieces(module: ModuleType) -> Iterator[None]:
    """Around `tiktoken.load`: what is at an address that does not answer has pieces of one and two bytes."""
    yield
    for name in ("data_gym_to_mergeable_bpe_ranks", "load_tiktoken_bpe"):
        vars(module)[name] = _or_pieces(vars(module)[name])


def _or_pieces(load: Callable[..., dict[bytes, int]]) -> Callable[..., dict[bytes, int]]:
    @wraps(load)
    def loaded(*args: Any, **kwargs: Any) -> dict[bytes, int]:
        simulation = running()
        try:
            return load(*args, **kwargs)
        except OSError:
            address = str(args[0] if args else next(iter(kwargs.values())))
            if simulation is None or "://" not in address:
                raise
        simulation.assumptions.note(PIECES)
        size = next((size for name, size in VOCABULARIES.items() if name in address), min(VOCABULARIES.values()))
        single = [bytes((number,)) for number in range(256)]
        usual = [bytes((number,)) for number in (*range(32, 127), *range(32), *range(127, 256))]
        pairs = (one + two for one in usual for two in usual)
        longer = (one + two for one in (a + b for a in usual for b in usual) for two in usual)
        pieces = islice(chain(single, pairs, longer), size)
        return {piece: rank for rank, piece in enumerate(pieces)}

    return loaded


def _or_stand_in(fetch: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(fetch)
    def fetched(repo_id: str, filename: str, *args: Any, **kwargs: Any) -> Any:
        simulation = running()
        if simulation is None or kwargs.get("repo_type") not in (None, "model"):
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
        return str(_written(repo_id, name, simulation))

    return fetched


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


def _written(repo_id: str, name: str, simulation: Simulation) -> Path:
    path = _place(simulation, repo_id, name)
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        (files_of(repo_id) or {})[name](path, simulation)
    return path


def _write_all(folder: Path, files: Mapping[str, Maker], simulation: Simulation) -> None:
    for name, made in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        made(folder / name, simulation)


@contextmanager
def pipelines_of_files(module: ModuleType) -> Iterator[None]:
    """Around `diffusers.pipelines.pipeline_utils`: a pipeline of the catalogue that no cache has is a folder here."""
    yield
    pipeline: Any = vars(module)["DiffusionPipeline"]
    fetch = pipeline.download.__func__

    def downloaded(class_: Any, repo_id: str, /, **how: Any) -> Any:
        simulation, files = running(), files_of(str(repo_id), is_whole=True) or {}
        if simulation is None or INDEX not in files:
            return fetch(class_, repo_id, **how)
        try:
            return fetch(class_, repo_id, **{**how, "local_files_only": True})
        except Exception:  # no cache has it, whichever way the library says so
            folder = _place(simulation, f"{repo_id}/whole", INDEX).parent
            _write_all(folder, files, simulation)
            return folder

    pipeline.download = classmethod(downloaded)


@contextmanager
def folders_without_weights(module: ModuleType) -> Iterator[None]:
    """Around `transformers.modeling_utils`: a folder with a config alone has weights without data."""
    yield
    resolve = vars(module)["_get_resolved_checkpoint_files"]

    @wraps(resolve)
    def resolved(*args: Any, **kwargs: Any) -> Any:
        simulation, name = running(), args[0] if args else kwargs["pretrained_model_name_or_path"]
        config = Path(str(name)) / "config.json"
        holds = (path.name.endswith(OF_WEIGHTS) for path in config.parent.glob("*"))
        if simulation is None or not config.is_file() or any(holds):
            return resolve(*args, **kwargs)
        path = _place(simulation, str(config.parent.resolve()), WEIGHTS)
        path.parent.mkdir(parents=True, exist_ok=True)
        make_weights(json.loads(config.read_text(encoding="utf-8")), str(name), path, simulation)
        return [str(path)], None

    vars(module)["_get_resolved_checkpoint_files"] = resolved
