"""ms-swift's GRPO on Megatron, whose answers vLLM writes: the options of `vramcast rl`.

[swift] modelscope/ms-swift 3602360a5 swift/megatron/arguments/megatron_args.py `RLHFMegatronArgumentsMixin`,
megatron/trainers/rollout_mixin.py; swift/ray/megatron/pipeline.py: groups of cards
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from vramcast.errors import Note
from vramcast.formats.reading import Config, Reading, Unread, table
from vramcast.formats.table import read_options
from vramcast.formats.tools.rollout_engine import REPLAYED
from vramcast.formats.tools.swift import ROLLOUT
from vramcast.formats.watched import Watched

KEPT: Final = (
    "engine", "model", "precision", "tp", "pp", "cp", "ep", "etp", "virtual-stages", "first-stage-layers",
    "last-stage-layers", "sequence-parallel", "optimizer", "recompute", "peft", "lora-rank", "lora-targets",
    "lora-dropout", "modules-to-save", "freeze", "offload-optimizer", "alloc-conf",
)
"""Options of the trainer that say the same of it beside an engine."""

GROUPS: Final = ("train", "rollout")
"""Tables of Ray's cards, whose arguments are those of the command otherwise."""

SERVER: Final = re.compile(r"CUDA_VISIBLE_DEVICES=([\d,]+)(?:\\\n|[^\n])*?\bswift rollout\b")
"""The engine that a script starts on cards of its own."""

ANSWERS: Final = 512
"""`max_completion_length` unasked."""


def of_ray(given: Mapping[str, Any]) -> tuple[dict[str, Any], int | None, int]:
    """Arguments of all groups of Ray's cards together, the trainer's cards and those of the engine alone."""
    own = {name: table(given.get(name)) for name in GROUPS}
    if not own["train"] or not own["rollout"]:
        return dict(given), None, 0
    flat = {name: value for name, value in given.items() if name not in (*GROUPS, "colocate_groups", "use_ray")}
    sets = [set(map(str, group)) for group in given.get("colocate_groups") or () if isinstance(group, list)]
    together = any(set(GROUPS) <= group for group in sets)
    cards = {name: int(one["gpus"]) for name, one in own.items() if isinstance(one.get("gpus"), int)}
    for one in own.values():
        flat |= {name: value for name, value in one.items() if name != "gpus"}
    flat["vllm_mode"] = "colocate" if together else "server"
    return flat, cards.get("train"), 0 if together else cards.get("rollout", 0)


def generated(found: Reading, values: Watched, config: Config, apart: int) -> Reading:
    """The reading of a trainer as a question about it beside its engine.

    Args:
        apart: cards of the engine's own that Ray gives it; 0: none, or a script says them
    """
    options = {name: value for name, value in found.options.items() if name in KEPT}
    options.setdefault("recompute", "none")
    if found.options.get("shards") == "nothing":
        name = "optimizer" if values.get("optimizer") == "muon" else "use_distributed_optimizer"
        values.cannot(name, "keeps whole optimizer states on every rank, which is not modelled beside an engine")
    if values.count("mtp_num_layers"):
        values.cannot("mtp_num_layers", "its modules are loaded and compute nothing, which is not modelled")
    pairs = tuple(one for one in found.options.get("engine-option", ()) if not one.startswith("cross_entropy="))
    if options.get("offload-optimizer", "none") != "none":
        pairs = (*pairs, "steps_on_host=true")
    for name in ("recompute-layers", "recompute-modules"):
        if name in found.options and tuple(found.options[name]) != ("core_attn",):
            values.cannot(name.replace("-", "_"), "is not modelled beside an engine")
    said = read_options(ROLLOUT, values, unasked=True)
    whole, samples = int(found.options["global-batch"]), int(said["samples"])
    steps, at_once = said.pop("steps-per-generation", None), said.pop("generation-batch-size", None)
    generation = int(at_once or whole * int(steps or 1))
    if generation % samples or whole % samples:
        values.cannot("global_batch_size", "{} sequences, and {} of a generation, are no whole prompts of {} answers",
                      whole, generation, samples, option="mini-batch")
    apart = _apart(values, config, apart)
    if apart:
        said |= {"rollout-gpus": apart, "sleep": False}
        for name in ("trainer-sleep", "trainer-leaves"):
            said.pop(name, None)
    else:
        level = values.whole("sleep_level") or 0
        said |= {"sleep": level > 0} | ({"sleep-level": level} if level else {})
    values.must_be_off("vllm_enable_lora", "adapters that the engine keeps apart are not modelled")
    for name in ("teacher_model", "teacher_model_server"):
        values.must_be_unset(name, "a teacher beside GRPO is not modelled for megatron")
    lengths, notes = _lengths(values, said)
    if values.get("router_replay_mode") not in (None, "disabled"):
        notes.append(REPLAYED)
    asked = values.number("beta", 0.04) != 0
    if not asked and "peft" not in options:
        notes.append("beta 0: ms-swift loads a reference nevertheless, which is counted and not asked")
    options |= {
        **said, **lengths, "framework": "ms-swift", "rollout": "vllm", "algorithm": "grpo", "trainer-option": pairs,
        "prompts": max(1, generation // samples), "mini-batch": max(1, whole // samples),
        "micro-batch": found.options.get("micro-batch", 1), "reference": asked,
    }
    ranks = None if found.ranks is None else found.ranks + apart
    return found._replace(options=options, notes=(*found.notes, *notes), auto={}, ranks=ranks)


def _apart(values: Watched, config: Config, apart: int) -> int:
    """Cards of the engine's own: as the script that starts it, or Ray's groups, say."""
    mode = values.get("vllm_mode")
    if mode == "colocate":
        return 0
    text = "\n".join(line for line in config.text.splitlines() if not line.lstrip().startswith("#"))
    if not apart and (started := SERVER.search(text)):
        apart = len([card for card in started[1].split(",") if card])
    if not apart:
        values.refused["vllm_mode"] = Unread("vllm_mode", Note(
            "{} generates on a server's own cards, which the file does not count; --rollout-gpus does", mode or "server"
        ), option="rollout-gpus")
    return apart


def _lengths(values: Watched, said: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """Prompts, which `max_length` cuts, and answers; turns fill what the engine takes."""
    prompt, answer = values.count("max_length"), values.count("max_completion_length") or ANSWERS
    context, notes = said.get("context"), list[str]()
    if values.get("multi_turn_scheduler") and values.get("completion_length_limit_scope") != "total":
        if context is None or prompt is None or context <= prompt:
            values.cannot("multi_turn_scheduler", "answers in turns of max_completion_length tokens each; --{} says "
                          "how many come together", "response-len", option="response-len")
        else:
            answer = context - prompt
            notes.append("turns are taken to fill what vllm_max_model_len leaves of a sequence")
    if prompt is None:
        notes.append("max_length is not set: prompts are taken to have 512 tokens at most")
    elif context is not None and answer < context:
        prompt = min(prompt, context - answer)
    return {"response-len": answer} | ({} if prompt is None else {"prompt-len": prompt}), notes
