"""The options of one plan over those that configuration files give.

A training of TRL whose answers an engine generates on the same cards, in the words of `vramcast rl`.

What a configuration file fixes of a search, and what of it the search is left to choose.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

from msgspec.structs import replace

from vramcast.catalogue.clusters import NO_MARKET, Market, cluster_of
from vramcast.catalogue.gpu_texts import is_part
from vramcast.domain.model import Model
from vramcast.domain.post_training import Episodes
from vramcast.domain.version import named
from vramcast.engines.serving.table import SERVING
from vramcast.errors import InvalidSpec, Note, SourceError, Unsupported
from vramcast.estimate.techniques import BF16_RECIPES
from vramcast.formats.paths import NOTHING_GIVEN, Configs, Invocation
from vramcast.formats.read import DEFAULTS, OPTIONS_OF_BATCH, as_options, left_open, read_files, settled, solved
from vramcast.formats.reading import OF_AMD, Given
from vramcast.formats.unread import about_network
from vramcast.question.build import market_of
from vramcast.question.options import MARKET_OPTIONS, OPTIONS, over, parse_count
from vramcast.question.planning import ON_ONE, VARIED, goal_of
from vramcast.question.tables import PLAN_OPTIONS, POST_TRAINING_OPTIONS
from vramcast.units import ceil_div, format_bytes

FIXED: Final[dict[str, tuple[str, ...]]] = {
    "train": (
        "model", "engine", "seq-len", "global-batch", "precision", "optimizer", "optimizer-kernel", "objective",
        "attention", "loss", "compile", "peft", "lora-rank", "lora-targets", "lora-dropout", "modules-to-save",
        "base-weights", "engine-option",
    ),
    "serve": (
        "model", "engine", "context", "weights", "dtype", "kv-dtype", "memory-fraction", "max-sequences",
        "batched-tokens", "block-tokens", "graphs", "prefix-caching", "lora-slots", "lora-rank", "attention-dp",
        "expert-parallel", "engine-option",
    ),
}
"""Command -> options that say what is trained or served, in which framework; the others say how it is split."""

OF_A_SPLIT: Final = ("stage_layers", "interleave_group", "optimizer_instances", "fsdp")
"""Engine options that belong to degrees or to sharding."""

ONE_PLAN: Final = tuple(goal for goal in ON_ONE if goal != "largest-model")
"""Inverse questions about the one plan that a file has."""


LEFT_TO_SEARCH: Final = ("micro-batch", "grad-accum", "zero", "shards", "recompute")
"""Options that a file may leave open where a search chooses them."""


class ForSearch(NamedTuple):
    """Options of a search that files give."""

    options: dict[str, Any]  # those said by name among them
    assumptions: tuple[str, ...]
    ignored: tuple[str, ...]  # what the answer is without


def for_search(
    given: Given, options: Mapping[str, Any], command: str, *, ignore_unread: bool = False
) -> ForSearch:
    """The options of a search over those that files fix.

    Args:
        given: what the files say
        options: what was said by name, which wins
        command: "train" or "serve"
        ignore_unread: leave out what nobody here understands, and say so

    Raises: Unsupported for what files say and nobody here understands
    """
    named = {name: value for name, value in options.items() if value is not None}
    given = about_network(given, named.get("model", given.options.get("model")))
    given = settled(given, (*named, *LEFT_TO_SEARCH), ignore_unread=ignore_unread)
    whole = given.options | ({"global-batch": given.batch["global"]} if "global" in given.batch else {})
    if goal_of(named) in ONE_PLAN:
        varied = VARIED[str(goal_of(named))]
        fixed = {name: value for name, value in whole.items() if (name in PLAN_OPTIONS or name == "model")
                 and name not in varied}
    else:
        fixed = {name: value for name, value in whole.items() if name in FIXED[command]}
        fixed |= _without_split(fixed)
    if "engine" in named and named["engine"] not in (fixed.get("engine"), (fixed.get("engine"),)):
        fixed = {name: value for name, value in fixed.items() if name != "engine-option"
                 and not (name == "precision" and value in BF16_RECIPES)}  # every engine has a recipe of its own
    if "zero" in named or "shards" in named:
        fixed = {name: value for name, value in fixed.items() if name not in ("zero", "shards")}
    merged = fixed | named
    return ForSearch(merged, tuple(_assumed(given, merged, fixed, command)), given.ignored)


def _without_split(fixed: Mapping[str, Any]) -> dict[str, Any]:
    """Engine options that hold whatever the split is."""
    pairs = [pair for pair in fixed.get("engine-option", ()) if pair.partition("=")[0] not in OF_A_SPLIT]
    return {"engine-option": tuple(pairs)} if "engine-option" in fixed else {}


def _assumed(given: Given, merged: Mapping[str, Any], fixed: Mapping[str, Any], command: str) -> list[str]:
    found = list(given.assumptions)
    left = {name: value for name, value in given.options.items() if name not in fixed}
    if left:
        found.append(Note("left to the search, not taken from the file: {}", as_options(left)))
    if command == "train":
        if "global-batch" not in merged and given.batch:
            sizes = " x ".join(str(size) for size in given.batch.values())
            found.append(Note("{} samples are those of one GPU; --global-batch says how many a step has", sizes))
        found += left_open(given, {"micro-batch": 1, "grad-accum": 1} | dict(merged))
    return found


ANSWERED: Final = "rollout"
"""The option that says what a training leaves unread of the engine on its cards."""

NAMES: Final = {"seq-len": "prompt-len", "completion-len": "response-len"}
"""Options of `vramcast train` -> those of `vramcast rl`, where they differ."""

SAID: Final = ("engine", "objective", "grad-accum", "micro-batch", "global-batch", "engine-option",
               "steps-per-generation", "generation-batch-size")
"""Options that are said otherwise."""

GENERATION: Final = ("trl", "steps_per_generation", "generation_batch_size")
"""Engine options of the same kind."""


def is_training(given: Given) -> bool:
    """Whether files hold a training, and not already what `vramcast rl` is asked."""
    return "framework" not in given.options


def as_post_training(options: Mapping[str, Any], given: Given, ranks: int) -> dict[str, Any]:
    """The options of `vramcast rl`; what was said by name in its words wins.

    Args:
        options: all, the training's from the files
        given: what the files say
        ranks: processes of the trainer

    Raises: Unsupported where nothing is generated on the trainer's cards or an option is not modelled, InvalidSpec for
        batches that do not divide
    """
    if not given.rollout:
        objective = given.options.get("objective", "pretrain")
        if objective in ("grpo", "rloo"):
            raise Unsupported("what is read generates with its own network or on a server; vramcast train answers that")
        raise Unsupported(
            "what is read trains with --objective {}, which generates nothing; vramcast train answers that", objective
        )
    own = {**given.rollout, **options}
    if "global-batch" in own:
        own["grad-accum"] = _accumulated(own, ranks)
    found = {NAMES.get(name, name): value for name, value in own.items() if name not in SAID}
    found |= {name: options[name] for name in NAMES.values() if name in options}
    if own.get("framework") == "ms-swift":
        found = _within_context(found, options)
    for name in found:
        if name in OPTIONS and name not in POST_TRAINING_OPTIONS:
            raise Unsupported("--{} {} is not modelled beside an engine on the same cards", name, found[name])
    pairs = {pair.partition("=")[0]: pair for pair in given.options.get("engine-option", ())}
    release = pairs.get("trl", "").partition("=")[2]
    kept = tuple(pair for name, pair in pairs.items() if name not in GENERATION)
    unsaid = {
        **_batches(own, ranks), "algorithm": given.options["objective"],
        "framework": own.get("framework") or (f"trl@{release}" if release else "trl"), "trainer-option": kept,
    }
    return {**found, **{name: value for name, value in unsaid.items() if name not in options or name == "micro-batch"}}


def _within_context(found: dict[str, Any], options: Mapping[str, Any]) -> dict[str, Any]:
    """ms-swift's `max_length` is that of a prompt; with its answer it is no longer than the engine's longest."""
    context, response = found.get("context"), parse_count("response-len", found.get("response-len", 512))
    prompt = parse_count("prompt-len", found.get("prompt-len", 2048))
    if context is None or "prompt-len" in options or response >= context:
        return found
    return {**found, "prompt-len": min(prompt, parse_count("context", context) - response)}


def _accumulated(options: Mapping[str, Any], ranks: int) -> int:
    """Micro-batches of an optimizer step of so many sequences, which ms-swift rounds up.

    Raises: InvalidSpec where others' do not divide
    """
    whole = parse_count("global-batch", options["global-batch"])
    at_once = ranks * parse_count("micro-batch", options.get("micro-batch", DEFAULTS["micro-batch"]))
    found = ceil_div(whole, at_once)
    if whole % at_once and options.get("framework") != "ms-swift":
        raise InvalidSpec("global-batch={} is not a multiple of {} = data-parallel ranks x micro-batch; use {}",
                          whole, at_once, found * at_once)
    return found


def _batches(options: Mapping[str, Any], ranks: int) -> dict[str, Any]:
    """Prompts of a generation and of an optimizer step [TRL grpo_config.py `__post_init__`]."""
    micro, accumulated = (parse_count(name, options.get(name, DEFAULTS[name]))
                          for name in ("micro-batch", "grad-accum"))
    samples, at_once = parse_count("samples", options["samples"]), micro * ranks
    whole = options.get("generation-batch-size") or at_once * options.get("steps-per-generation", accumulated)
    if "generation-batch-size" in options and "steps-per-generation" in options:
        raise InvalidSpec("generation_batch_size and steps_per_generation say the same; give one of them")
    learned = at_once * accumulated
    if whole % at_once:
        raise InvalidSpec(
            "a generation of {} sequences is no multiple of {}, the micro-batches of all ranks", whole, at_once
        )
    for sequences in (whole, learned):
        if sequences % samples:
            raise InvalidSpec("{} sequences are no multiple of num_generations={}", sequences, samples)
    if whole < learned:
        raise Unsupported(
            "an optimizer step of {} sequences takes several generations of {}: not modelled", learned, whole
        )
    return {"micro-batch": micro, "prompts": whole // samples, "mini-batch": learned // samples}


SERVERS: Final = ("vllm", "sglang", "tensorrt-llm", "tgi", "lmdeploy")
"""Engines whose command says how many cards it takes."""


def with_configs(
    options: Mapping[str, Any], configs: Configs, *, command: str, beneath: Mapping[str, Any] | None = None
) -> tuple[dict[str, Any], Given]:
    """Options over those that configuration files of other tools give.

    Args:
        options: what was said by name, which wins
        configs: the files, and how they are read
        command: "train" or "serve"
        beneath: options of a job file, over which the files win

    Returns: all options, and what the files said
    Raises: Unsupported for what files say and nobody here understands
    """
    named = {name: value for name, value in options.items() if value is not None}
    asked = over(named, beneath or {})
    started = replace(configs.given, cards=_cards(asked), engine=str(asked.get("engine") or ""))
    given = read_files(
        configs.paths, command=command, format_name=configs.format_name, line=configs.line, started=started
    )
    given = about_network(given, over(named, over(given.options, beneath or {})).get("model"))
    merged = over(named, over(given.options, beneath or {}))
    said_by_files: tuple[str, ...] = ()
    if "gpus" in merged:
        merged["gpus"], said = _counted(given, merged)
        given = given._replace(assumptions=(*given.assumptions, *said))
        merged["gpus"] = with_share(str(merged["gpus"]), given.share, _market(merged))
        merged = merged | _for_card(given, merged, named)
        given, merged = _with_context(given, merged)
        given, merged = _over_cards(given, merged)
        given, ranks = _on_cluster(given, merged)
        merged = solved(merged, given.batch, ranks, named)
        if command == "rl" and is_training(given):
            if not given.rollout:  # what is not read may be why nothing generates
                settled(given, (*said_by_files, *(beneath or {}), *named), ignore_unread=configs.ignore_unread)
            merged, said_by_files = as_post_training(merged, given, ranks), (*said_by_files, ANSWERED)
    elif given.share:
        raise InvalidSpec("what is read sees {} of each card; give --gpus, the card", given.share)
    given = settled(given, (*said_by_files, *(beneath or {}), *named), ignore_unread=configs.ignore_unread)
    open_ = left_open(given, merged) if command == "train" else (*_version_assumed(merged), *_prompts(given, merged))
    model = options.get("model")
    if model is not None and given.options.get("model", model) != model:
        open_ = (*open_, Note("the model of the file is left for {}", getattr(model, "name", model)))
    return merged, given._replace(assumptions=(*given.assumptions, *open_))


def _counted(given: Given, options: Mapping[str, Any]) -> tuple[str, tuple[str, ...]]:
    """The cards of a question that names their type alone, as many as a command starts, or one of several where no
    more are used; and a line that says so."""
    named = str(options["gpus"])
    count = max(given.ranks.values(), default=0)
    if engine_of(given.options) in SERVERS:
        count = max(count, math.prod(parse_count(name, given.options.get(name, 1)) for name in ("tp", "pp", "dp")))
    cluster = cluster_of(named, _market(options))
    if given.alone and cluster.count > 1 and cluster.instance is None:
        one = re.sub(r"^(?:\d+x)+", "", named)
        return f"1x{one}", (Note("GPUs: {} runs on one, so 1x{} is answered, not {}", given.alone, one, cluster.count),)
    batch = _of_fewer(given, options, count, cluster.count)
    if batch and cluster.instance is None:
        fewer = f"{count}x" + re.sub(r"^(?:\d+x)+", "", named)
        return fewer, (Note("GPUs: {} GPUs cannot share the {} samples of a step, which the {} processes of what is "
                            "read do, so {} is answered", cluster.count, batch, count, fewer),)
    if count <= 1 or cluster.count != 1 or cluster.instance is not None or re.match(r"\d+x", named):
        return named, ()
    machines = f"{given.nodes}x" if given.nodes > 1 and count % given.nodes == 0 else ""
    whole = f"{machines}{count // given.nodes if machines else count}x{named}"
    if given.device_map:
        return whole, (Note("GPUs: what is read sees {} cards, so {} is answered", count, whole),)
    return whole, (Note("GPUs: what is read starts {} processes, so {} is answered", count, whole),)


def with_share(gpus: str, share: str, market: Market = NO_MARKET) -> str:
    """Cards of which a process sees a part; those that are named as parts stay.

    >>> with_share("2xa10", "8000mib"), with_share("a10-vgpu-4000mib", "8000mib")
    ('2xa10-vgpu-8000mib', 'a10-vgpu-4000mib')
    """
    cluster = cluster_of(gpus, market)
    if not share or is_part(cluster.gpu):
        return gpus
    machines = f"{cluster.num_nodes}x" if cluster.num_nodes > 1 else ""
    count = f"{machines}{cluster.gpus_per_node}x" if cluster.count > 1 else ""
    return f"{count}{cluster.gpu.name}-vgpu-{share}"


def _of_fewer(given: Given, options: Mapping[str, Any], count: int, cards: int) -> int:
    """The samples of a step, where they divide by the processes that a command starts and not by the question's more
    cards; else 0."""
    said = {kind: given.batch.get(kind) or given.options.get(name) for kind, name in OPTIONS_OF_BATCH.items()}
    whole, micro = said["global"], said["micro"]
    by_name = any(options.get(name) not in (None, said[kind]) for kind, name in OPTIONS_OF_BATCH.items())
    if not whole or not micro or by_name or not 0 < count < cards:
        return 0
    parallel = math.prod(parse_count(name, options.get(name, 1)) for name in ("tp", "pp", "cp"))
    ranks = [max(1, number // parallel) * micro for number in (count, cards)]
    return int(whole) if whole % ranks[0] == 0 and whole % ranks[1] else 0


def _over_cards(given: Given, options: dict[str, Any]) -> tuple[Given, dict[str, Any]]:
    """Layers on each of the cards of the only process, as many as the question has."""
    cards = cluster_of(str(options["gpus"]), _market(options)).count
    if not given.device_map or cards == 1 or "pp" in options:
        return given, options
    return given._replace(ranks={}), options | {"pp": cards}


def _cards(options: Mapping[str, Any]) -> int | None:
    """The cards of one machine, where a question says how many there are."""
    gpus = options.get("gpus")
    if not isinstance(gpus, str):
        return None
    cluster = cluster_of(gpus, _market(options))
    return cluster.gpus_per_node if cluster.instance is not None or cluster.count > 1 or gpus[:1] == "1" else None


def _version_assumed(options: Mapping[str, Any]) -> tuple[str, ...]:
    """Whose defaults hold where neither files nor options name a version."""
    engine = str(options.get("engine"))
    if engine not in SERVING:
        return ()
    assumed = named(engine, SERVING[engine].default)
    return (Note(
        "{}: its defaults, as no version is named; --engine {}@VERSION takes those of another", assumed, engine
    ),)


def _prompts(given: Given, options: Mapping[str, Any]) -> Iterator[str]:
    """What is assumed of prompts whose length a training of files with an engine on its cards leaves open."""
    if given.rollout and "seq-len" in given.auto and "prompt-len" not in options:
        yield Note("{}: --{} {} is assumed", given.auto["seq-len"], "prompt-len", Episodes().prompt_len)


def _market(options: Mapping[str, Any]) -> Market:
    return market_of({name: options[name] for name in MARKET_OPTIONS if name in options})


def engine_of(options: Mapping[str, Any]) -> str:
    """The engine of a question without its version."""
    return str(options.get("engine")).partition("@")[0]


def _for_card(given: Given, options: Mapping[str, Any], named: Mapping[str, Any]) -> dict[str, Any]:
    """What files leave to the card, where that has no bf16.

    Raises: Unsupported where the tool stops there
    """
    if not given.without_bf16 or set(given.without_bf16) & set(named):
        return {}
    gpu = cluster_of(str(options["gpus"]), _market(options)).gpu
    if gpu.has_bf16:
        return {}
    if None in given.without_bf16.values():
        raise Unsupported(
            "{} has no bf16, and the gradients of weights in fp16 stop the scaler of the loss; train adapters, or use "
            "a card from Ampere on", gpu.name
        )
    return dict(given.without_bf16)


def _with_context(given: Given, options: dict[str, Any]) -> tuple[Given, dict[str, Any]]:
    """The context that a tool takes unasked on cards of so much memory, up to the network's own."""
    if not given.contexts or "context" in options or options.get("model") is None:
        return given, options
    from vramcast.sources.resolve import resolve_model  # most files leave nothing to the memory of cards

    cluster = cluster_of(str(options["gpus"]), _market(options))
    memory = cluster.count * cluster.gpu.visible_bytes
    longest = resolve_model(str(options["model"])).context
    context = min(next(tokens for least, tokens in given.contexts if memory >= least), longest or math.inf)
    said = Note("num_ctx is not given: {}, by the {} of all cards", int(context), format_bytes(memory))
    left = tuple((file, one) for file, one in given.unread if one.option != "context")
    return given._replace(unread=left, assumptions=(*given.assumptions, said)), options | {"context": int(context)}


def _on_cluster(given: Given, options: Mapping[str, Any]) -> tuple[Given, int]:
    """What the cards and their number settle, and the data-parallel ranks."""
    cluster = cluster_of(str(options["gpus"]), _market(options))
    count = cluster.count
    if cluster.gpu.vendor != OF_AMD:
        given = given._replace(unread=tuple((file, one) for file, one in given.unread if one.about != OF_AMD))
    model_parallel = math.prod(parse_count(name, options.get(name, 1)) for name in ("tp", "pp", "cp"))
    ranks = max(1, count // max(1, model_parallel))
    others = tuple(
        Note("{}: starts {} processes, the question has {} GPUs; those are taken", file, processes, count)
        for file, processes in given.ranks.items() if processes != count
    )
    taken = math.prod(parse_count(name, options.get(name, 1)) for name in ("tp", "pp", "dp"))
    if "tp" in given.options and taken < count and engine_of(options) in SERVERS:
        others = (*others, Note("its command takes {} of the {} GPUs", taken, count))
    return given._replace(ignored=(*given.ignored, *others)), ranks


def script_network(
    path: Path, *, ignore_unread: bool, started: Invocation = NOTHING_GIVEN
) -> tuple[Model, tuple[str, ...]]:
    """The network that the arguments of a launch script describe, and what of the script is left.

    Raises: SourceError where they describe none, Unsupported where they do in words nobody here understands
    """
    given = read_files([path], command="train", started=started)
    model = given.options.get("model")
    if not isinstance(model, Model):
        raise SourceError("{}: its arguments describe no network; name a model, and give it with --from", path)
    network = tuple((file, one) for file, one in given.unread if one.of_network)
    ignored = settled(given._replace(unread=network), (), ignore_unread=ignore_unread).ignored
    rest = {name: value for name, value in given.options.items() if name != "model"}
    left = Note("{}: only its network is taken; --from {} takes the rest: {}", path.name, path.name, as_options(rest))
    return model, (*ignored, left)
