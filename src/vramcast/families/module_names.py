"""Which weights a user's word means, and which names a model's code has for weights.

[PEFT] peft 0.21.2 src/peft/tuners/tuners_utils.py `check_target_module_exists`, `_maybe_include_all_linear_layers`;
src/peft/utils/transformers_weight_conversion.py `_convert_peft_config_moe`, `_MOE_TARGET_MODULE_MAPPING`
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cache
from typing import Final, NamedTuple

from msgspec import Struct

from vramcast.blocks.parameters.targets import (
    Place,
    has,
    is_known,
    matrices,
    no_weight,
    parts_of,
    paths_outside,
    paths_within,
    place_of,
    word_of,
)
from vramcast.domain.model import Model
from vramcast.domain.version import Version
from vramcast.errors import InvalidSpec, UnknownName, Unsupported
from vramcast.families.modules import BESIDE, UNFUSED, Kind, Module, file_tables, known_families, modules_of

ALL_LINEAR: Final = "all-linear"

LINEAR_NAMES: Final = "linear-names"
"""axolotl's lora_target_linear: the last names of linear layers, of which stacked experts are none and have none unless
other layers are called as they were [src/axolotl/loaders/adapter.py `find_all_linear_names`]."""

ALL: Final = "all"
"""LLaMA-Factory's word: linear layers outside of vision towers and their projectors, which it freezes, by the last part
of their names [src/llamafactory/model/model_utils/misc.py `find_all_linear_modules`, visual.py]."""

PATTERN: Final = re.compile(r"[*+?|()\[\]{}^$\\]")
"""What no name of a module has: a word with one of these is a regular expression on whole names."""

EXPERTS_TOO: Final[dict[str, dict[str, str]]] = {
    "unsloth": {"gate_proj": "gate_up", "up_proj": "gate_up", "gate_up_proj": "gate_up", "down_proj": "down"},
}
"""Engine -> name of a layer's product -> stacked experts' that it adapts with it [unslothai/unsloth@015bdef0d
unsloth/models/_utils.py `get_moe_target_parameters`]."""

EXPERTS_SINCE: Final[dict[str, Version]] = {"": (2026, 2), "gpt_oss": (2026, 7)}
"""Family -> the release since which it does ["": of the others; gpt-oss': `get_moe_target_modules`]."""

EXPERTS_OUTSIDE_SINCE: Final[Version] = (2026, 4, 5)
"""Since then also those that are not called "mlp.experts" [826c98f3 `_resolve_moe_parameter_name`]."""

APART: Final = ("litgpt",)
"""Engines that correct queries, keys and values apart although one product makes them."""

OWN_LAYERS: Final = ("torchtitan",)
"""Engines whose layers are no code of transformers, which adapters are found in by their own rules."""

WITHOUT_OUT: Final = ("falcon_mamba", "mamba", "mamba2", "nemotron_h")
"""Families whose state space layers PEFT refuses to adapt behind the scan [`_check_lora_target_modules_mamba`]."""


Chosen = dict[tuple[str, str], set[int]]
"""Stack and path -> layers; stack "" -> weights outside of them."""


class Targets(NamedTuple):
    """What a list of words means."""

    paths: tuple[str, ...]
    lacking: tuple[str, ...]  # words for weights that other models have


def targets(
    model: Model, words: Iterable[str], *, engine: str = "", former: bool = False
) -> tuple[str, ...]:
    """The weights that words mean, as our paths; see `read_targets`."""
    return read_targets(model, words, engine=engine, former=former).paths


def read_targets(
    model: Model, words: Iterable[str], *, engine: str = "", version: Version | None = None, former: bool = False
) -> Targets:
    """The weights that words mean, as our paths, and the words for weights that only other models have.

    One list serves many models: PEFT passes over a name that no module has where another one is found. In such a list
    names are those of modules, and stacked parameters are none.

    Understood are PEFT's words (suffixes of module names of the family's code in transformers, `all-linear`, regular
    expressions on whole module names, names of stacked expert parameters), names of Megatron-LM, torchtitan, torchtune
    and litgpt, and our paths.

    Args:
        words: of the user
        engine: that trains it
        version: of the engine; None: the newest
        former: its transformers is older than 5

    Raises: UnknownName for a word that names no weight of any model, or where no word names one of this model;
        InvalidSpec for what PEFT refuses
    """
    words, modules = tuple(words), modules_of(model, engine, former=former)
    keeps = former or engine in (*UNFUSED, *APART, *OF_ENGINES, *OWN_LAYERS)
    converted = {} if keeps else file_tables().converted.get(model.family, {})
    found: list[tuple[str, Chosen]] = []
    lacking: dict[str, UnknownName] = {}
    for word in _spelt_out(model, modules, words, converted):
        for one in _as_peft_converts(model, modules, word, converted) if converted else (word,):
            try:
                found.append((word, _meant(model, modules, one, engine)))
            except UnknownName as error:
                if not _names_a_weight_elsewhere(word):
                    raise
                lacking[word] = error
    adapts = engine in EXPERTS_TOO and (
        version is None or version >= EXPERTS_SINCE.get(model.family, EXPERTS_SINCE[""]))
    if adapts:
        anywhere = version is None or version >= EXPERTS_OUTSIDE_SINCE
        experts = _experts_meant(modules, words, EXPERTS_TOO[engine], anywhere=anywhere)
        found += experts
        lacking = {word: error for word, error in lacking.items() if word not in dict(experts)}
    adapts |= engine in OF_ENGINES  # whose experts are modules
    stacked = [word for word, meant in found if lacking and not adapts and _are_parameters(modules, meant)]
    found = [(word, meant) for word, meant in found if word not in stacked]
    if lacking and not found:
        raise next(iter(lacking.values()))
    chosen: Chosen = {}
    for _, meant in found:
        for key, layers in meant.items():
            chosen.setdefault(key, set()).update(layers)
    if engine in APART:
        chosen = {(stack, part): layers for (stack, path), layers in chosen.items() for part in parts_of(path)}
    elif engine not in (*UNFUSED, *OF_ENGINES, *OWN_LAYERS):
        _refuse_as_peft(model, chosen, converted)
    return Targets(tuple(_words(model, chosen)), (*lacking, *dict.fromkeys(stacked)))


def _experts_meant(
    modules: tuple[Module, ...], words: tuple[str, ...], roles: Mapping[str, str], *, anywhere: bool
) -> list[tuple[str, Chosen]]:
    """Stacked experts that words ask for: by the names of their products, or a pattern on names with "mlp"."""
    stacked = [module for module in modules if module.kind is Kind.PARAMETERS and ".experts." in f".{module.path}"]
    stacked = [module for module in stacked if anywhere or ".mlp.experts." in module.name]
    found = []
    for word in words:
        whole = PATTERN.search(word) is not None and "mlp" in word
        asked = set(roles.values()) if whole else {roles[word]} if word in roles else set()
        chosen: Chosen = {
            (one.stack, one.path): set(one.layers) for one in stacked if one.path.rpartition(".")[2] in asked
        }
        if chosen:
            found.append((word, chosen))
    return found


@cache
def _names_a_weight_elsewhere(word: str) -> bool:
    """Whether a word is a module's name in some family, another framework's, or a path of ours."""
    tables = file_tables()
    kinds = (row for group in tables.sets.values() for row in group.values())
    rows = [pair for row in kinds for pair in row.items()]
    rows += [pair for family in tables.families.values() for pair in family["outside"].items()]
    ends = f".{word.removesuffix('.weight')}"
    return word in tables.others or any(
        f".{name}".endswith(ends) or word in (path.partition(BESIDE)[0], *parts_of(path.partition(BESIDE)[0]))
        for name, path in rows
    )


def _are_parameters(modules: tuple[Module, ...], chosen: Chosen) -> bool:
    """Whether everything chosen is stacked parameters, which no name of a module means."""
    stacked = {(module.stack, module.path) for module in modules if module.kind is Kind.PARAMETERS}
    return stacked.issuperset(chosen)


USUAL: Final = {"ia3": ("attention.k", "attention.v", "mlp.down")}
"""Method -> weights whose modules PEFT adapts where nobody names any; of the others queries and values [PEFT
src/peft/utils/constants.py `TRANSFORMERS_MODELS_TO_LORA_TARGET_MODULES_MAPPING`, `..._IA3_TARGET_MODULES_MAPPING`]."""


OF_ENGINES: Final = {"megatron": ("linear_qkv", "linear_proj", "linear_fc1", "linear_fc2")}
"""Engine -> modules that it adapts where nobody names any [Megatron-Bridge src/megatron/bridge/peft/lora.py `LoRA`]."""


def usual_words(model: Model, method: str = "lora", *, engine: str = "") -> tuple[str, ...]:
    """The modules that are adapted where the question names none.

    Raises: InvalidSpec where the model has none of them
    """
    if engine in OF_ENGINES:
        return OF_ENGINES[engine]
    usual = USUAL.get(method, ("attention.q", "attention.v"))
    main, modules = model.main.name, modules_of(model, engine)
    row = file_tables().families.get(model.family, {})
    if "usual" in row and method not in USUAL:
        return tuple(row["usual"])
    found = (module.last for module in modules if module.kind is Kind.LINEAR and module.stack == main
             and not set(usual).isdisjoint(parts_of(module.path)))
    words = tuple(dict.fromkeys(found)) if modules else tuple(path for path in usual if is_known(model, Place(path)))
    if not words:
        names = ", ".join(_known_words(model, modules))
        raise InvalidSpec(
            "--peft {} adapts nothing of {} by itself; give --lora-targets: {}", method, model.name, names
        )
    return words


SAVED: Final = {"embedding": "embedding.tokens", "head": "head.output", "classifier": "head.classifier"}
"""Word for a module that is trained whole -> its weight."""


def saved_modules(model: Model, words: Iterable[str]) -> tuple[str, ...]:
    """The modules to be trained whole that words mean.

    Raises: UnknownName for a word that names none that the model has
    """
    tables, there = file_tables(), paths_outside(model)
    row = tables.families.get(model.family, {"outside": {}})
    names = {name: path for name, path in row["outside"].items() if path in there}
    known = {word: path for word, path in SAVED.items() if path in there}
    found = []
    for word in words:
        others = tables.others.get(word, (known.get(word, word),))
        path = next((path for name, path in names.items() if f".{name}".endswith(f".{word}")), others[0])
        saved = next((own for own, weight in known.items() if weight == path), None)
        if saved is None:
            offered = dict.fromkeys(name.rpartition(".")[2] for name, path in names.items() if path in known.values())
            raise UnknownName(
                "no module of {} that is trained whole is called {!r}; it has {}",
                model.name, word[:80], ", ".join(offered or known)
            )
        found.append(saved)
    return tuple(dict.fromkeys(found))


def names_saved(model: Model, words: Iterable[str]) -> tuple[str, ...]:
    """What the family's code calls modules to be trained whole: "embed_tokens" for "embedding".

    Raises: Unsupported for a family whose modules have no names here
    """
    outside = {module.path: module.last for module in modules_of(model) if not module.stack}
    found = []
    for word in words:
        if SAVED[word] not in outside:
            raise Unsupported("the module names of family {} are not known here; leave {} out", model.family, word)
        found.append(outside[SAVED[word]])
    return tuple(found)


class Names(Struct, frozen=True):
    """What PEFT's configuration calls adapted weights."""

    modules: tuple[str, ...]  # target_modules
    parameters: tuple[str, ...]  # target_parameters


def names_of(model: Model, words: Iterable[str], *, engine: str = "") -> Names:
    """What the family's code calls the modules behind our words, the shortest names that mean no others.

    Raises: Unsupported for a family or a weight whose modules have no such names
    """
    modules = modules_of(model, engine)
    if not modules:
        raise Unsupported(
            "the module names of family {} are not known here; adapt a model of family {} ..., or leave --peft out",
            model.family, ", ".join(sorted(known_families())[:8])
        )
    chosen: Chosen = {}
    for word in words:
        for key, layers in _own(model, place_of(word, [stack.name for stack in model.stacks])).items():
            chosen.setdefault(key, set()).update(layers)
    converted = {path: name for name, path in file_tables().converted.get(model.family, {}).items()}
    named: dict[str, Kind] = {}
    for stack, path in chosen:
        if path in converted:
            named[converted[path]] = Kind.LINEAR
            continue
        module = next((found for found in modules if (found.stack, found.path) == (stack, path)), None)
        name = None if module is None else _shortest(modules, module, chosen)
        if name is not None and any(f".{name}".endswith(f".{former}") for former in converted.values()):
            name = None  # PEFT takes it for the experts'
        if module is None or name is None:
            whole = ", ".join(_known_words(model, modules))
            raise Unsupported("{}: {!r} has no module of its own in all its layers; use {}", model.name, path, whole)
        named[name] = module.kind
    of = Kind.PARAMETERS
    return Names(
        tuple(name for name, kind in named.items() if kind is not of),
        tuple(name for name, kind in named.items() if kind is of),
    )


def _shortest(modules: tuple[Module, ...], module: Module, chosen: Chosen) -> str | None:
    parts = module.name.split(".")
    for count in range(1, len(parts) + 1):
        ends = ".".join(parts[-count:])
        if "#" in ends:
            return None
        if ends.isdecimal():
            continue
        found = _selected(modules, lambda name, ends=ends: f".{name}".endswith(f".{ends}"))  # type: ignore[misc]
        if all(chosen.get(key) == layers for key, layers in found.items()):
            return ends
    return None


def _spelt_out(
    model: Model, modules: tuple[Module, ...], words: Iterable[str], converted: Mapping[str, str]
) -> Iterator[str]:
    for word in words:
        if word.lower() == LINEAR_NAMES:
            linear = _every_linear(model, modules) if converted else {}
            names = dict.fromkeys(module.last for module in modules if (module.stack, module.path) in linear)
            yield from names or (ALL_LINEAR,)
            continue
        named = [module.last for module in modules if module.kind is Kind.LINEAR and module.stack == model.main.name]
        if word.lower() == ALL and named:
            yield from dict.fromkeys(named)
        else:
            yield ALL_LINEAR if word.lower() == ALL else word


def _refuse_as_peft(model: Model, chosen: Chosen, converted: Mapping[str, str]) -> None:
    if model.family in WITHOUT_OUT and any(path == "mamba.out" for _, path in chosen):
        raise InvalidSpec("PEFT adapts no out_proj of {}; leave it out of --lora-targets", model.family)
    paths = {path for _, path in chosen}
    named = {path: name for name, path in converted.items()}
    halves = ("moe.experts.gate", "moe.experts.up")
    if converted and len(paths.intersection(halves)) == 1:
        raise InvalidSpec(
            "transformers 5 holds {} and {} of the experts in one tensor, and PEFT adapts both or neither; name both",
            named[halves[0]], named[halves[1]]
        )


def _as_peft_converts(
    model: Model, modules: tuple[Module, ...], word: str, converted: Mapping[str, str]
) -> Iterator[str]:
    """Names that experts had in transformers 4 are those of the stacked tensors now, and of no other layer.

    Source: [PEFT] `_resolve_string_target_modules`, `_convert_peft_config_moe`
    """
    words = [word]
    if word.lower() == ALL_LINEAR:
        linear = _every_linear(model, modules)
        words = [module.last for module in modules if (module.stack, module.path) in linear] + list(converted)
    elif PATTERN.search(word):
        fits = _compiled(word).fullmatch
        whole = ((module, name) for module in modules for name, _ in module.names())
        words = [module.last for module, name in whole if fits(name)]
        stacked = (module for module in modules if module.kind is Kind.PARAMETERS)
        containers = {name.rpartition(".")[0] for module in stacked for name, _ in module.names()}
        words += [name for name in converted if any(fits(f"{container}.{name}") for container in containers)]
    elif is_known(model, place_of(word, [stack.name for stack in model.stacks])):
        yield word  # our own path, whatever a module's name that it ends in
        return
    for one in dict.fromkeys(words or [word]):
        yield next((path for name, path in converted.items() if f".{one}".endswith(f".{name}")), one)


def _meant(model: Model, modules: tuple[Module, ...], word: str, engine: str) -> Chosen:
    """What one word means: a framework's name for one of a product's weights means the product, unless they are
    apart; layers of an engine of its own have its names, whatever else is called so."""
    if word.lower() == ALL_LINEAR:
        return _every_linear(model, modules)
    if PATTERN.search(word):
        return _matching(model, modules, word)
    own = place_of(word, [stack.name for stack in model.stacks])
    if is_known(model, own):
        return _own(model, own)
    ends = f".{word.removesuffix('.weight')}"
    found = _selected(modules, lambda name: f".{name}".endswith(ends))
    others, own_names = file_tables().others, engine in OF_ENGINES
    paths = (*others.get(word, ()), *(others.get(f"{word} of {engine}", ()) if own_names else ()))
    for path in paths if own_names or not found else ():
        for module in modules if engine not in APART else ():
            if path in parts_of(module.path) and module.kind is not Kind.FORMER:
                found.setdefault((module.stack, module.path), set()).update(module.layers)
        if is_known(model, Place(path)) and not any(path in parts_of(joined) for _, joined in found):
            found |= _own(model, Place(path))
    if not found:
        raise no_weight(model, word, _known_words(model, modules))
    return found


def _own(model: Model, place: Place) -> Chosen:
    if word_of(place) in paths_outside(model):
        return {("", word_of(place)): set()}
    found: Chosen = {}
    for stack in model.stacks:
        if place.stack in ("", stack.name):
            having = {
                index for index, layer in enumerate(stack.layers)
                if place.first <= index <= place.last and has(matrices(layer, stack.hidden), place.path)
            }
            if having:
                found[stack.name, place.path] = having
    return found


def _every_linear(model: Model, modules: tuple[Module, ...]) -> Chosen:
    """[PEFT] every torch.nn.Linear and Conv1D but the output embeddings; and the experts' names that PEFT converts."""
    found: Chosen = {}
    for module in modules:
        linear = module.kind is Kind.LINEAR or (
            module.kind is Kind.OUTSIDE and module.path not in ("head.output", "head.classifier")
        )
        if linear:
            found.setdefault((module.stack, module.path), set()).update(module.layers)
    if not modules:
        for stack in model.stacks:
            for path in paths_within(stack):
                found |= _own(model, Place(path, stack.name))
    return found


def _matching(model: Model, modules: tuple[Module, ...], pattern: str) -> Chosen:
    fits = _compiled(pattern).fullmatch
    found = _selected(modules, lambda name: fits(name) is not None)
    if not found:
        example = next((name for module in modules if module.layers for name, _ in module.names()), "")
        if example:
            raise InvalidSpec(
                "lora-targets={!r} matches no whole module name of {}, such as {}", pattern[:80], model.name, example
            )
        raise InvalidSpec("lora-targets={!r} matches no whole module name of {}", pattern[:80], model.name)
    return found


def _compiled(pattern: str) -> re.Pattern[str]:
    try:
        return re.compile(pattern)
    except re.error as error:
        raise InvalidSpec("lora-targets={!r} is no regular expression: {}", pattern[:80], error) from None


def _selected(modules: tuple[Module, ...], fits: Callable[[str], bool]) -> Chosen:
    found: Chosen = {}
    for module in modules:
        for name, index in module.names():
            if fits(name.replace("#", "0")):  # an expert is like the others
                found.setdefault((module.stack, module.path), set()).update((index,) if module.stack else ())
    return found


def _words(model: Model, chosen: Chosen) -> Iterator[str]:
    """The fewest words for what was chosen: a path alone where every layer of every stack that has it is meant."""
    paths: dict[str, dict[str, set[int]]] = {}
    for (stack, path), layers in chosen.items():
        if stack:
            paths.setdefault(path, {})[stack] = layers
    for path, stacks in paths.items():
        everywhere = _own(model, Place(path))
        if all(stacks.get(stack) == layers for (stack, _), layers in everywhere.items()):
            yield path
            continue
        for stack, layers in stacks.items():
            if layers == everywhere[stack, path]:
                yield f"{stack}.{path}"
            else:
                yield from (word_of(Place(path, stack, first, last)) for first, last in _ranges(sorted(layers)))
    yield from (path for stack, path in chosen if not stack)


def _ranges(layers: list[int]) -> Iterator[tuple[int, int]]:
    first = last = layers[0]
    for index in layers[1:]:
        if index > last + 1:
            yield first, last
            first = index
        last = index
    yield first, last


def _known_words(model: Model, modules: tuple[Module, ...]) -> Iterator[str]:
    """Names to offer: the code's, else ours."""
    ours = (path for stack in reversed(model.stacks) for path in paths_within(stack))
    ordered = sorted(modules, key=lambda module: module.stack != model.main.name)
    inside = (module.last for module in ordered if module.kind in (Kind.LINEAR, Kind.PARAMETERS))
    yield from dict.fromkeys(inside if modules else ours)
    yield "or all-linear"
