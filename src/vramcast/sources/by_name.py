"""Copies of known networks by the names of their repositories, where no hub can be asked what is in them.

`unsloth/Meta-Llama-3.1-8B-Instruct-bnb-4bit` says which network it is and how its weights are stored; whoever can be
asked, or has a config.json, is believed instead.
"""

from __future__ import annotations

import re
from functools import cache
from typing import Any, Final, NamedTuple

from vramcast.catalogue.index import MODELS
from vramcast.catalogue.models import load_model, read_entry
from vramcast.domain.model import Checkpoint, MoE
from vramcast.errors import Note
from vramcast.families import model_from_config
from vramcast.sources.weights import noted

NF4: Final = {"quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_quant_type": "nf4"}

STORED: Final[tuple[tuple[str, dict[str, Any] | None], ...]] = (
    (r"-bf16|-fp16|-16bit|-dequantized", None),
    (r"-awq-8bit|-awq-int8", {"quant_method": "awq", "bits": 8}),
    (r"-awq(?:-int4|-4bit)?|-int4-awq|-w4a16-awq", {"quant_method": "awq", "bits": 4}),
    (r"-gptq-int8|-gptq-8bit", {"quant_method": "gptq", "bits": 8}),
    (r"-gptq(?:-int4|-4bit)?|-int4-gptq|[-.](?:quantized\.)?w4a16(?:-g\d+)?", {"quant_method": "gptq", "bits": 4}),
    (r"-int4-autoround|-autoround-int4", {"quant_method": "auto-round", "bits": 4}),
    (r"-fp8-(?:dynamic|kv)", {"quant_method": "fp8", "activation_scheme": "static"}),  # a scale per channel or tensor
    (r"-fp8(?:-block)?", {"quant_method": "fp8"}),
    (r"[-.](?:quantized\.)?w8a8", {"quant_method": "gptq", "bits": 8}),
    (r"-bnb-4bit|-bnb-nf4(?:-bf16)?", NF4),
    (r"-bnb-8bit", {"quant_method": "bitsandbytes", "load_in_8bit": True}),
    (r"-nvfp4(?:a16)?(?:-v\d)?", {"quant_method": "modelopt", "quant_algo": "NVFP4"}),
    (r"-(?:w-)?mxfp4(?:-a-fp8)?", {"quant_method": "mxfp4"}),
)
"""End of a repository's name in lower case -> the `quantization_config` that such repositories have, or None."""

MIXED: Final = re.compile(
    r"-unsloth-bnb-4bit|-ud-|-dynamic-4bit|-gguf$|-mlx|-\d(?:\.\d)?bpw|-exl[23]|-onnx|-openvino|-int4-int8mix|-int4-mixed"
    r"|-\dbit$"
)
"""Parts of names of repositories whose layers are stored in several ways, or for engines that are none of ours."""

OWN: Final = re.compile(r"(?:meta-llama/)?(?:meta-)?llama-3\.1-405b-(?:instruct-)?fp8")
"""A name of Meta's and of others for copies stored otherwise: Meta's keeps attention and two layers in 16 bits."""

TUNED: Final = re.compile(r"-(?:instruct|it|chat|base|hf|pt)(?=-|$)")
"""Parts of a name that say how a network was trained."""


class ByName(NamedTuple):
    """What a repository's name says."""

    base: str  # the catalogue's entry
    config: dict[str, Any]  # as its config.json would have it

    def checkpoint(self, repository: str, why: str) -> Checkpoint:
        """The network, noted why nobody was asked where there is somebody to ask."""
        model = model_from_config(self.config, name=repository)
        own = "quantization_config" in read_entry(self.base).config
        stored = model.quantisation if "quantization_config" in self.config else model.dtype if own else None
        taken = (
            Note("{} is taken for {} with weights in {}, as it is named", repository, self.base, stored) if stored
            else Note("{} is taken for {}, as it is named", repository, self.base)
        )
        return Checkpoint(model=noted(model, (Note("{}; {}", why, taken) if why else taken,)))


def by_name(repository: str) -> ByName | None:
    """The network that a repository's name says, and how its weights are stored; None where it does not say.

    >>> by_name("unsloth/Meta-Llama-3.1-8B-Instruct-bnb-4bit").base, by_name("unsloth/Qwen3-14B-unsloth-bnb-4bit")
    ('llama-3.1-8b', None)
    """
    owner, _, name = re.sub(r"\s+", "-", repository.strip().lower()).rpartition("/")
    if owner == "nvidia":
        name = re.sub(r"-fp4(?=-v\d$|$)", "-nvfp4", name)
    base = _entry_of(name)
    if base is not None:
        return ByName(base, dict(read_entry(base).config))
    if OWN.fullmatch(repository.lower()):
        return None
    for ending, stored in STORED:
        match = re.fullmatch(f"(.+?)(?:{ending})", name)
        base = _entry_of(match[1]) if match else None
        if base is None:
            continue
        config = dict(read_entry(base).config)
        published = config.pop("quantization_config", None)
        method = None if stored is None else stored["quant_method"]
        if published is not None and (_is_copy(base) or published.get("quant_method") == method != "mxfp4"):
            return None  # a copy of a copy, or what was published with some of it stored otherwise
        if method == "mxfp4" and not any(isinstance(run.layer.channel, MoE) for run in load_model(base).main.runs):
            return None  # of other networks than those with experts it is not known which part is stored so
        return ByName(base, config if stored is None else config | {"quantization_config": stored})
    return None


def as_repository(folder: str) -> str:
    """A folder that is called after owner and name, as text-generation-webui's downloads are; "" for others.

    >>> as_repository("meta-llama_Llama-3.1-8B"), as_repository("tiny_gpt2")
    ('meta-llama/Llama-3.1-8B', '')
    """
    owner, _, name = folder.partition("_")
    return f"{owner}/{name}" if owner.lower() in _owners() and name else ""


@cache
def _owners() -> frozenset[str]:
    """Who owns repositories of the catalogue's networks."""
    return frozenset(alias.lower().partition("/")[0] for alias in MODELS.aliases if alias.count("/") == 1)


def network_of_mixed(repository: str) -> str | None:
    """The catalogue's entry that a repository's name says, where it does not say how each layer is stored.

    >>> network_of_mixed("unsloth/Qwen3-14B-unsloth-bnb-4bit"), network_of_mixed("unsloth/Qwen3-14B")
    ('qwen3-14b', None)
    """
    name = repository.rpartition("/")[2].lower()
    match = MIXED.search(name)
    return _entry_of(name[: match.start()]) if match else None


def _is_copy(entry: str) -> bool:
    """Whether the catalogue's entry is itself named after how its weights are stored."""
    return any(re.fullmatch(f".+?(?:{ending})", entry) for ending, _ in STORED)


def _entry_of(name: str) -> str | None:
    """The catalogue's entry of a repository of this name, whoever owns it; None where there are none or several."""
    for spelling, spelled in ((name, False), (TUNED.sub("", name), True)):
        found = _repositories(stripped=spelled).get(spelling, set())
        if len(found) == 1:
            return next(iter(found))
    return None


@cache
def _repositories(*, stripped: bool) -> dict[str, set[str]]:
    """Name of a repository, or what is left of it without how it was trained -> entries of the catalogue."""
    found: dict[str, set[str]] = {}
    for alias, entry in MODELS.aliases.items():
        name = alias.rpartition("/")[2]
        found.setdefault(TUNED.sub("", name) if stripped else name, set()).add(entry)
    return found
