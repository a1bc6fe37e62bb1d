"""From options to a question about post-training: names resolved, defaults of the release filled in."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec.structs

from vramcast.catalogue.clusters import cluster_of
from vramcast.domain.job import Job, Plan, Precision, Recompute, Shards, require_count
from vramcast.domain.post_training import WITH_CRITIC, Episodes, PostTrainingJob, Rollout, Updates
from vramcast.domain.version import Version, check_version, version_text
from vramcast.engines.eager.trl import beta_of
from vramcast.engines.post_training.releases import FRAMEWORKS, Framework
from vramcast.engines.training import PURE
from vramcast.errors import InvalidSpec, UnknownName, Unsupported
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
)
from vramcast.question.options import MARKET_OPTIONS, MODEL_OPTIONS, OPTIONS, parse
from vramcast.question.post_training_options import OF_TRL, POST_TRAINING_OPTIONS
from vramcast.question.serving import parse_engine
from vramcast.units import ceil_div

TABLE: Final = POST_TRAINING_OPTIONS

TRL_MICRO_BATCH: Final = 8
"""`per_device_train_batch_size` of transformers' TrainingArguments."""

OBJECTIVES: Final = {"grpo": "grpo", "dr-grpo": "grpo", "dapo": "grpo", "gspo": "grpo", "rloo": "rloo"}
"""Algorithm -> the trainer of TRL that runs it: losses that differ in weights alone are one trainer's."""

NOT_OF_TRL: Final = (
    "micro-tokens", "log-prob-micro-batch", "log-prob-tokens", "ulysses", "entropy", "entropy-kernel", "fused-loss",
    "padded", "reuse-log-prob", "offload-reference", "layered-summon", "bucket-mib",
)
"""What verl leaves to be asked, and TRL does not."""

PRECISIONS: Final = (Precision.MIXED_BF16, Precision.BF16)
"""fp32 weights computed in bf16, and weights, gradients and states in bf16 (`model_dtype`)."""


def build_post_training(options: Mapping[str, object], *, resolve: Resolve) -> PostTrainingJob:
    """The question that a set of options asks.

    Args:
        options: option names as in `POST_TRAINING_OPTIONS`, plus `model` and `gpus`
        resolve: turns the text of `model` into a network

    Raises: InvalidSpec or UnknownName with one sentence.
    """
    given = {name: value for name, value in options.items() if value is not None}
    for name in given:
        if name not in ("model", "gpus", *TABLE):
            raise UnknownName.of("option", name, ("model", "gpus", *TABLE))
    values = {name: parse(name, value, TABLE) for name, value in given.items() if name not in ("model", "gpus")}
    if "gpus" not in given:
        raise InvalidSpec("which GPUs? give --gpus, for example --gpus 8xh100-sxm-80gb")
    steps = require_count("steps", values["steps"]) if "steps" in values else None
    algorithm = values.get("algorithm", "grpo")
    _refuse_contradictions(values, algorithm)
    framework, version = _framework(str(values.get("framework", "verl")))
    known = FRAMEWORKS[framework]
    rollout, rollout_version = _rollout(values, known, version)
    engine = values.get("engine", known.engine)
    if (engine == "huggingface") != (framework == "trl"):
        raise Unsupported(f"{framework}'s trainer does not run with --engine {engine}; leave it out")
    cluster = cluster_of(str(given["gpus"]), market_of(values, TABLE))
    if values.get("rollout-gpus", 0) >= cluster.count:
        raise InvalidSpec(f"rollout-gpus={values['rollout-gpus']} leaves none of {cluster.count} GPUs to the trainer")
    model = checkpoint_of(given.get("model"), values, resolve, TABLE).model
    if engine == "pytorch":
        for name in ("tp", "pp", "cp", "ep", "etp", "virtual-stages"):
            if values.get(name, 1) > 1:
                raise Unsupported(f"--{name} splits the trainer under Megatron; add --engine megatron, or for the "
                                  "engine that generates give --rollout-tp")
    if len(model.stacks) > 1:
        raise Unsupported(f"{model.name} has several stacks, which is not modelled for post-training; use one of text")
    episodes = converted(Episodes, section(values, "episodes", TABLE))
    release = next(one for one in known.releases if version >= one.since)
    trainer = _trl(given, version, algorithm, episodes, resolve) if framework == "trl" else None
    updates = converted(Updates, {
        "padded": release.pads and engine != "megatron", "mini_batch": min(Updates().mini_batch, episodes.prompts),
        **({} if trainer is None else {"micro_batch": TRL_MICRO_BATCH, "reference": bool(beta_of(trainer))}),
        **section(values, "updates", TABLE), **({"entropy": True} if release.learns_entropy else {}),
    })
    if trainer is not None:
        return PostTrainingJob(
            model=trainer.model, cluster=cluster, framework=framework, version=version, algorithm=algorithm,
            episodes=episodes, updates=updates, plan=trainer.plan, rollout=_engine_part(values, sleeps=False),
            engine=engine, rollout_engine=rollout, rollout_version=rollout_version, alloc_conf=trainer.alloc_conf,
            trainer=trainer, run_steps=steps,
            assumed=(*trainer.assumed, *_assumed(values, framework, version, rollout, rollout_version)),
        )
    for name in (*OF_TRL, "trainer-option"):
        if name in values:
            raise Unsupported(f"--{name} is asked of TRL's trainers alone; leave it out, or add --framework trl")
    peft, passed_over = peft_of({"lora-targets": ("all-linear",), **values} if "peft" in values else values,
                                model, "huggingface", None, TABLE)
    if peft is not None and peft.method != "lora":
        raise Unsupported(f"{framework} trains LoRA and no other adapters; --peft {peft.method} is none")
    plan, evened = _evened(_plan(values, peft, framework), model.num_layers)
    return PostTrainingJob(
        model=model, cluster=cluster, framework=framework, version=version, algorithm=algorithm, episodes=episodes,
        updates=updates, plan=plan, rollout=_engine_part(values), engine=engine,
        rollout_engine=rollout, rollout_version=rollout_version, alloc_conf=values.get("alloc-conf", ""),
        run_steps=steps,
        assumed=(*passed_over, *evened, *_assumed(values, framework, version, rollout, rollout_version)),
    )


ALIKE: Final = (("micro-batch", "micro-tokens"), ("log-prob-micro-batch", "log-prob-tokens"),
                ("critic-micro-batch", "critic-micro-tokens"), ("zero", "shards"))
"""Options that say the same in two ways."""


def _refuse_contradictions(values: Mapping[str, Any], algorithm: str) -> None:
    """Raise InvalidSpec for options that say nothing beside the others, or the same twice."""
    refuse_peft_details(values)
    if values.get("layered-summon") and "peft" not in values:
        raise InvalidSpec("--layered-summon needs --peft lora")
    for name in ("critic-micro-batch", "critic-micro-tokens"):
        if name in values and algorithm not in WITH_CRITIC:
            raise InvalidSpec(f"--{name} needs --algorithm ppo")
    for name, other in ALIKE:
        if {name, other} <= values.keys():
            raise InvalidSpec(f"--{name} and --{other} say the same; give one of them")
    if values.get("ahead") and "rollout-gpus" not in values:
        raise InvalidSpec("--ahead needs --rollout-gpus: an engine on the trainer's cards waits while that learns")
    if values.get("fused-loss") and "entropy-kernel" in values:
        raise InvalidSpec("--entropy-kernel needs logits, which --fused-loss never makes; give one of them")


def _trl(
    given: Mapping[str, object], version: Version, algorithm: str, episodes: Episodes, resolve: Resolve
) -> Job:
    """The run as `vramcast train` is asked for it: TRL's trainer, whose answers come from elsewhere.

    Raises: Unsupported for algorithms that no trainer here runs
    """
    for name in NOT_OF_TRL:
        if name in given:
            raise Unsupported(f"--{name} is not asked of TRL's trainers; leave it out")
    if algorithm not in OBJECTIVES:
        raise Unsupported(f"--algorithm {algorithm} is not modelled with TRL; use {' or '.join(OBJECTIVES)}")
    own = {name: value for name, value in given.items()
           if name in ("model", "gpus", "alloc-conf", *MARKET_OPTIONS, *MODEL_OPTIONS)
           or (name in OPTIONS and OPTIONS[name].section in ("plan", "peft"))}
    if {"shards", "zero"} & given.keys() and "sharded-by" not in given:
        own["sharded-by"] = "deepspeed"  # as its documents' files of Accelerate have it
    pairs = tuple(parse("trainer-option", given.get("trainer-option", ()), TABLE))
    return build_job({
        **own, "engine": "huggingface", "objective": OBJECTIVES[algorithm],
        "seq-len": episodes.prompt_len, "completion-len": episodes.response_len,
        "engine-option": (f"trl={version_text(version)}", "steps_per_generation=0", *pairs),
    }, resolve=resolve)


def _engine_part(values: Mapping[str, Any], *, sleeps: bool = True) -> Rollout:
    """What the question says of the engine that generates.

    Args:
        sleeps: where the question does not say
    """
    fields = {"sleeps": sleeps, **section(values, "rollout", TABLE)}
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
    text = str(values.get("rollout", "vllm"))
    name, found = parse_engine(text)
    release = next(one for one in known.releases if version >= one.since)
    named = {"vllm": release.vllm, "sglang": release.sglang}
    return name, found if "@" in text else named.get(name, found)


def _plan(values: Mapping[str, Any], peft: Any, framework: str) -> Plan:
    """How the network that learns is kept.

    Raises: Unsupported for what the framework does not do
    """
    fields: dict[str, Any] = {
        "precision": Precision.MIXED_BF16, "recompute": Recompute.FULL, "shards": Shards.EVERYTHING,
        **section(values, "plan", TABLE),
    }
    fields["precision"] = PURE.get(fields["precision"], fields["precision"])
    if fields["precision"] not in PRECISIONS:
        raise Unsupported(f"{framework} trains in {' or '.join(PRECISIONS)}; --precision {fields['precision']} is "
                          "neither")
    if fields["shards"] is not Shards.EVERYTHING and fields["shards"] != Shards.EVERYTHING.value:
        raise Unsupported(f"{framework} shards everything; leave out --shards and --zero")
    if "nvme" in (fields.get("offload_parameters"), fields.get("offload_optimizer")):
        raise Unsupported(f"{framework} offloads to main memory only; use cpu")
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
    said = f"stages of {first}, {each} and {last} layers: {layers} do not divide by pp={plan.pp}"
    return msgspec.structs.replace(plan, first_stage_layers=first, last_stage_layers=last), (said,)


def _assumed(
    values: Mapping[str, Any], framework: str, version: Version, engine: str, engine_version: Version
) -> tuple[str, ...]:
    """What the question leaves open of the releases."""
    found = []
    if "framework" not in values:
        found.append(f"{framework} {version_text(version)}; --framework {framework}@VERSION says otherwise")
    if "@" not in str(values.get("rollout", "")):
        found.append(f"{engine} {version_text(engine_version)}, which goes with that release; --rollout says otherwise")
    if framework == "trl":
        if "micro-batch" not in values:
            found.append(f"micro-batches of {TRL_MICRO_BATCH} sequences (per_device_train_batch_size), the Trainer's "
                         "default; --micro-batch says otherwise")
    elif not {"micro-batch", "micro-tokens"} & set(values):
        found.append("dynamic micro-batches of 16,384 tokens on each card, verl's default budget; --micro-batch or "
                     "--micro-tokens says otherwise")
    return tuple(found)
