"""From options to a question about post-training: names resolved, defaults of the release filled in."""

from __future__ import annotations

from collections.abc import Mapping
from math import isqrt
from pathlib import Path
from statistics import fmean, pstdev
from typing import Any, Final

import msgspec.structs

from vramcast import sources
from vramcast.blocks.lengths import check_images, image_tokens, reads_images
from vramcast.catalogue.clusters import cluster_of
from vramcast.domain.job import Job, Plan, Precision, Recompute, Shards, require_count
from vramcast.domain.model import Model
from vramcast.domain.post_training import RATES, WITH_CRITIC, Episodes, PostTrainingJob, Rollout, Updates
from vramcast.domain.version import Version, check_version, version_text
from vramcast.engines.eager.trl import beta_of
from vramcast.engines.post_training.releases import FRAMEWORKS, Framework, Release
from vramcast.engines.training import PURE
from vramcast.errors import InvalidSpec, Note, UnknownName, Unsupported, joined
from vramcast.question.build import (
    Resolve,
    build_job,
    checkpoint_of,
    converted,
    engine_options,
    market_of,
    peft_of,
    refuse_peft_details,
    section,
    with_frozen_parts,
)
from vramcast.question.options import MARKET_OPTIONS, MODEL_OPTIONS, OPTIONS, given_of, parse, parse_count
from vramcast.question.serving import draft_of, parse_engine
from vramcast.question.tables import OF_TRL, POST_TRAINING_OPTIONS
from vramcast.units import ceil_div

TABLE: Final = POST_TRAINING_OPTIONS

OBJECTIVES: Final = {"grpo": "grpo", "dr-grpo": "grpo", "dapo": "grpo", "gspo": "grpo", "rloo": "rloo"}
"""Algorithm -> the trainer of TRL that runs it: losses that differ in weights alone are one trainer's."""

OF_OPENRLHF: Final = ("trainer-sleep", "trainer-option", "attention", "shards", "zero")
"""What DeepSpeed's processes of OpenRLHF leave to be asked."""

NOT_OF_OPENRLHF: Final = (
    "fused-loss", "layered-summon", "bucket-mib", "peft", "lora-rank", "lora-targets", "offload-parameters",
    "shard-group", "sharded-by", "reshard-after-forward",
)
"""What it is not asked, or what is not modelled with it."""

TRAINER_SAYS: Final = {
    "deepspeed": ("overlap_comm", "grad_accum_dtype"), "megatron":
    ("accumulate_in_fp32", "precision_aware", "steps_on_host", "mtp"), "pytorch": ("steps_on_host",),
}
"""Engine of the trainer -> what `--trainer-option` says of it."""

OF_SWIFT: Final = ("trainer-sleep", "trainer-leaves", "sleep-level", "handover-parts")
"""What ms-swift leaves to be asked, and TRL does not."""

SWIFT_ON_MEGATRON: Final = (*OF_SWIFT, "trainer-option", "lora-dropout", "modules-to-save")
"""What its trainer on Megatron leaves to be asked, too."""

TRL_OF_SWIFT: Final[Version] = (0, 29)
"""The newest TRL that ms-swift 4.6 allows [swift requirements/framework.txt]."""

UNSLOTH_ASKS: Final = {
    "peft": "lora", "lora-rank": 16, "base-weights": "nf4", "optimizer": "adamw-8bit",
    "lora-targets": "q_proj,k_proj,v_proj,o_proj,gate_proj,up_proj,down_proj",
}
"""Unsloth's network where nobody says another: frozen weights that vLLM keeps in 4 bits, and adapters of every layer
[unsloth models/llama.py `from_pretrained`, `get_peft_model`]."""

NOT_OF_TRL: Final = (
    "micro-tokens", "log-prob-micro-batch", "log-prob-tokens", "ulysses", "entropy", "entropy-kernel", "fused-loss",
    "padded", "reuse-log-prob", "offload-reference", "layered-summon", "bucket-mib", "reward-model",
    "reward-micro-batch", "reward-micro-tokens",
    "critic-model", "own-gpus",
)
"""What verl leaves to be asked, and TRL does not."""

SEES: Final = ("verl", "nemo-rl", "trl", "ms-swift")
"""Frameworks whose networks may have a tower for images; of verl's and NeMo-RL's trainers FSDP."""

PRECISIONS: Final = (Precision.MIXED_BF16, Precision.BF16)
"""fp32 weights computed in bf16, and weights, gradients and states in bf16 (`model_dtype`)."""


def build_post_training(options: Mapping[str, object], *, resolve: Resolve) -> PostTrainingJob:
    """The question that a set of options asks.

    Args:
        options: option names as in `POST_TRAINING_OPTIONS`, plus `model` and `gpus`
        resolve: turns the text of `model` into a network

    Raises: InvalidSpec or UnknownName with one sentence.
    """
    given = given_of(options, TABLE)
    values = {name: parse(name, value, TABLE) for name, value in given.items() if name not in ("model", "gpus")}
    if "gpus" not in given:
        raise InvalidSpec("which GPUs? give --gpus, for example --gpus 8xh100-sxm-80gb")
    steps = require_count("steps", values["steps"]) if "steps" in values else None
    algorithm = values.get("algorithm", "grpo")
    framework, version = _framework(str(values.get("framework", "verl")))
    known = FRAMEWORKS[framework]
    release = next(one for one in known.releases if version >= one.since)
    _refuse_contradictions(values, algorithm, serves=release.serves_reward)
    rollout, rollout_version = _rollout(values, known, version)
    engine = values.get("engine", known.engine)
    if engine not in (known.engine, *known.others):
        raise Unsupported("{}'s trainer does not run with --engine {}; leave it out", framework, engine)
    cluster = cluster_of(str(given["gpus"]), market_of(values, TABLE))
    if values.get("ahead") and "rollout-gpus" not in values and cluster.count > 1:  # where a search for them begins
        values["rollout-gpus"] = max(1, cluster.num_nodes // 2) * cluster.gpus_per_node if cluster.num_nodes > 1 else (
            cluster.count // 2)
    if values.get("rollout-gpus", 0) >= cluster.count:
        raise InvalidSpec(
            "rollout-gpus={} leaves none of {} GPUs to the trainer", values["rollout-gpus"], cluster.count
        )
    model = checkpoint_of(given.get("model"), values, resolve, TABLE).model
    if engine == "pytorch":
        divides = ("tp",) if framework == "nemo-rl" else ()
        for name in ("tp", "pp", "cp", "ep", "etp", "virtual-stages"):
            if values.get(name, 1) > 1 and name not in divides:
                raise Unsupported(
                    "--{} splits the trainer under Megatron; add --engine megatron, or for the engine that generates "
                    "give --rollout-tp", name
                )
    crosses = any(run.layer.cross_attention is not None for run in model.main.runs)
    of_prompts = reads_images(model) and not crosses
    still = framework == "ms-swift" and {"towers", "projectors"} <= set(values.get("freeze", ()))
    sees = of_prompts and framework in SEES and (engine != "megatron" or still)
    if of_prompts and engine == "megatron" and values.get("images") != 0 and not still:
        raise Unsupported("{} reads images, which are modelled for post-training under Megatron in no prompt; "
                          "--images 0 answers for prompts of text", model.name)
    if len(model.stacks) > 1 and not (sees or (of_prompts and engine == "megatron")):
        raise Unsupported("{} has several stacks, which is not modelled for post-training with {}; use one of text",
                          model.name, framework)
    if not reads_images(model) and values.get("images") == 0 and "image-size" not in values:
        del values["images"]  # as files of frameworks say whatever the network is
    if not reads_images(model) and {"images", "image-size"} & values.keys():
        raise InvalidSpec("{} reads no images; leave image-size and images out", model.name)
    deviation = _deviation(values)
    episodes = converted(Episodes, section(values, "episodes", TABLE) | deviation)
    episodes, of_text = _with_images(model, episodes)
    release_of_trl = TRL_OF_SWIFT if framework == "ms-swift" else version
    of_trainer = engine == "huggingface"
    if of_trainer or framework == "ms-swift":
        _check_trainer(given, framework, algorithm, of_trl=of_trainer)
    trainer = _trl(given, framework, release_of_trl, algorithm, episodes, resolve) if of_trainer else None
    updates = converted(Updates, {
        "padded": release.pads and engine != "megatron", "mini_batch": min(Updates().mini_batch, episodes.prompts),
        **({} if "micro-tokens" in values else {"micro_batch": release.micro_batch}),
        **({} if trainer is None else {"reference": bool(beta_of(trainer))}),
        **(_of_openrlhf(values, release) if framework == "openrlhf" else {}),
        **section(values, "updates", TABLE), **({"entropy": True} if release.learns_entropy else {}),
    })
    if trainer is not None:
        return PostTrainingJob(
            model=trainer.model, cluster=cluster, framework=framework, version=version, algorithm=algorithm,
            episodes=episodes, updates=updates, plan=trainer.plan, rollout=_engine_part(values, resolve, sleeps=False),
            engine=engine, rollout_engine=rollout, rollout_version=rollout_version, alloc_conf=trainer.alloc_conf,
            trainer=trainer, run_steps=steps,
            assumed=(*trainer.assumed, *of_text, *_assumed(values, framework, version, rollout, rollout_version)),
        )
    of_others = dict.fromkeys(OF_TRL, "TRL") | {"trainer-option": "TRL", "trainer-sleep": "OpenRLHF"}
    of_others |= dict.fromkeys(OF_SWIFT[1:], "ms-swift")
    if engine == "megatron":  # whose towers may be frozen
        del of_others["freeze"]
    if framework == "ms-swift":
        of_others = {name: whose for name, whose in of_others.items() if name not in SWIFT_ON_MEGATRON}
    options = engine_options(values.get("trainer-option", ()))
    for name, whose in of_others.items():
        of_trainer = name == "trainer-option" and engine in TRAINER_SAYS and (
            engine != "pytorch" or set(options) <= set(TRAINER_SAYS[engine]))
        if name in values and not of_trainer and not (framework == "openrlhf" and name in OF_OPENRLHF):
            raise Unsupported(
                "--{} is asked of {}'s trainers alone; leave it out, or add --framework {}", name, whose, whose.lower()
            )
    others: dict[str, Any] = {field: checkpoint_of(values[name], {}, resolve, TABLE).model
                              for name, field in OTHERS.items() if name in values}
    for name in options:  # Megatron checks its own
        if name not in TRAINER_SAYS[engine] and framework != "ms-swift":
            raise UnknownName.of("trainer option", name, TRAINER_SAYS[engine])
    asked = {"critic": algorithm in WITH_CRITIC, "reference": updates.reference, "reward": "reward" in others}
    own = _own_gpus(values, cluster.count, framework, asked)
    peft, passed_over = peft_of({"lora-targets": ("all-linear",), **values} if "peft" in values else values,
                                model, engine if framework == "ms-swift" else "huggingface", None, TABLE)
    if peft is not None and peft.method != "lora":
        raise Unsupported("{} trains LoRA and no other adapters; --peft {} is none", framework, peft.method)
    if updates.sleeps and version < STAGE_2_SLEEPS_SINCE and values.get("shards", values.get("zero")) != "everything":
        raise InvalidSpec("DeepSpeed up to 0.17.5 moves the states of stage 3 alone; add --zero 3, or leave out "
                          "--trainer-sleep")
    plan, evened = _evened(with_frozen_parts(model, _plan(values, peft, framework)), model.num_layers)
    offloads = "none" not in (plan.offload_parameters, plan.offload_optimizer)
    if engine == "pytorch" and options.get("steps_on_host") and (
            plan.sharded_by != "fsdp2" or peft is not None or not offloads):
        raise InvalidSpec("steps_on_host is FSDP2's CPUOffloadPolicy, of full fine-tuning here; add --sharded-by fsdp2 "
                          "--offload-parameters cpu --offload-optimizer cpu, and leave out --peft")
    return PostTrainingJob(
        model=model, cluster=cluster, framework=framework, version=version, algorithm=algorithm, episodes=episodes,
        updates=updates, plan=plan, rollout=_engine_part(values, resolve), engine=engine, trainer_options=options,
        own_gpus=own, **others,
        rollout_engine=rollout, rollout_version=rollout_version, alloc_conf=values.get("alloc-conf", ""),
        run_steps=steps,
        assumed=(*passed_over, *evened, *of_text, *_assumed(values, framework, version, rollout, rollout_version)),
    )


def _deviation(values: dict[str, Any]) -> dict[str, float]:
    """The deviation of answers that `--lengths` says; mean and, where nothing says it, limit go to `values`.

    Raises: InvalidSpec or SourceError for what says no lengths
    """
    if "lengths" not in values:
        return {}
    if "mean-response-len" in values:
        raise InvalidSpec("--lengths and --mean-response-len both say how long answers are; give one of them")
    mean, comma, spread = str(values["lengths"]).partition(",")
    if comma:
        found = parse_count("lengths", mean)
        deviation = float(parse_count("lengths", spread)) if spread.strip() != "0" else 0.0
        _check_spread(found, deviation, values.get("response-len"))
    else:
        lengths = sources.arrivals.read_lengths(Path(mean))
        values.setdefault("response-len", max(lengths))
        cut = [min(length, values["response-len"]) for length in lengths]
        found, deviation = max(1, round(fmean(cut))), pstdev(cut)
    values["mean-response-len"] = found
    return {"response_deviation": deviation}


def _with_images(model: Model, episodes: Episodes) -> tuple[Episodes, tuple[str, ...]]:
    """Prompts are of text where nobody says images and the usual one is longer than they are; and what is said of it.

    Raises: InvalidSpec for images that a prompt has no room for
    """
    least = min(episodes.prompt_len, episodes.mean_prompt_len or episodes.prompt_len)
    if episodes.images is None and episodes.image_size is None and (each := image_tokens(model, None)) > least:
        said = Note("prompts of text: those of {:,} tokens have no room for an image of {}, {:,}; --images and "
                    "--image-size say otherwise", least, model.name, each)
        return msgspec.structs.replace(episodes, images=0), (said,)
    check_images(model, 1 if episodes.images is None else episodes.images, episodes.image_size,
                 prompt_len=episodes.prompt_len, mean_prompt_len=episodes.mean_prompt_len)
    return episodes, ()


def _check_spread(mean: int, deviation: float, longest: int | None) -> None:
    """Lengths between 0 and a limit deviate by at most the root of mean (limit - mean) [tokens].

    Source: Bhatia and Davis, A Better Bound on the Variance, Am. Math. Monthly 107 (2000)
    """
    if longest is None:
        return
    if mean > longest:
        raise InvalidSpec("lengths: a mean of {} tokens is longer than response-len={}, the longest answer",
                          mean, longest)
    most = isqrt(mean * (longest - mean))
    if deviation > most + 1:
        raise InvalidSpec("lengths: answers of at most {} tokens and {} in the mean deviate by at most {}, not by {}; "
                          "give a larger --response-len or a smaller deviation", longest, mean, most, round(deviation))


ALIKE: Final = (("micro-batch", "micro-tokens"), ("log-prob-micro-batch", "log-prob-tokens"),
                ("critic-micro-batch", "critic-micro-tokens"),
                ("reward-micro-batch", "reward-micro-tokens"), ("zero", "shards"))
"""Options that say the same in two ways."""


def _refuse_contradictions(values: Mapping[str, Any], algorithm: str, *, serves: bool) -> None:
    """Raise InvalidSpec for options that say nothing beside the others, or the same twice.

    Args:
        serves: whether an engine serves the network that rates answers
    """
    refuse_peft_details(values)
    if values.get("layered-summon") and "peft" not in values:
        raise InvalidSpec("--layered-summon needs --peft lora")
    for name in ("critic-micro-batch", "critic-micro-tokens", "critic-model"):
        if name in values and algorithm not in WITH_CRITIC:
            raise InvalidSpec("--{} needs --algorithm ppo", name)
    for name in ("reward-micro-batch", "reward-micro-tokens", "reward-tp", "reward-fraction"):
        if name in values and "reward-model" not in values:
            raise InvalidSpec("--{} needs --reward-model", name)
        if name in values and serves is not name.endswith(("-tp", "-fraction")):
            raise InvalidSpec("--{} says nothing of how this release rates answers; leave it out", name)
    for name, other in ALIKE:
        if {name, other} <= values.keys():
            raise InvalidSpec("--{} and --{} say the same; give one of them", name, other)
    if values.get("ahead") and "rollout-gpus" not in values and values.get("find") != "fastest-step":
        raise InvalidSpec("--ahead needs --rollout-gpus: an engine on the trainer's cards waits while that learns")
    if values.get("lag", 1) > 1 and not values.get("ahead"):
        raise InvalidSpec("--lag needs --ahead: an engine that waits for the trainer has one step's answers to write")
    if values.get("fused-loss") and "entropy-kernel" in values:
        raise InvalidSpec("--entropy-kernel needs logits, which --fused-loss never makes; give one of them")


OTHERS: Final = {"reward-model": "reward", "critic-model": "critic"}
"""Option that names another network -> field of the question."""


def _own_gpus(
    values: Mapping[str, Any], gpus: int, framework: str, asked: Mapping[str, bool]
) -> dict[str, int]:
    """Cards of networks that have some of their own, as "critic+reward=4" says.

    Args:
        asked: network -> whether the question has it

    Raises: InvalidSpec or Unsupported for what leaves the trainer none, or cannot be
    """
    own: dict[str, int] = {}
    for pair in values.get("own-gpus", ()):
        names, _, count = str(pair).partition("=")
        for name in names.split("+"):
            if name not in RATES:
                raise UnknownName.of("network", name, RATES)
            if not asked[name] or name in "+".join(own).split("+"):
                raise InvalidSpec("--own-gpus {}: there is no {}, or it is named twice", pair, name)
        own[names] = require_count("own-gpus", parse_count("own-gpus", count))
    if own and framework != "openrlhf":
        raise Unsupported("--own-gpus is not modelled with {}; leave it out", framework)
    if own and "rollout-gpus" not in values:
        raise InvalidSpec("--own-gpus needs --rollout-gpus: an engine on the trainer's cards has all networks there")
    if (left := gpus - sum(own.values()) - values.get("rollout-gpus", 0)) < 1:
        raise InvalidSpec("own-gpus and rollout-gpus leave {} of {} GPUs to the trainer", left, gpus)
    return own


STAGE_2_SLEEPS_SINCE: Final[Version] = (0, 8, 11)
"""First OpenRLHF with DeepSpeed 0.17.6 [openrlhf/utils/deepspeed/deepspeed_utils.py `offload_deepspeed_states`]."""


def _of_openrlhf(values: Mapping[str, Any], release: Release) -> dict[str, Any]:
    """What OpenRLHF does where nobody says otherwise.

    Raises: Unsupported for what it does not do, or what is not modelled with it
    """
    for name in NOT_OF_OPENRLHF:
        if values.get(name):
            raise Unsupported("--{} is not modelled with OpenRLHF; leave it out", name)
    own: dict[str, Any] = {"reference": True}
    if not {"micro-tokens", "log-prob-tokens"} & values.keys():
        own["log_prob_micro_batch"] = release.rating_batch
    return own | ({"padded": False} if "micro-tokens" in values else {})  # they are packed


def _check_trainer(given: Mapping[str, object], framework: str, algorithm: str, *, of_trl: bool) -> None:
    """Raise Unsupported for what is not asked of trainers of TRL or ms-swift, and algorithms that none of them runs.

    Args:
        of_trl: whether the trainer is TRL's or a child of it, else Megatron's
    """
    whose = "ms-swift" if framework == "ms-swift" else "TRL"
    for name in (*NOT_OF_TRL, *(() if framework == "ms-swift" else OF_SWIFT)):
        if name in given:
            raise Unsupported("--{} is not asked of {}'s trainers; leave it out", name, whose)
    if "vllm" not in str(given.get("rollout", "vllm")) and framework != "unsloth":  # which says more
        raise Unsupported("{}'s trainers generate with vLLM; leave out --rollout {}", whose, given["rollout"])
    known = (*OBJECTIVES, *(() if of_trl else ("reinforce++",)))
    if algorithm not in known:
        raise Unsupported("--algorithm {} is not modelled with {}; use {}", algorithm, whose, joined(" or ", known))


def _trl(
    given: Mapping[str, object], framework: str, version: Version, algorithm: str, episodes: Episodes, resolve: Resolve
) -> Job:
    """The run as `vramcast train` is asked for it: TRL's trainer, whose answers come from elsewhere.

    Raises: Unsupported for what Unsloth does not run
    """
    own = {name: value for name, value in given.items()
           if name in ("model", "gpus", "alloc-conf", "image-size", "images", *MARKET_OPTIONS, *MODEL_OPTIONS)
           or (name in OPTIONS and OPTIONS[name].section in ("plan", "peft"))}
    if {"shards", "zero"} & given.keys() and "sharded-by" not in given:
        own["sharded-by"] = "deepspeed"  # as its documents' files of Accelerate have it
    pairs = tuple(parse("trainer-option", given.get("trainer-option", ()), TABLE))
    if framework == "unsloth":
        other = OBJECTIVES[algorithm] != "grpo" or "vllm" not in str(given.get("rollout", "vllm"))
        if other or "rollout-gpus" in given:
            raise Unsupported("Unsloth trains GRPO beside a vLLM in its own process; leave out --rollout-gpus, "
                              "other engines and algorithms")
        engine = {**_shared(own), "engine": f"unsloth@{version_text(version)}"}
    else:
        engine, pairs = {"engine": "huggingface"}, (f"trl={version_text(version)}", *pairs)
    return build_job({
        **own, **engine, "objective": OBJECTIVES[algorithm],
        "seq-len": episodes.prompt_len, "completion-len": episodes.response_len,
        **({"images": 0} if episodes.images == 0 else {}),
        "engine-option": ("steps_per_generation=0", *pairs),
    }, resolve=resolve)


def _shared(own: Mapping[str, object]) -> dict[str, object]:
    """The network that Unsloth's trainer shares with its vLLM.

    Raises: Unsupported for what vLLM keeps otherwise
    """
    found = {**UNSLOTH_ASKS, **own}
    base, peft = str(found["base-weights"]), str(found["peft"])
    if base not in ("full", "nf4", "nf4-dq") or peft != "lora":
        raise Unsupported("Unsloth shares weights in 16 or 4 bits with its vLLM, beside LoRA; --base-weights {} with "
                          "--peft {} is not modelled", base, peft)
    return found | {"base-weights": base.removesuffix("-dq")}  # whose scales it unpacks [bitsandbytes_loader.py]


def _engine_part(values: Mapping[str, Any], resolve: Resolve, *, sleeps: bool = True) -> Rollout:
    """What the question says of the engine that generates.

    Args:
        sleeps: where the question does not say
    """
    fields = {"sleeps": sleeps, **section(values, "rollout", TABLE), **draft_of(values, resolve, "rollout-")}
    rollout: Rollout = converted(Rollout, fields | {"engine_options": engine_options(fields.get("engine_options", ()))})
    return rollout


def _framework(text: str) -> tuple[str, Version]:
    """Framework and version of "verl@0.6"."""
    name, at, version = text.strip().lower().partition("@")
    if name not in FRAMEWORKS:
        raise UnknownName.of("framework", name, FRAMEWORKS)
    known = FRAMEWORKS[name]
    return name, check_version(name, version, oldest=known.oldest, newest=known.newest) if at else known.default


def _rollout(values: Mapping[str, Any], known: Framework, version: Version) -> tuple[str, Version]:
    """The engine that generates; without a version the one that the framework's release names."""
    text = str(values.get("rollout", known.rollout))
    name, found = parse_engine(text)
    release = next(one for one in known.releases if version >= one.since)
    named = {"vllm": release.vllm, "sglang": release.sglang}
    return name, found if "@" in text else named.get(name, found)


def _plan(values: Mapping[str, Any], peft: Any, framework: str) -> Plan:
    """How the network that learns is kept.

    Raises: Unsupported for what the framework does not do
    """
    deepspeed = framework == "openrlhf"
    fields: dict[str, Any] = {
        "precision": Precision.MIXED_BF16, "recompute": Recompute.NONE if deepspeed else Recompute.FULL,
        "shards": Shards.OPTIMIZER_AND_GRADIENTS if deepspeed else Shards.EVERYTHING, **section(values, "plan", TABLE),
    }
    fields["precision"] = PURE.get(fields["precision"], fields["precision"])
    able = PRECISIONS[:1] if deepspeed else PRECISIONS
    if fields["precision"] not in able:
        raise Unsupported(
            "{} trains in {}; --precision {} is none of them", framework, joined(" or ", able), fields["precision"]
        )
    if not deepspeed and fields["shards"] is not Shards.EVERYTHING and fields["shards"] != Shards.EVERYTHING.value:
        raise Unsupported("{} shards everything; leave out --shards and --zero", framework)
    if "nvme" in (fields.get("offload_parameters"), fields.get("offload_optimizer")):
        raise Unsupported("{} offloads to main memory only; use cpu", framework)
    plan: Plan = converted(Plan, {**fields, "peft": peft})
    return plan


def _evened(plan: Plan, layers: int) -> tuple[Plan, tuple[str, ...]]:
    """Pipeline stages of nearly as many layers, where the question says none and they do not divide; and what is said.

    The stages in between have as many as the largest; what is left is shared by the first and the last.
    """
    stages = plan.pp * plan.virtual_stages
    if layers % stages == 0 or plan.first_stage_layers or plan.last_stage_layers or plan.virtual_stages > 1:
        return plan, ()
    each = ceil_div(layers, plan.pp)
    while plan.pp > 2 and layers - each * (plan.pp - 2) < 2:
        each -= 1
    ends = layers - each * (plan.pp - 2)
    first, last = ends - ends // 2, ends // 2
    said = Note("stages of {}, {} and {} layers: {} do not divide by pp={}", first, each, last, layers, plan.pp)
    return msgspec.structs.replace(plan, first_stage_layers=first, last_stage_layers=last), (said,)


def _assumed(
    values: Mapping[str, Any], framework: str, version: Version, engine: str, engine_version: Version
) -> tuple[str, ...]:
    """What the question leaves open of the releases."""
    found: list[str] = []
    if "framework" not in values:
        found.append(Note("{} {}; --framework {}@VERSION says otherwise", framework, version_text(version), framework))
    if "@" not in str(values.get("rollout", "")):
        found.append(Note(
            "{} {}, which goes with that release; --rollout says otherwise", engine, version_text(engine_version)
        ))
    known = FRAMEWORKS[framework]
    if framework == "unsloth" and "peft" not in values:
        found.append("LoRA of rank 16 over weights in 4 bits, as Unsloth loads and adapts them; --peft lora with "
                     "--lora-rank and --base-weights says otherwise")
    micro_batch = next(one for one in known.releases if version >= one.since).micro_batch
    if micro_batch is not None and not {"micro-batch", "micro-tokens"} & set(values):
        found.append(Note(
            "micro-batches of {} sequences, {}'s default; --micro-batch says otherwise", micro_batch, framework
        ))
    return tuple(found)
