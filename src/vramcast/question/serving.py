"""From options to a serving job: names resolved, defaults filled in, every option used or refused."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from msgspec.structs import replace

from vramcast import catalogue, sources
from vramcast.catalogue.clusters import cluster_of
from vramcast.catalogue.index import MODELS, is_pipeline
from vramcast.domain.device import Cluster
from vramcast.domain.serving import Draft, PipelineJob, Requests, ServeJob, ServePlan, Traffic, Version
from vramcast.domain.version import check_version
from vramcast.engines.serving.checks import divides
from vramcast.engines.serving.table import SERVING
from vramcast.errors import InvalidSpec, Note, UnknownName, joined
from vramcast.lazy import lazy_pattern
from vramcast.question.build import (
    Resolve,
    calibration_of,
    checkpoint_of,
    converted,
    engine_options,
    market_of,
    section,
)
from vramcast.question.options import MARKET_OPTIONS, given_of, parse
from vramcast.question.tables import SERVE_OPTIONS
from vramcast.states.ggml import MIXES

DEFAULT_PIPELINE_ENGINE: Final = "diffusers"

PIPELINE_OPTIONS: Final = frozenset(
    ("engine", "concurrency", "height", "width", "frames", "weights", "dtype", "attention", "offload", "tiling",
     "slicing", "engine-option", *MARKET_OPTIONS)
)
"""What a question about a diffusion pipeline can say."""

DRAFT_KINDS: Final = ("eagle", "eagle3", "mtp", "ngram", "medusa")

ANY_CARD: Final = "smallest-gpu"
"""The inverse question that needs no card: only how many there are is taken from --gpus."""

STAND_IN: Final = "h100"
"""One card, to be replaced by the search."""

ALIASES: Final = {
    "trtllm": "tensorrt-llm", "trt-llm": "tensorrt-llm", "llamacpp": "llama.cpp", "sd.cpp": "stable-diffusion.cpp",
    "hf": "transformers",
}


def build_serving(options: Mapping[str, object], *, resolve: Resolve) -> ServeJob | PipelineJob:
    """The serving job that a set of options asks for.

    Args:
        options: option names as in `SERVE_OPTIONS`, plus `model` and `gpus`; with an engine that runs diffusion
            pipelines, or a pipeline's own name and no engine, `model` is a pipeline
        resolve: turns the text of `model` into a network and what its headers say

    Raises: InvalidSpec or UnknownName with one sentence.
    """
    given = given_of(options, SERVE_OPTIONS)
    values = {name: parse(name, value, SERVE_OPTIONS) for name, value in given.items() if name not in ("model", "gpus")}
    if "gpus" not in given and goal_of(given) != ANY_CARD:
        raise InvalidSpec("which GPUs? give --gpus, for example --gpus 2xl40s, or --find smallest-gpu")
    cluster = cluster_of(str(given.get("gpus", STAND_IN)), market_of(values, SERVE_OPTIONS))
    engine, version = parse_engine(
        values.get("engine") or default_engine(given.get("model"), cluster, str(given.get("weights"))))
    if SERVING[engine].runs_pipelines:
        return _pipeline_job(given.get("model"), values, cluster, engine, version)
    _refuse_pipeline(given.get("model"), engine)
    plan: ServePlan = converted(ServePlan, section(values, "plan", SERVE_OPTIONS) | draft_of(values, resolve))
    shared = plan.tp if SERVING[engine].spread_by in values else max(1, cluster.count // (plan.pp * plan.dp))
    checkpoint = checkpoint_of(given.get("model"), values, resolve, SERVE_OPTIONS, divisor=max(plan.tp, shared))
    job = ServeJob(
        model=checkpoint.model,
        requests=converted(Requests, section(values, "requests", SERVE_OPTIONS)),
        plan=plan,
        cluster=cluster,
        engine=engine,
        version=version,
        weights=checkpoint.weights,
        engine_options=engine_options(values.get("engine-option", ())),
        calibration=calibration_of(values.get("calibration")),
        traffic=traffic_of(values),
    )
    check_lengths(job)
    return job if SERVING[engine].spread_by in values else placed(job)


LATENCIES: Final = ("ttft", "tpot", "e2e")
PROMISE: Final = re.compile(r"(\w+)\s*<=?\s*(\d+(?:\.\d+)?)\s*(ms|s)")


def traffic_of(values: Mapping[str, Any]) -> Traffic | None:
    """The requests that arrive by themselves, where a question has such.

    Raises: InvalidSpec or SourceError in one sentence
    """
    asked = section(values, "traffic", SERVE_OPTIONS)
    if not asked:
        return None
    if ("rate" in asked) == ("arrivals" in asked):
        if "rate" in asked:
            raise InvalidSpec("--rate and --arrivals both say when requests come; give one of them")
        raise InvalidSpec(
            "--{} is about requests that arrive by themselves; give --rate or --arrivals with it",
            next(iter(asked)).replace("_", "-")
        )
    if goal_of(values) is not None:
        raise InvalidSpec("--find looks for a plan for a number of users at once; give --concurrency instead of --rate")
    if "concurrency" in values:
        raise InvalidSpec("--concurrency is a number of users who ask again as soon as they are answered; leave it out "
                          "where requests arrive by themselves (--max-sequences limits how many run at once)")
    if "arrivals" in asked:
        for name in ("input-len", "output-len", "burstiness", "num-requests", "seed"):
            if name in values:
                raise InvalidSpec("--arrivals says when requests come and how long they are; leave --{} out", name)
        asked["arrivals"] = sources.arrivals.read_arrivals(Path(asked["arrivals"]))
    promises = asked.pop("slo").split(",") if "slo" in asked else ()
    found: dict[str, float] = {}
    for promise in map(str.strip, promises):
        match = PROMISE.fullmatch(promise.lower())
        if match is None or match[1] not in LATENCIES or match[1] in found:
            raise InvalidSpec(
                "slo={!r} must be a latency ({}) and the most it may be, each once, such as ttft<2s,tpot<50ms",
                promise[:40], ", ".join(LATENCIES)
            )
        found[match[1]] = float(match[2]) * (1e-3 if match[3] == "ms" else 1.0)
    return Traffic(**asked, slo=found)


def check_lengths(job: ServeJob) -> None:
    """Refuse prompts and answers that together are longer than the longest sequence.

    Raises: InvalidSpec where --context, or without it the length the model was trained with, is shorter
    """
    asked, model = job.requests, job.model
    parts = {"input-len": asked.input_len, "output-len": asked.output_len}
    said = {name: tokens for name, tokens in parts.items() if tokens is not None}
    needed = sum(said.values())
    longest = asked.context if asked.context is not None else model.context
    if longest is None or needed <= longest:
        return
    what = joined(" and ", (f"{name}={tokens}" for name, tokens in said.items()))
    limit = f"context={longest}" if asked.context is not None else Note(
        "the {} that {} was trained with", longest, model.name
    )
    raise InvalidSpec(
        "sequences of {} tokens ({}) are longer than {}; shorten them, or give --context {}",
        needed, what, limit, needed
    )


def goal_of(options: Mapping[str, object]) -> str | None:
    """The inverse question that options ask, if any."""
    goal = options.get("find")
    return None if goal is None else str(parse("find", goal, SERVE_OPTIONS))


def default_engine(model: object, cluster: Cluster | None = None, weights: str = "") -> str:
    """llama.cpp for its own files and on Macs, diffusers for names only pipelines have, vLLM for everything else."""
    mac = cluster is not None and cluster.gpu.vendor == "Apple"
    own = str(model).lower().endswith(".gguf") or weights.lower() in MIXES
    if (mac or own) and not is_pipeline(model):
        return "llama.cpp"
    return DEFAULT_PIPELINE_ENGINE if is_pipeline(model) else "vllm"


def _refuse_pipeline(model: object, engine: str) -> None:
    """A pipeline's name with an engine for language models is answered by what would work."""
    if is_pipeline(model):
        raise InvalidSpec(
            "{} is a diffusion pipeline, {} runs language models; use --engine diffusers or stable-diffusion.cpp",
            str(model)[:80], engine
        )


def _pipeline_job(
    name: object, values: Mapping[str, Any], cluster: Cluster, engine: str, version: Version
) -> PipelineJob:
    if name is None:
        raise InvalidSpec("which pipeline? name one, for example flux.1-dev")
    for option in values:
        if option not in PIPELINE_OPTIONS:
            raise InvalidSpec("--{} says nothing about a diffusion pipeline; leave it out", option)
    return PipelineJob(
        pipeline=catalogue.pipelines.load_pipeline(str(name)),
        requests=converted(Requests, section(values, "requests", SERVE_OPTIONS)),
        plan=converted(ServePlan, section(values, "plan", SERVE_OPTIONS)),
        cluster=cluster,
        engine=engine,
        version=version,
        engine_options=engine_options(values.get("engine-option", ())),
    )


def parse_engine(text: str) -> tuple[str, Version]:
    """Engine and version of "vllm@0.19"; without a version the one our model was checked on most.

    Raises: UnknownName for an engine, InvalidSpec for a version older than those covered
    """
    name, at, version = text.strip().lower().partition("@")
    name = ALIASES.get(name, name)
    if name not in SERVING:
        raise UnknownName.of("serving engine", name, SERVING)
    engine = SERVING[name]
    if not at:
        return name, engine.default
    return name, check_version(name, version, oldest=engine.oldest, newest=engine.newest)


def draft_of(values: Mapping[str, Any], resolve: Resolve, prefix: str = "") -> dict[str, Any]:
    """What proposes tokens, of options that begin with `prefix`.

    Raises: InvalidSpec for a number of tokens that nothing proposes
    """
    name = f"{prefix}draft"
    if name not in values:
        if f"{name}-tokens" in values:
            raise InvalidSpec("--{}-tokens needs --{}, for example --{} eagle", name, name, name)
        return {}
    kind, tokens = values[name], values.get(f"{name}-tokens", 1)
    if kind in DRAFT_KINDS:
        return {"draft": Draft(kind=kind, tokens=tokens)}
    return {"draft": Draft(kind="model", tokens=tokens, model=resolve(kind).model)}


def placed(job: ServeJob) -> ServeJob:
    """The job over as many GPUs as its network can be divided by, where the question does not say how."""

    if SERVING[job.engine].spread_by == "pp":
        most = job.cluster.count // (job.plan.tp * job.plan.dp)
        return replace(job, plan=replace(job.plan, pp=max(1, min(most, job.model.num_layers))))
    plan, most = job.plan, job.cluster.count // (job.plan.pp * job.plan.dp)
    for tp in range(most, 0, -1):
        divided = replace(job, plan=replace(plan, tp=tp))
        if most % tp == 0 and divides(divided):
            return divided
    return job


STORED: Final = lazy_pattern(r"(.{1,200}?)[\s_-]+((?:i?q|tq)\d(?:_\w+)?|int4|4[ -]?bit)", re.IGNORECASE)
"""The name of a network, and how a file of llama.cpp stores it."""


def as_stored(options: dict[str, Any]) -> dict[str, Any]:
    """The same, a name that ends with a type of llama.cpp's files ("qwen3 32b q4_k_m") as model and weights.

    Raises: InvalidSpec where it says how many bits, and not how they are stored
    """
    model = options.get("model")
    if not isinstance(model, str) or "weights" in options:
        return options
    match = STORED.fullmatch(model.strip())
    name = MODELS.entry(match[1]) if match and MODELS.entry(model) is None else None
    if match is None or name is None or os.path.exists(model):  # noqa: PTH110  # a name longer than a path may be is none
        return options
    if match[2].lower() in MIXES:
        return options | {"model": name, "weights": match[2].lower()}
    raise InvalidSpec(
        "{!r} leaves open how its weights are stored; write {} with --weights, for example q4_k_m of llama.cpp or "
        "awq-int4 of vllm", model[:80], name
    )
