"""From options to a search: the space of plans, its limits, and what was assumed where nothing was said."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, NamedTuple

from msgspec.structs import replace

from vramcast.catalogue.clusters import cluster_of
from vramcast.catalogue.machines import offers
from vramcast.domain.answer import Answer
from vramcast.domain.device import Cluster
from vramcast.domain.job import Job, Plan, Precision, Recompute, Shards, Workload, require_count
from vramcast.domain.model import Model
from vramcast.domain.planning import Goal, Limits, PlanAnswer, Space
from vramcast.engines.training import PURE, TRAINING
from vramcast.errors import InvalidSpec, Note, UnknownName
from vramcast.question.build import (
    Resolve,
    build_job,
    checkpoint_of,
    converted,
    default_engine,
    engine_options,
    market_of,
    peft_of,
    refuse_peft_details,
    section,
    training_engine,
    with_lengths,
)
from vramcast.question.option import headroom_of, parse_hours, parse_money
from vramcast.question.options import OPTIONS, ZERO, given_of, parse, parse_count
from vramcast.question.tables import AXES, PLAN_OPTIONS, TECHNIQUES, Allowance
from vramcast.search.inverse import Question

DEFAULT_BATCH: Final = 256
"""Samples of an optimizer step where nothing is said and the cards are fewer."""

DEFAULT_TOP: Final = 10

COUNTED: Final = ("tp", "pp", "cp", "ep", "etp", "virtual-stages", "micro-batch")
"""Axes of numbers; the others are names."""

ENUMERATED: Final[dict[str, type[Precision] | type[Recompute] | type[Shards]]] = {
    "precisions": Precision, "recompute": Recompute, "shards": Shards,
}

MANY_CLUSTERS: Final = 16
"""Clusters beyond which only engines with a compiled search are looked at where nobody names one."""

COMPILED: Final = ("megatron",)

SEVERAL_GPUS: Final = ("torchtitan", "deepspeed", "megatron")
"""Engines that are looked at where nobody names one and there are several cards."""


PEFT: Final = "peft"
"""Allowed in inverse questions, where sets of techniques are tried; a search trains what --peft says."""

ON_ONE: Final = ("largest-batch", "longest-sequence", "knee", "largest-model")
"""Inverse questions about one machine."""

CHOSEN: Final = ("tp", "pp", "cp", "ep", "etp", "virtual-stages", "shards", "zero", "recompute", "offload-optimizer",
                 "offload-parameters")
"""Options that questions about a model's size or a machine's vary themselves."""

NOT_INVERSE: Final = ("goal", "budget", "deadline", "top", "forbid", "tokens", "techniques")
"""Options of a search that say nothing about what fits."""

VARIED: Final[dict[str, tuple[str, ...]]] = {
    "largest-batch": ("micro-batch", "global-batch"), "knee": ("micro-batch", "global-batch"),
    "longest-sequence": ("seq-len",),
}
"""Inverse question -> options that it varies itself."""

STAND_IN: Final = "llama-2-7b"
"""A model to be replaced by the search."""


class PlanQuestion(NamedTuple):
    """One search."""

    space: Space
    limits: Limits
    goal: Goal
    top: int  # plans in the table; 0: nothing is searched, the case is explained
    assumptions: tuple[str, ...]


def build_planning(options: Mapping[str, object], *, resolve: Resolve) -> PlanQuestion:
    """The search that a set of options asks for.

    Args:
        options: option names as in `PLAN_OPTIONS`, plus `model`
        resolve: turns the text of `model` into a network and what its headers say

    Raises: InvalidSpec or UnknownName with one sentence.
    """
    values = parsed(options)
    if "alloc-conf" in values:
        raise InvalidSpec("a search looks at PyTorch's default allocator; give --alloc-conf to vramcast train instead")
    model = checkpoint_of(options.get("model"), values, resolve, PLAN_OPTIONS).model
    limits = _limits(values)
    clusters = clusters_of(values)
    if all(cluster.gpu.bandwidth_bytes_per_s is None for cluster in clusters):
        raise InvalidSpec(
            "plans are compared by their time, and the speed of {} is not known; name a card, or ask vramcast train "
            "about one plan", clusters[0].gpu.name
        )
    versions = dict(training_engine(item) for item in values.get("engine", ()))
    engines = tuple(versions) or _default_engines(clusters, values)
    assumed: list[str] = []
    if "engine" not in values and not values.get("techniques"):
        assumed.append(Note("engines looked at: {}; --engine names others", ", ".join(engines)))
    batch = values.get("global-batch")
    if batch is None:
        batch = _default_batch(clusters)
        assumed.append(Note("global batch of {} samples; --global-batch says otherwise", batch))
    if "precision" not in values:
        assumed += in_fp16(clusters, engines)
    space, passed_over = _space(values, model, clusters, engines, require_count("global-batch", batch))
    workload, said = with_lengths(model, space.workload, values, PLAN_OPTIONS)
    known = {name: version for name, version in versions.items() if version is not None}
    space, assumed = replace(space, versions=known, workload=workload), [*assumed, *said, *passed_over]
    goal = Goal(values.get("goal", Goal.FASTEST))
    top = 0 if values.get("techniques") else require_count("top", values.get("top", DEFAULT_TOP))
    return PlanQuestion(space, limits, goal, top, tuple(assumed))


def in_fp16(clusters: Iterable[Cluster], engines: Iterable[str]) -> list[str]:
    """What is assumed on cards without bf16 tensor cores."""
    old = dict.fromkeys(cluster.gpu.name for cluster in clusters if not cluster.gpu.has_bf16)
    if not old or not any(TRAINING[engine].in_fp16 for engine in engines):
        return []
    return [Note(
        "fp16 with a loss scale on {}, which have no bf16 tensor cores; --precision says otherwise", ", ".join(old)
    )]


def parsed(options: Mapping[str, object]) -> dict[str, Any]:
    """Every option read, and refused where it contradicts another one.

    Raises: InvalidSpec or UnknownName with one sentence.
    """
    given = given_of(options, PLAN_OPTIONS, ("model",))
    given.pop("model", None)
    if "zero" in given and "shards" in given:
        raise InvalidSpec("--zero and --shards say the same; give one of them")
    refuse_peft_details(given)
    values = {name: parse(name, value, PLAN_OPTIONS) for name, value in given.items()}
    return values | {name: _axis(name, values[name]) for name in AXES if name in values}


def _axis(name: str, items: tuple[str, ...]) -> tuple[Any, ...]:
    """The values of one axis."""
    if not items:
        raise InvalidSpec("--{} names nothing; give at least one value or leave it out", name)
    if name in COUNTED:
        return tuple(require_count(name, parse_count(name, item)) for item in items)
    if name == "engine":
        for item in items:
            training_engine(item)
    return tuple(dict.fromkeys(parse(name, item) for item in items))


def clusters_of(values: Mapping[str, Any]) -> tuple[Cluster, ...]:
    """The machines a question names, in every number of them that it leaves open and --max-gpus allows.

    Raises: InvalidSpec where there are none
    """
    if not values.get("on"):
        raise InvalidSpec("on what? give --on, for example --on 8xh100-sxm-80gb --on aws:p5.48xlarge")
    most = require_count("max-gpus", values["max-gpus"]) if "max-gpus" in values else None
    found: dict[str, Cluster] = {}
    for machine, counts in offers(",".join(values["on"]), market_of(values, PLAN_OPTIONS)):
        for count in counts or _numbers(machine.gpus_per_node, most):
            cluster = replace(machine, num_nodes=count)
            if most is None or cluster.count <= most:
                found[cluster.name] = cluster
    if not found:
        raise InvalidSpec("max-gpus={} leaves none of the machines of --on {}", most, ", ".join(values["on"])[:60])
    return tuple(found.values())


def _numbers(cards: int, most: int | None) -> list[int]:
    """Powers of two of a machine with so many cards: one, where nothing says how many GPUs there may be."""
    return [1 << power for power in range(20) if cards << power <= (most or cards)]


def _default_engines(clusters: Iterable[Cluster], values: Mapping[str, Any]) -> tuple[str, ...]:
    """PyTorch alone where no cluster has several cards; only the compiled search where there are many clusters.

    Adapters and preferences are trained by what trains them, as one plan of them is.
    """
    clusters = tuple(clusters)
    if "peft" in values or values.get("objective") not in (None, "pretrain", "sft"):
        return tuple(dict.fromkeys(default_engine(values, cluster.count) for cluster in clusters))
    if len(clusters) > MANY_CLUSTERS:
        return COMPILED
    several = any(cluster.count > 1 for cluster in clusters)
    single = any(cluster.count == 1 for cluster in clusters)
    return (("pytorch",) if single else ()) + (SEVERAL_GPUS if several else ())


def _default_batch(clusters: Iterable[Cluster]) -> int:
    """At least a sample for every card of the largest cluster, a power of two."""
    largest = max(cluster.count for cluster in clusters)
    return max(DEFAULT_BATCH, 1 << (largest - 1).bit_length())


def _limits(values: Mapping[str, Any]) -> Limits:
    budget = parse_money("budget", values["budget"]) if "budget" in values else None
    return Limits(
        headroom=headroom_of(values),
        budget=budget.amount if budget else None,
        currency=budget.currency if budget else market_of(values, PLAN_OPTIONS).currency,
        deadline_hours=parse_hours("deadline", values["deadline"]) if "deadline" in values else None,
        run_tokens=values.get("tokens"),
        max_gpus=require_count("max-gpus", values["max-gpus"]) if "max-gpus" in values else None,
    )


def _space(
    values: Mapping[str, Any], model: Model, clusters: tuple[Cluster, ...], engines: tuple[str, ...], batch: int
) -> tuple[Space, tuple[str, ...]]:
    fixed: dict[str, Any] = section(values, "plan", PLAN_OPTIONS)
    fixed["peft"], said = peft_of(values, model, engines[0] if len(engines) == 1 else "", table=PLAN_OPTIONS)
    axes: dict[str, Any] = {"named_engines": engines} if "engine" in values else {}
    axes |= {field: kind for name, field in AXES.items() if (kind := values.get(name)) and name != "engine"}
    axes["precisions"] = tuple(_recipe(name, engines) for name in axes.get("precisions", (None,)))
    space = Space(
        model=model,
        workload=converted(Workload, section(values, "workload", PLAN_OPTIONS)),
        global_batch=batch,
        clusters=clusters,
        engines=engines,
        engine_options=engine_options(values.get("engine-option", ())),
        plan=converted(Plan, fixed),
        **_with_techniques(axes, values),
    )
    return space, said


def _recipe(name: str | None, engines: tuple[str, ...]) -> str | None:
    """What a recipe is that all engines call by that name."""
    meant = {TRAINING[engine].calls.get(name or "") for engine in engines}
    return PURE.get(name or "", name) if len(meant) > 1 else meant.pop() or PURE.get(name or "", name)


def _with_techniques(axes: dict[str, Any], values: Mapping[str, Any]) -> dict[str, Any]:
    """The axes as `--allow` and `--forbid` leave them.

    Raises: UnknownName for a technique, InvalidSpec for one that options both ask for and exclude
    """
    allow, forbid = values.get("allow", ()), values.get("forbid", ())
    for name in (*allow, *forbid):
        if name not in TECHNIQUES:
            raise UnknownName.of("technique", name, TECHNIQUES)
    if both := set(allow) & set(forbid):
        raise InvalidSpec("--allow {} and --forbid {} contradict each other; give one of them", min(both), min(both))
    for name, row in TECHNIQUES.items():
        if name in forbid:
            axes[row.field] = _without(name, row, axes.get(row.field, ()))
        elif name in allow:
            axes[row.field] = tuple(dict.fromkeys((*axes.get(row.field, row.default), *row.adds)))
    return {
        field: tuple(item and ENUMERATED[field](item) for item in items) if field in ENUMERATED else items
        for field, items in axes.items()
    }


def _without(name: str, row: Allowance, asked: tuple[Any, ...]) -> tuple[Any, ...]:
    """What is left of an axis without a technique."""
    left = tuple(item for item in asked or row.default if item not in row.adds) if row.adds else row.default
    if not left or (asked and not set(left) & set(asked)):
        raise InvalidSpec("--forbid {} leaves nothing of {}; give one of them", name, ", ".join(map(str, asked)))
    return left


def goal_of(options: Mapping[str, object]) -> str | None:
    """The inverse question that options ask, if any."""
    goal = options.get("find")
    return None if goal is None else str(parse("find", goal, PLAN_OPTIONS))


def build_inverse(
    options: Mapping[str, object], *, resolve: Resolve, models: Callable[[], Iterable[Model]]
) -> Question:
    """What an inverse question starts from: the plan that `train` would make of its options, on what --on names.

    Args:
        options: option names as in `PLAN_OPTIONS`, plus `model`
        resolve: turns the text of `model` into a network and what its headers say
        models: those of the catalogue

    Raises: InvalidSpec or UnknownName with one sentence.
    """
    values, goal = parsed(options), goal_of(options)
    for name in values:
        if name in NOT_INVERSE:
            raise InvalidSpec("--{} says nothing about --find {}; leave it out", name, goal)
    for name in (allowed := values.get("allow", ())):
        if name not in (*TECHNIQUES, PEFT):
            raise UnknownName.of("technique", name, (*TECHNIQUES, PEFT))
    clusters = (_one_cluster(values),) if goal in ON_ONE else clusters_of(values)
    box = goal not in ON_ONE or goal == "largest-model"
    versioned = [name for name in values.get("engine", ()) if "@" in name]
    if box and versioned:
        raise InvalidSpec(
            "--find {} compares engines as they are today; leave out the version of {}", goal, versioned[0]
        )
    return Question(
        job=_one_plan(options, values, clusters[0], resolve, box=box),
        clusters=clusters,
        headroom=headroom_of(values),
        allowed=frozenset(allowed),
        engines=values.get("engine", ()) if box else (),
        models=models,
    )


def _one_cluster(values: Mapping[str, Any]) -> Cluster:
    """What --on names, read as --gpus: a card's name is one card."""
    names = values.get("on", ())
    if len(names) != 1:
        given = f"not at {', '.join(names)[:60]}" if names else "and --on names none"
        raise InvalidSpec(
            "--find {} looks at one cluster, {}; give one, for example --on 8xh100", values["find"], given
        )
    return cluster_of(names[0], market_of(values, PLAN_OPTIONS))


def _one_plan(
    options: Mapping[str, object], values: Mapping[str, Any], cluster: Cluster, resolve: Resolve, *, box: bool
) -> Job:
    """The one plan that options describe, as `train` would read them."""
    goal = values["find"]
    given: dict[str, object] = {"gpus": cluster.name}
    chosen = CHOSEN if box else VARIED.get(goal, ())
    for name in values:
        if name in chosen:
            raise InvalidSpec("--find {} varies --{} itself; leave it out", goal, name)
        if name in AXES and len(values[name]) > 1 and not (box and name == "engine"):
            raise InvalidSpec("--find {} looks at one plan; give one value of --{}", goal, name)
        if name in OPTIONS and not (box and name == "engine"):
            given[name] = values[name][0] if name in AXES else options[name]
    if "zero" in given:
        given["zero"] = next(stage for stage, shards in ZERO.items() if shards == given["zero"])
    if goal == "largest-model":
        if options.get("model") is not None:
            raise InvalidSpec("--find {} looks for the model; leave out {!r}", goal, str(options["model"])[:60])
        given["model"] = STAND_IN
    else:
        given["model"] = options.get("model")
    if box:
        given["engine"] = "pytorch"
    job = build_job(given, resolve=resolve)
    if "seq-len" in chosen:  # it is found, not assumed
        job = build_job(given | {"seq-len": job.workload.seq_len}, resolve=resolve)
    return replace(job, cluster=cluster)


def cluster_of_best(space: Space, found: PlanAnswer) -> Cluster:
    """The machines of the winner, else of the plan nearest to fitting."""
    best = found.plans[0] if found.plans else found.nearest_failing
    return _cluster_of(space, best) if best is not None else space.clusters[0]


def _cluster_of(space: Space, answer: Answer) -> Cluster:
    name = answer.question["gpus"]
    return next((cluster for cluster in space.clusters if cluster.name == name), space.clusters[0])


def job_of(space: Space, answer: Answer) -> Job:
    """The job behind one answer of a search."""
    asked = answer.question
    engine, version = training_engine(asked["engine"])
    return Job(
        model=space.model,
        workload=converted(Workload, asked["workload"]),
        plan=converted(Plan, asked["plan"]),
        cluster=_cluster_of(space, answer),
        engine=engine,
        engine_version=version,
        engine_options=asked.get("engine_options", {}),
        alloc_conf=asked.get("alloc_conf", ""),
    )
