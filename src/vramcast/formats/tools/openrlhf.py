"""OpenRLHF: `python -m openrlhf.cli.train_ppo_ray --name value ...`, its names of 0.10.2 and later and those before.

[openrlhf] OpenRLHF/OpenRLHF 3c3be62 (0.11.0) openrlhf/cli/train_ppo_ray.py; v0.6.4 to v0.10.1, whose names have no
points: prompts and answers have limits of their own up to 0.9.6, weights are bf16 where --bf16 says so up to 0.9.1
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

from vramcast.catalogue.formats import load_format, renamed
from vramcast.domain.version import Version, read_version
from vramcast.errors import Note
from vramcast.formats.reading import NOT_MODELLED, Config, Reading, Unread, arguments, command_of
from vramcast.formats.table import Row, read_options
from vramcast.formats.unread import options_of_environment, unread_by_engines
from vramcast.formats.watched import Known, Watched

NAMES: Final = Known("openrlhf", "options")
PROGRAM: Final = re.compile(r"\bopenrlhf[./]cli[./](?:train_ppo_ray|train_ppo)\b")
RELEASE: Final = re.compile(r"\bopenrlhf(?:\[\w+\])?(?:==|@v|:)(\d+\.\d+(?:\.\d+)?)")
"""In a pin of the package, or the tag of an image."""

RENAMED: Final = renamed("openrlhf", "options")
"""Names up to 0.10.1 -> those since."""

ESTIMATORS: Final = {
    "gae": "ppo", "reinforce": "reinforce++", "reinforce_baseline": "reinforce++", "rloo": "rloo",
    "group_norm": "grpo", "dr_grpo": "dr-grpo",
}

ROWS: Final = (
    Row("prompts", "rollout.batch_size", 1024),
    Row("samples", "rollout.n_samples_per_prompt", 1),
    Row("epochs", "train.max_epochs", 1),
    Row("ulysses", "ds.ring_attn_size", 1),
    Row("rollout_tp", "vllm.tensor_parallel_size", 1),
    Row("memory_fraction", "vllm.gpu_memory_utilization", 0.95),
    Row("graphs", "vllm.enforce_eager", True, words={"true": False, "false": True}),
    Row("trainer_sleep", "ds.enable_sleep", False),
    Row("zero", "ds.zero_stage", "2", words={"2": "2", "3": "3"}),
    Row("offload_optimizer", "ds.adam_offload", "none", words={"true": "cpu", "false": "none"}),
    Row("offload_reference", "ref.offload", False),
    Row("recompute", "actor.gradient_checkpointing_enable", "none", words={"true": "full", "false": "none"}),
    Row("algorithm", "algo.advantage.estimator", "ppo", words=ESTIMATORS),
    Row("attention", "ds.attn_implementation", "flash", words={
        "flash_attention_2": "flash", "eager": "eager", "sdpa": "efficient"}),
)
"""What one name says alone, and its own default."""

REFUSED: Final = {
    "ds.load_in_4bit": NOT_MODELLED, "ds.use_liger_kernel": NOT_MODELLED, "ds.deepcompile": NOT_MODELLED,
    "torch_compile": NOT_MODELLED, "train.enable_ema": "a second copy of the weights is not modelled",
    "reward.offload": NOT_MODELLED, "actor.freeze_visual_encoder": "towers of images are not modelled",
    "data.max_images_per_prompt": "towers of images are not modelled",
    "ds.lora.rank": "adapters are not modelled for OpenRLHF", "pretrain_data": "a second loss is not modelled",
}
"""What must be off."""

APART_SINCE: Final = (0, 9, 8)
"""First release without limits of prompts and answers of their own."""

BF16_SINCE: Final = (0, 9, 2)
"""First release whose weights are bf16 unasked (`--param_dtype`)."""


def read(config: Config) -> Reading:
    """Options of a command."""
    command = command_of(config, lambda words: sum(PROGRAM.search(word) is not None for word in words))
    place = next((place for place, word in enumerate(command.words) if PROGRAM.search(word)), 0)
    given = arguments(command.words[place + 1 :])  # those before are of what starts it
    if command.words[place : place + 1] and command.words[place].endswith("train_ppo"):
        return Reading("openrlhf", {}, unread=(Unread("train_ppo", "is a trainer without Ray, which is not modelled"),))
    found = reading(given, config.text, undecided=command.undecided)
    options = options_of_environment(command.variables) | found.options
    unread = (*found.unread, *command.unread, *unread_by_engines(command.variables))
    return found._replace(options=options, unread=unread, notes=(*found.notes, *command.notes))


def reading(given: Mapping[str, Any], text: str = "", undecided: Mapping[str, str] = {}) -> Reading:
    """What its arguments say.

    Args:
        given: names without dashes, of any release
        text: of the whole file, which may name a release
        undecided: names that hang on a branch of the script -> what would say them
    """
    release = _release(given, text)
    values = Watched({RENAMED.get(name, name): value for name, value in given.items()}, NAMES, undecided=undecided)
    options: dict[str, Any] = {"framework": f"openrlhf@{release}", "engine": "deepspeed", "rollout": "vllm",
                               **read_options(ROWS, values, unasked=True)}
    options |= _networks(values, options["algorithm"]) | _losses(values) | _lengths(values, release)
    options |= _batches(values, options) | _of_deepspeed(values)
    placed, ranks, nodes = _placed(values, options)
    _refuse(values, release)
    notes = tuple(_notes(values))
    return Reading("openrlhf", options | placed, unread=tuple(values.unread()), notes=notes, ranks=ranks, nodes=nodes)


def version_of(text: str) -> Version:
    """A release as numbers; what is none is as old as can be."""
    return read_version(text) or ()


def _release(given: Mapping[str, Any], text: str) -> str:
    """What the file names; else the newest that has all of its names."""
    if named := RELEASE.search(text):
        return named[1]
    known = load_format("openrlhf")
    gone = [known.removed["options"][name].removeprefix("last in v") for name in given
            if name in known.removed["options"]]
    return min(gone, key=version_of) if gone else "0.11"


def _networks(values: Watched, algorithm: str) -> dict[str, Any]:
    """The network that learns, and those that rate it: a critic is the reward network's twin unasked."""
    model, rating, critic = (values.text(f"{role}.model_name_or_path") for role in ("actor", "reward", "critic"))
    functions = ("reward.remote_url", "train.agent_func_path")
    values |= dict.fromkeys((name for name in functions if dict.get(values, name) is not None), "a function")
    asked = sum(values.get(name) is not None for name in functions) > 0  # which one it is says nothing
    found: dict[str, Any] = {} if model is None else {"model": model}
    if rating is not None and not asked:
        if "," in rating:
            values.cannot("reward.model_name_or_path", "names several networks, which is not modelled")
        found["reward-model"] = rating
    elif not asked:
        values.cannot("reward.model_name_or_path", "is set nowhere, nor is reward.remote_url, where OpenRLHF stops",
                      option="reward-model")
    critic = critic or (rating if not asked else None)
    if algorithm == "ppo" and critic is not None and critic != model:
        found["critic-model"] = critic
    return found


def _losses(values: Watched) -> dict[str, Any]:
    coefficient = values.number("algo.kl.init_coef")
    return {"reference": coefficient is None or coefficient > 0, "entropy": bool(values.number("actor.entropy_coef"))}


def _lengths(values: Watched, release: str) -> dict[str, Any]:
    """Limits; where only that of a whole sequence is said, a quarter of it is taken for the prompt."""
    if version_of(release) < APART_SINCE:
        prompt, written = (values.count(name) or 1024 for name in ("prompt_max_len", "generate_max_len"))
        limit = values.count("data.max_len")
        return {"prompt-len": prompt, "response-len": written, **({} if limit is None else {"context": limit})}
    whole = values.count("data.max_len") or 2048
    answer = values.count("rollout.max_new_tokens")
    if answer is None or answer >= whole:
        answer = whole - whole // 4
    return {"prompt-len": whole - answer, "response-len": answer}


def _of_deepspeed(values: Watched) -> dict[str, Any]:
    overlaps = values.flag("ds.overlap_comm")
    width = values.one_of("ds.grad_accum_dtype", {"fp32": "fp32", "bf16": "bf16"})
    said = (*(("overlap_comm=true",) if overlaps else ()), *((f"grad_accum_dtype={width}",) if width else ()))
    return {"trainer-option": said} if said else {}


def _batches(values: Watched, options: Mapping[str, Any]) -> dict[str, Any]:
    """Sequences of an optimizer step as prompts; micro-batches of both passes."""
    learned, samples = values.count("train.batch_size") or 128, int(options["samples"] or 1)
    found: dict[str, Any] = {"mini-batch": max(1, learned // samples)}
    if learned % samples:
        values.cannot("train.batch_size", "is no multiple of n_samples_per_prompt={}, which is not modelled", samples)
    dynamic, ring = values.flag("train.dynamic_batch_enable"), int(options["ulysses"] or 1) > 1
    sizes = {"micro-batch": values.count("train.micro_batch_size"),
             "log-prob-micro-batch": values.count("rollout.micro_batch_size")}
    budget, rated = values.count("train.max_tokens_per_gpu") or 16192, values.count("rollout.max_tokens_per_gpu")
    if dynamic:
        found |= {"micro-tokens": budget, "log-prob-tokens": rated or budget}
    else:
        found |= {name: size for name, size in sizes.items() if size is not None}
    return found | {"padded": not (values.flag("ds.packing_samples") or dynamic or ring)}


def _placed(values: Watched, options: Mapping[str, Any]) -> tuple[dict[str, Any], int | None, int]:
    """Cards of the engine's own, all cards, and machines."""
    def cards(role: str) -> int:
        return (values.count(f"{role}.num_nodes") or 1) * (values.count(f"{role}.num_gpus_per_node") or 8)

    engines, tp = values.whole("vllm.num_engines"), int(options["rollout-tp"] or 1)
    actor, sleeps = cards("actor"), bool(values.flag("vllm.enable_sleep"))
    asked = {"ref": options["reference"], "critic": options["algorithm"] == "ppo", "reward": "reward-model" in options}
    others = {role: cards(role) for role in asked}
    nodes = values.count("actor.num_nodes") or 1
    if not engines:
        values.cannot("vllm.num_engines", "is set nowhere: generation by the trainer's own network is not modelled")
        return {}, None, 1
    together, ahead = values.flag("train.colocate_all"), bool(values.flag("train.async_enable"))
    beside, rating = (values.flag(f"train.colocate_{pair}") for pair in ("actor_ref", "critic_reward"))
    own: dict[str, int] = {}
    for role in (role for role, is_there in asked.items() if is_there):
        if together or (beside and role == "ref"):
            if others[role] != actor:
                values.cannot(f"{role}.num_gpus_per_node", "other than the actor's cannot be colocated with it")
        elif role == "reward" and rating and "critic" in own:
            own["critic+reward"] = own.pop("critic")
        else:
            own["reference" if role == "ref" else role] = others[role]
    if together and not ahead:
        if engines * tp != actor:
            values.cannot("vllm.num_engines", "x tensor_parallel_size = {} must be the {} cards of the actor",
                          engines * tp, actor)
        return {"sleep": sleeps}, actor, nodes
    apart = {"own-gpus": tuple(f"{roles}={count}" for roles, count in own.items())} if own else {}
    every = actor + engines * tp + sum(own.values())
    return {"rollout-gpus": engines * tp, **apart, **({"ahead": True} if ahead else {})}, every, 1


def _refuse(values: Watched, release: str) -> None:
    """What is not modelled, by name."""
    for name, why in REFUSED.items():
        if values.get(name) not in (None, False, 0):
            values.cannot(name, why)
    values.get("flash_attn")
    if version_of(release) < (0, 8, 9) and not values.flag("flash_attn"):
        values.cannot("ds.attn_implementation", "is not flash_attn: attention that writes its scores is not modelled")
    if version_of(release) < BF16_SINCE and not values.flag("bf16"):
        values.cannot("bf16", "is not set: weights of other types are not modelled")


def _notes(values: Watched) -> Iterator[str]:
    """What is left out of an answer and does not change its memory."""
    if (values.count("ds.ring_attn_size") or 1) > 1:
        yield "ring attention is counted as Ulysses: the keys and values that ranks hand round a ring are left out"
    if values.get("algo.dynamic_filtering_enable"):
        yield "prompts that are generated and filtered out again are not timed"
    if values.get("train.agent_func_path"):
        yield "what tools answer counts as tokens of the answer, and waiting for them is not timed"
    generated, kept = values.count("rollout.vllm_generate_batch_size"), values.count("rollout.batch_size")
    if generated and generated != kept:
        yield Note(
            "vllm_generate_batch_size={}: the time to generate is that of the {} prompts kept", generated, kept or 1024
        )
