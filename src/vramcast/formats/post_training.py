"""A training of TRL whose answers an engine generates on the same cards, in the words of `vramcast rl`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from vramcast.errors import InvalidSpec, Unsupported
from vramcast.formats.read import DEFAULTS, Given
from vramcast.question.options import OPTIONS, parse_count
from vramcast.question.tables import POST_TRAINING_OPTIONS
from vramcast.units import ceil_div

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
