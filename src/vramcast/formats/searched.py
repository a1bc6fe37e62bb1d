"""What a configuration file fixes of a search, and what of it the search is left to choose."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from vramcast.errors import Note
from vramcast.estimate.variants import BF16_RECIPES
from vramcast.formats.read import Given, about_network, as_options, left_open, settled
from vramcast.question.planning import ON_ONE, VARIED, goal_of
from vramcast.question.tables import PLAN_OPTIONS

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
