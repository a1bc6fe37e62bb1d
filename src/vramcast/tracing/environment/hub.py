"""What a hub would send, where it is not there: configs of the catalogue, weights without data, a plain tokenizer.

The libraries' own loaders read these files, so that dtype, device map, quantisation and tied weights are theirs.
Weights are a safetensors file whose data is a hole: names and shapes are those of the architecture that the config
names. What a cache has is read from there. Weights that a script takes by address are not fetched: loading them
changes nothing.
"""

from __future__ import annotations

import json
import socket
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache, wraps
from importlib import import_module
from itertools import chain, islice
from pathlib import Path
from types import ModuleType
from typing import Any, Final
from urllib.parse import urlsplit

import torch

from vramcast.errors import Unsupported, VramcastError
from vramcast.sources.resolve import config_of
from vramcast.tracing.environment.patches import Patches
from vramcast.tracing.environment.saving import write_hollow
from vramcast.tracing.simulation import Simulation, running

WEIGHTS: Final = "model.safetensors"
OF_WEIGHTS: Final = (".safetensors", ".bin", ".pt", ".pth", ".ckpt", ".h5", ".msgpack", ".index.json")
HOLLOW: Final = "{}: its weights are not fetched; tensors of the shapes that its config says stand in"
CONFIG: Final = "{}: the hub does not answer, so its config is that of the catalogue"
PLAIN_TOKENIZER: Final = "{}: a tokenizer that makes a token of every 4 characters stands in for its own"
NO_HUB: Final = (
    "torch.hub cannot fetch {} here; clone it and give torch.hub.load the folder with source='local', or put it in the "
    "cache of torch.hub"
)
OF_TORCHVISION: Final = "pytorch/vision"
PIECES: Final = "tiktoken: its vocabulary is not fetched; one of the same size stands in, of 2 characters a token"
UNFETCHED: Final = "weights at an address are not fetched; those that a module is made with stay"
VOCABULARIES: Final = {"cl100k": 100_256, "o200k": 199_998, "p50k": 50_280, "gpt-2": 50_256, "r50k": 50_256}
"""Part of an address -> pieces [tiktoken tiktoken_ext/openai_public.py: what its special tokens leave of each]."""
CHARACTERS: Final = r"[\s\S]{1,4}"
"""Of a token: about what tokenizers of large vocabularies make of English."""
TEMPLATE: Final = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


class Unread(dict[str, Any]):
    """Stands for weights that were not fetched, and for every part of them; loading it changes nothing."""

    def __missing__(self, name: str) -> Unread:
        return Unread()

    def pop(self, *_name: Any) -> Any:
        return Unread()


def loading_nothing_unread() -> Callable[..., Any]:
    """`torch.nn.Module.load_state_dict` for which `Unread` fits every module."""
    load = torch.nn.Module.load_state_dict

    def loaded(module: torch.nn.Module, state: Mapping[str, Any], *args: Any, **kwargs: Any) -> Any:
        if isinstance(state, Unread):
            return torch.nn.modules.module._IncompatibleKeys([], [])
        return load(module, state, *args, **kwargs)

    return loaded


def patch_addresses(patches: Patches, simulation: Simulation) -> None:
    """Replace `torch.hub.load_state_dict_from_url`, which torchvision and many scripts ask."""

    def from_address(*_args: Any, **_kwargs: Any) -> Unread:
        simulation.assumptions.note(UNFETCHED, simulation.origins.place())
        return Unread()

    load = torch.hub.load

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
            raise Unsupported(NO_HUB.format(repo_or_dir)) from error

    names = torch.hub.list

    def listed(*args: Any, **kwargs: Any) -> list[str]:
        try:
            return names(*args, **kwargs)
        except OSError:
            return []

    patches.set(torch.hub, "load", loaded)
    patches.set(torch.hub, "list", listed)
    patches.set(torch.hub, "load_state_dict_from_url", from_address)
    patches.set(torch.nn.Module, "load_state_dict", loading_nothing_unread())


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
        config = _config(repo_id)
        if config is None:
            if silent or not filename.endswith(OF_WEIGHTS):
                raise error
            return fetch(repo_id, filename, *args, **kwargs)
        made = MAKERS.get(whole)
        if made is None:
            entry_missing: Any = import_module("huggingface_hub.errors").EntryNotFoundError
            raise entry_missing(f"{repo_id} is a stand-in without {whole}")
        path = _place(simulation, repo_id, whole)
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            made(path, config, repo_id, simulation)
        return str(path)

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


def _config(repo_id: str) -> dict[str, Any] | None:
    try:
        return config_of(repo_id)
    except VramcastError:
        return None


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
        _make_weights(path, json.loads(config.read_text(encoding="utf-8")), str(name), simulation)
        return [str(path)], None

    vars(module)["_get_resolved_checkpoint_files"] = resolved


def _make_config(path: Path, config: dict[str, Any], repo_id: str, simulation: Simulation) -> None:
    simulation.assumptions.note(CONFIG.format(repo_id))
    path.write_text(json.dumps(config), encoding="utf-8")


def _make_weights(path: Path, config: dict[str, Any], repo_id: str, simulation: Simulation) -> None:
    """What `save_pretrained` of the architecture would write."""
    simulation.assumptions.note(HOLLOW.format(repo_id))
    transformers: Any = import_module("transformers")
    raw = dict(config)
    made = transformers.AutoConfig.for_model(raw.pop("model_type"), **raw)
    names = [name for name in raw.get("architectures") or () if hasattr(transformers, name)]
    class_ = getattr(transformers, names[0]) if names else transformers.AutoModel._model_mapping[type(made)]
    dtype = getattr(torch, str(raw.get("dtype") or raw.get("torch_dtype") or "float32").removeprefix("torch."))
    with torch.device("meta"):
        model = class_(made).to(dtype)
    tensors = {id(tensor): (name, tensor) for name, tensor in reversed(model.state_dict(keep_vars=True).items())}
    write_hollow(dict(reversed(tensors.values())), str(path), {"format": "pt"})


def _vocabulary(config: Mapping[str, Any]) -> int:
    return int(config.get("vocab_size") or config.get("text_config", {}).get("vocab_size") or 32_000)


def _specials(config: Mapping[str, Any]) -> dict[str, tuple[str, int]]:
    """Role of a token -> its text and id."""
    ids = {role: config.get(f"{role}_token_id") for role in ("eos", "bos", "pad")}
    ids["eos"] = _vocabulary(config) - 1 if ids["eos"] is None else ids["eos"]  # as every tokenizer has one
    firsts = {role: each[0] if isinstance(each, list) else each for role, each in ids.items()}
    texts: dict[int, str] = {}
    for role, number in firsts.items():
        if number is not None and number >= 0:
            texts.setdefault(number, f"<|{role}|>")
    unknown = next(number for number in range(len(texts) + 1) if number not in texts)
    found = {role: (texts[number], number) for role, number in firsts.items() if number in texts}
    return {**found, "unk": ("<|unk|>", unknown)}


def _make_tokenizer(path: Path, config: dict[str, Any], repo_id: str, simulation: Simulation) -> None:
    simulation.assumptions.note(PLAIN_TOKENIZER.format(repo_id))
    specials = _specials(config)
    size = _vocabulary(config)
    named = {number: text for text, number in specials.values()}
    vocabulary = {named.get(number, f"<|{number}|>"): number for number in range(size)}
    added = [
        {"id": number, "content": text, "special": True, "single_word": False, "lstrip": False, "rstrip": False,
         "normalized": False}
        for number, text in sorted(named.items())
    ]
    path.write_text(json.dumps({
        "version": "1.0", "truncation": None, "padding": None, "added_tokens": added, "normalizer": None,
        "pre_tokenizer": {
            "type": "Split", "pattern": {"Regex": CHARACTERS}, "behavior": "Isolated", "invert": False,
        },
        "post_processor": None, "decoder": None,
        "model": {"type": "WordLevel", "vocab": vocabulary, "unk_token": specials["unk"][0]},
    }), encoding="utf-8")


def _make_tokenizer_config(path: Path, config: dict[str, Any], _repo_id: str, _simulation: Simulation) -> None:
    tokens = {f"{role}_token": text for role, (text, _) in _specials(config).items()}
    longest = config.get("max_position_embeddings") or 1 << 20
    path.write_text(json.dumps({
        "tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": longest, "chat_template": TEMPLATE, **tokens,
    }), encoding="utf-8")


MAKERS: Final[Mapping[str, Callable[[Path, dict[str, Any], str, Simulation], None]]] = {
    "config.json": _make_config, WEIGHTS: _make_weights, "tokenizer.json": _make_tokenizer,
    "tokenizer_config.json": _make_tokenizer_config,
}
"""File of a repository -> what writes one."""
