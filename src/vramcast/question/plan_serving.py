"""From options to a search for deployments: machines, engines, formats, load and limits."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from msgspec.structs import replace

from vramcast.catalogue.gpus import load_gpu
from vramcast.catalogue.machines import offers
from vramcast.domain.device import Cluster
from vramcast.domain.job import require_count
from vramcast.domain.model import Head
from vramcast.domain.planning import Goal, Limits, ServeSpace
from vramcast.domain.serving import ServeJob
from vramcast.errors import InvalidSpec, Note, UnknownName
from vramcast.question.build import Resolve, market_of
from vramcast.question.option import headroom_of
from vramcast.question.options import Kind, Option, given_of, parse, parse_count
from vramcast.question.serving import build_serving, default_engine, parse_engine
from vramcast.question.tables import PLAN_OPTIONS, SERVE_OPTIONS
from vramcast.states.ggml import MIXES
from vramcast.states.storage import FORMATS, SPOKEN

SEVERAL: Final = ("engine", "weights", "kv-dtype", "tp", "pp")
"""Options of `serve` of which a search takes several values."""

NOT_ASKED: Final = (
    "find", "headroom", "dp", "draft", "draft-tokens", "height", "width", "frames", "offload", "tiling", "slicing",
    "arrivals", "replicas", "router",
)
"""Options of `serve` that a search sets itself, or that say nothing about a deployment of a language model."""

AS_STORED: Final = "stored"

DEFAULT_WEIGHTS: Final = (AS_STORED, "fp8")
"""Formats that are looked at where nobody names one: 4-bit ones change answers more and are looked at when asked."""

PLAN_SERVE_OPTIONS: Final[dict[str, Option]] = {
    "on": PLAN_OPTIONS["on"],
    "goal": Option(
        "search", "goal", Kind.CHOICE,
        "what makes a deployment better (cheapest); least-memory: of what the load needs",
        tuple(str(goal) for goal in Goal),
    ),
    "ttft": Option("search", "ttft", Kind.TEXT, "longest time to the first token: 500ms, 2s"),
    "per-user": Option(
        "search", "per_user", Kind.NUMBER, "fewest tokens per second of each user, the prompts' time included"
    ),
    "max-gpus": Option("search", "max_gpus", Kind.COUNT, "most GPUs, all machines together"),
    "top": PLAN_OPTIONS["top"],
    "headroom": PLAN_OPTIONS["headroom"],
    **{
        name: Option("axis", option.field, Kind.NAMES, f"{option.help}; several: a,b", option.choices)
        if name in SEVERAL else option
        for name, option in SERVE_OPTIONS.items() if name not in NOT_ASKED
    },
}
"""Name as users write it -> where it goes. `model` is always there."""


class ServePlanQuestion(NamedTuple):
    """One search for deployments."""

    space: ServeSpace
    limits: Limits
    goal: Goal
    top: int
    assumptions: tuple[str, ...]


def build_plan_serving(options: Mapping[str, object], *, resolve: Resolve) -> ServePlanQuestion:
    """The search that a set of options asks for.

    Args:
        options: option names as in `PLAN_SERVE_OPTIONS`, plus `model`
        resolve: turns the text of `model` into a network and what its headers say

    Raises: InvalidSpec or UnknownName with one sentence.
    """
    given = given_of(options, PLAN_SERVE_OPTIONS, ("model",))
    given.pop("model", None)
    values = {name: parse(name, value, PLAN_SERVE_OPTIONS) for name, value in given.items()}
    assumed: list[str] = []
    engines = values.get("engine") or (default_engine(options.get("model")),)
    if "engine" not in values:
        assumed.append(Note("engine: {}; --engine vllm,sglang looks at several", engines[0]))
    weights = values.get("weights") or DEFAULT_WEIGHTS
    if "weights" not in values:
        assumed.append("weights as stored and in fp8; --weights stored,awq-int4 looks at other formats")
    machines, most = _machines(values)
    space = ServeSpace(
        job=_sized(_job(given, options.get("model"), engines[0], resolve), assumed),
        machines=machines,
        most=most,
        engines=tuple(dict.fromkeys(map(parse_engine, engines))),
        weights=tuple(dict.fromkeys(map(_format, weights))),
        kv_dtypes=tuple(values.get("kv-dtype", ("auto",))),
        tp=_degrees("tp", values),
        pp=_degrees("pp", values),
        own_cards=frozenset(machine.instance for machine in machines if machine.instance and _differs(machine)),
    )
    top = require_count("top", values.get("top", 10))
    goal = Goal(values.get("goal", Goal.CHEAPEST))
    if space.job.traffic is not None:
        _check_traffic(space.job, values, goal)
    return ServePlanQuestion(space, _limits(values), goal, top, tuple(assumed))


def _check_traffic(job: ServeJob, values: Mapping[str, Any], goal: Goal) -> None:
    """Requests at a rate need a promise to compare by, and leave nothing to the words for users at once."""
    assert job.traffic is not None
    if not job.traffic.slo:
        raise InvalidSpec("--rate needs to know what is promised: give --slo, for example --slo ttft<2s,tpot<50ms")
    if job.requests.input_len is None or job.requests.output_len is None:
        raise InvalidSpec("--rate needs to know how long requests are: give --input-len and --output-len, for example "
                          "--input-len 2k --output-len 500")
    for name in ("ttft", "per-user"):
        if name in values:
            raise InvalidSpec("--{} is about users at once; with --rate say --slo, for example --slo ttft<2s,tpot<50ms",
                              name)
    if goal not in (Goal.CHEAPEST, Goal.FEWEST_GPUS):
        raise InvalidSpec("goal={} compares loads of users at once, and every deployment carries the same --rate; use "
                          "cheapest or fewest-gpus", goal.value)


def _job(given: Mapping[str, object], model: object, engine: str, resolve: Resolve) -> ServeJob:
    """Model, load and what is fixed, on a card to be replaced."""
    own = {
        name: value for name, value in given.items()
        if name in SERVE_OPTIONS and name not in SEVERAL and name not in PLAN_SEARCH
    }
    job = build_serving(own | {"model": model, "gpus": "h100", "engine": engine}, resolve=resolve)
    if not isinstance(job, ServeJob):
        raise InvalidSpec("{} is a diffusion pipeline; plan serve looks at language models", str(model)[:60])
    if job.model.head is not Head.LM:
        raise InvalidSpec(
            "{} generates no tokens, and plan serve compares by those; use vramcast serve for its memory",
            job.model.name
        )
    return job


def _sized(job: ServeJob, assumed: list[str]) -> ServeJob:
    """Sequences as long as a prompt and its answer, where nobody says how long they may get."""
    asked = job.requests
    if asked.context is None and asked.input_len is not None and asked.output_len is not None:
        assumed.append(Note("context of {:,} tokens: a prompt and its answer", asked.input_len + asked.output_len))
        return replace(job, requests=replace(asked, context=asked.input_len + asked.output_len))
    if asked.context is None:
        assumed.append(Note(
            "sequences of {:,} tokens, the longest the model takes; --context says otherwise", job.context
        ))
    return job


PLAN_SEARCH: Final = ("price", "spot", "region", "currency", "prices", "hardware")
"""Options of the market: they price the machines of --on, not the stand-in."""


def _machines(values: Mapping[str, Any]) -> tuple[tuple[Cluster, ...], dict[str, int]]:
    """One machine of each kind, and how many there are of those that are counted: 4x8xh100, a cluster of one's own."""
    if not values.get("on"):
        raise InvalidSpec("on what? give --on, for example --on 8xh100-sxm-80gb --on aws:g6e.12xlarge")
    found = offers(",".join(values["on"]), market_of(values, PLAN_SERVE_OPTIONS))
    machines = {offer.machine.name: offer.machine for offer in found}
    most = {
        offer.machine.name: max(offer.counts) for offer in found
        if offer.counts and (max(offer.counts) > 1 or offer.machine.instance is not None)
    }
    return tuple(machines.values()), most


def _differs(machine: Cluster) -> bool:
    """Whether cards of that name elsewhere are others: the machine has shares of them, or another link."""
    try:
        return load_gpu(machine.gpu.name) != machine.gpu
    except UnknownName:
        return True


def _degrees(name: str, values: Mapping[str, Any]) -> tuple[int, ...]:
    return tuple(require_count(name, parse_count(name, item)) for item in values.get(name, ()))


def _format(name: str) -> str | None:
    if name == AS_STORED:
        return None
    name = SPOKEN.get(name.lower(), name)
    if name not in FORMATS and name not in MIXES:
        raise UnknownName.of("weight format", name, (AS_STORED, *FORMATS, *MIXES))
    return name


def _limits(values: Mapping[str, Any]) -> Limits:
    per_user = values.get("per-user")
    if per_user is not None and per_user <= 0:
        raise InvalidSpec("per-user={:g} must be more than 0 tokens per second", per_user)
    return Limits(
        headroom=headroom_of(values),
        currency=values.get("currency"),
        max_gpus=require_count("max-gpus", values["max-gpus"]) if "max-gpus" in values else None,
        time_to_first_token_s=_seconds(values["ttft"]) if "ttft" in values else None,
        tokens_per_s_per_user=per_user,
    )


def _seconds(text: str) -> float:
    """A time to first token: seconds where no unit is given."""
    plain = text.strip().lower()
    number, factor = (plain[:-2], 1e-3) if plain.endswith("ms") else (plain.removesuffix("s"), 1.0)
    try:
        found = float(number) * factor
    except ValueError:
        found = 0.0
    if not 0 < found < 1e6:
        raise InvalidSpec("ttft={!r} must be a time such as 500ms or 2s", text[:40])
    return found


