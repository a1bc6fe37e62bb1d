"""Models and cards as people write them: "7B (llama2-7B-hf)", "H100 95GiB", "Llama-3-70B cut to 12 layers"."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Final

from truth.contract import Refused
from vramcast.blocks.parameters.model import count_parameters
from vramcast.catalogue.gpus import gpu_names, load_gpu
from vramcast.catalogue.index import MODELS
from vramcast.catalogue.models import load_model
from vramcast.domain.device import Gpu
from vramcast.domain.model import Model
from vramcast.errors import InvalidSpec, UnknownName
from vramcast.question.build import cut_to_layers

VARIANTS: Final = frozenset(
    ("instruct", "chat", "hf", "base", "it", "sft", "dpo", "rm", "model", "meta", "pretrained", "full", "fine",
     "tuning", "finetune", "finetuning", "lora", "qlora", "gptq", "awq", "int4", "4bit", "8bit", "bnb", "fp16", "bf16",
     "v1")
)
"""Words of a name that do not change the network."""

STORAGE: Final = frozenset(
    ("fp8", "fp4", "nvfp4", "mxfp4", "bf16", "fp16", "int8", "w8a8", "w4a16", "w8a16", "dynamic", "block", "quantized",
     "quantised", "unsloth", "gguf", "class", "4bits", "8bits", "ud", "128k", "safetensors", "marlin", "build")
)
"""Words of a name that say how the weights are stored, or who stored them; left out where nothing has them all."""

DATE: Final = re.compile(r"2[3-6](?:0[1-9]|1[0-2])|(?:0[1-9]|1[0-2])[0-3]\d|20\d\d")
"""Release dates in names: 2503, 0528, 2025."""

SEPARATORS: Final = re.compile(r"[^a-z0-9.]+|(?<!\d)\.|\.(?!\d)")
SIZE: Final = re.compile(r"\d+(?:\.\d+)?[bm]")
CUT: Final = re.compile(r"(?:cut|reduced|truncated|shrunk) (?:down )?to (\d+) layers?", re.IGNORECASE)
MEMORY: Final = re.compile(r"(\d+(?:\.\d+)?)\s*-?\s*(?:gi?b?)\b", re.IGNORECASE)

LARGEST_SIZE_ERROR: Final = 0.25
"""A name's model is another one when a stated parameter count differs by more than that."""

FEWEST_LETTERS: Final = 4
"""A shorter word names no model by itself."""

UNSTATED_CARD: Final = "a100-sxm4-80gb"
"""Where a row names no card: it decides the CUDA context and workspaces only, a few hundred MiB."""

TWO_WORD_CARDS: Final = ("rtx", "rx", "mtt", "ppu", "ascend")

Tokens = tuple[str, ...]


def model_of(text: str, params_b: float | None = None) -> Model:
    """The network that a row's words name.

    Args:
        text: a catalogue name, hub id or description
        params_b: its parameters where the row states them [10^9]

    Raises: Refused when the name is unknown, means several networks, or another one than the stated size says
    """
    cut = CUT.search(text)
    whole = MODELS.aliases.get(text.strip().lower())
    found = {whole} if whole else next((names for names in map(_named, _readings(CUT.sub("", text))) if names), set())
    models = [model for model in map(load_model, sorted(found)) if cut or _has_size(model, params_b)]
    if not models:
        raise Refused(f"model {text[:60]!r} is not in the catalogue")
    if len({(model.stacks, model.vocab, model.tied, model.quantisation) for model in models}) == 1:
        models = [min(models, key=lambda model: len(model.name))]  # they differ in how long they were trained for
    if len(models) > 1:
        names = ", ".join(model.name for model in models[:4])
        raise Refused(f"model {text[:60]!r} means several: {names}")
    if cut is None:
        return models[0]
    try:
        return cut_to_layers(models[0], int(cut[1]))
    except InvalidSpec as error:
        raise Refused(str(error)) from None


def _has_size(model: Model, params_b: float | None) -> bool:
    return params_b is None or abs(count_parameters(model).total / (params_b * 1e9) - 1) <= LARGEST_SIZE_ERROR


def _readings(text: str) -> Iterator[Tokens]:
    """The words of a name: whole, without its owner, without what stands in brackets, or only that; then without words
    that do not tell one network from another."""
    lower = text.lower().strip()
    bare = re.sub(r"\([^)]*\)", " ", lower)
    inside = re.findall(r"\(([^)]*)\)", lower)
    parts = dict.fromkeys((lower, lower.split("/")[-1], bare, bare.split("/")[-1], *inside))
    readings = [tokens for tokens in map(_tokens, parts) if tokens]
    yield from readings
    for tokens in readings:
        bare_tokens = tuple(word for word in tokens if word not in STORAGE)
        undated = tuple(word for word in bare_tokens if not DATE.fullmatch(word))
        yield from (shorter for shorter in dict.fromkeys((bare_tokens, undated)) if shorter and shorter != tokens)


def _tokens(text: str) -> Tokens:
    """Words without separators, "3 b" joined, variants left out."""
    joined = re.sub(r"(\d)\s+([bm])\b", r"\1\2", text)
    return tuple(word for word in SEPARATORS.split(joined) if word and word not in VARIANTS)


def _named(tokens: Tokens) -> set[str]:
    """Models of a reading, by the strictest rule that finds any."""
    key, exact = "".join(tokens), _by_key()
    if key in exact:
        return exact[key]
    sizes = [word for word in tokens if SIZE.fullmatch(word)]
    if not sizes:
        return {name for other, names in exact.items() if _is_sized(other, key) for name in names}
    unsized = exact.get("".join(word for word in tokens if word not in sizes), set())
    right = {name for name in unsized if any(_has_size(load_model(name), _billions(size)) for size in sizes)}
    if right or len(tokens) == len(sizes):
        return right
    return {name for name in MODELS.names() if _holds(_tokens(name), tokens)}


def _is_sized(name: str, key: str) -> bool:
    """Whether a name is the key and a size.

    >>> _is_sized("tinyllama1.1b", "tinyllama"), _is_sized("phi3mini", "phi")
    (True, False)
    """
    size = name.removeprefix(key)
    return len(key) >= FEWEST_LETTERS and size != name and SIZE.fullmatch(size) is not None


def _billions(size: str) -> float:
    """
    >>> _billions("500m")
    0.5
    """
    return float(size[:-1]) * (1 if size.endswith("b") else 1e-3)


def _holds(name: Tokens, words: Tokens) -> bool:
    """Every word, "3" also within "3.1"."""
    return all(any(part == word or part.startswith(word + ".") for part in name) for word in words)


@cache
def _by_key() -> Mapping[str, set[str]]:
    """Catalogue names and aliases, with and without their owner, without separators and variants."""
    index: dict[str, set[str]] = defaultdict(set)
    for alias, name in MODELS.aliases.items():
        for text in (alias, alias.split("/")[-1]):
            index["".join(_tokens(text))].add(name)
    # the shortest name of its own beats the alias of another
    for name in sorted(MODELS.names(), key=len, reverse=True):
        index["".join(_tokens(name))] = {name}
    return index


def card_of(text: str | None) -> Gpu:
    """The card that a row's words name; the nearest memory of its family where several have that name.

    Raises: Refused when no card of the catalogue has that name
    """
    if not text:
        return load_gpu(UNSTATED_CARD)
    lower = re.sub(r"\s+", " ", str(text).lower())
    for candidate in (lower, re.sub(r"\([^)]*\)", "", lower).strip()):
        try:
            return load_gpu(candidate)
        except (UnknownName, InvalidSpec):  # none is called so, or several
            continue
    cards = [load_gpu(name) for name in gpu_names() if re.search(_family(name), lower)]
    if not cards:
        raise Refused(f"no such card in the catalogue: {lower.strip()[:60]}")
    stated = [float(number) for number in MEMORY.findall(lower)]
    words = set(SEPARATORS.split(lower))

    def distance(card: Gpu) -> tuple[float, int]:
        memory = float(card.memory_nameplate.split()[0]) if card.memory_nameplate else 0.0
        form = set(card.name.split("-")[1:])
        far = min((abs(memory - gb) for gb in stated), default=0.0)
        return far, -2 * len(form & words) - int("sxm" in form or "sxm4" in form)

    return min(cards, key=distance)


def _family(name: str) -> str:
    """The pattern of a card's first word or two.

    >>> bool(re.search(_family("b200-180gb"), "gb200 nvl")), bool(re.search(_family("rtx-4090"), "4090 24gb"))
    (False, True)
    """
    first, *rest = name.split("-")
    if first in TWO_WORD_CARDS and rest:
        return rf"(?<![a-z0-9])(?:{first}[ -]?)?{rest[0]}(?![0-9])"
    return rf"(?<![a-z0-9]){first}(?![0-9a-z])"


__all__ = ["UNSTATED_CARD", "card_of", "model_of"]
