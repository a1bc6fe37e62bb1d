"""A job as the options that ask for it: what `build_job` and `build_serving` read gives the same job again."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from msgspec import Struct
from msgspec.structs import replace

from vramcast.domain.job import WITHOUT_TARGETS, Job, Peft, Plan, Workload
from vramcast.domain.model import Checkpoint
from vramcast.domain.serving import Requests, ServeJob, ServePlan
from vramcast.domain.version import named
from vramcast.engines.eager.releases import precision_word
from vramcast.errors import InvalidSpec, UnknownName, Unsupported
from vramcast.question.build import build_job
from vramcast.question.options import OPTIONS, Option
from vramcast.question.serving import build_serving
from vramcast.question.serving_options import SERVE_OPTIONS

WRITTEN: Final = ("seq-len", "micro-batch", "grad-accum", "precision", "context", "concurrency")
"""Written whatever their value, for people: engines and questions have defaults of their own."""

OTHERWISE: Final = ("zero", "peft", "find")
"""Options that say what another one says, or that ask for something else than one job."""

KEPT: Final = ("model", "market", "traffic")
"""Sections of options that are repeated as they were given: a job has what they led to."""

FILES: Final = ("calibration",)
"""Options that name a file, of which a job has the contents."""

CARDS: Final = ("gpu", "gpus_per_node", "num_nodes")
"""What memory and speed depend on of a cluster."""

APART: Final = ("cluster", "calibration", "traffic", "assumed")
"""Parts of a job that are compared otherwise, were given as they are, or say what was open, which options close."""


def train_options(job: Job, given: Mapping[str, Any], *, model: str | None) -> dict[str, Any]:
    """The options of `vramcast train` that ask for a job.

    Args:
        job: what is asked for
        given: options of the question that it came from: a model by numbers, prices and files are repeated
        model: how the question named it; None: by numbers

    Raises: Unsupported where no options say what the job is
    """
    engine = named(job.engine, job.engine_version)
    found: dict[str, Any] = {"model": model, "gpus": job.cluster.name, "engine": engine}
    found |= _differing(job.workload, Workload(), OPTIONS, "workload")
    found |= _differing(replace(job.plan, peft=None), Plan(), OPTIONS, "plan")
    if job.plan.peft is not None:
        peft = job.plan.peft
        always = () if peft.method in WITHOUT_TARGETS else ("lora-targets",)
        found |= {"peft": peft.method} | _differing(peft, Peft(), OPTIONS, "peft", always=always)
    if job.global_batch is not None:
        found.pop("grad-accum", None)
        found["global-batch"] = job.global_batch
    found |= {"engine-option": engine_option_words(job.engine_options), "alloc-conf": job.alloc_conf or None}
    found["tokens"] = job.run_tokens

    def asked(options: Mapping[str, Any]) -> Job:
        return build_job(worded(options), resolve=lambda _: Checkpoint(model=job.model))

    def worded(options: Mapping[str, Any]) -> dict[str, Any]:
        """Pure recipes by the name that only they have."""
        own = options.get("precision") is job.plan.precision
        return {**options, **({"precision": precision_word(job)} if own else {})}

    return worded(_completed(found, given, job, _same(asked), OPTIONS, ("workload", "plan", "plan.peft")))


def serve_options(job: ServeJob, given: Mapping[str, Any], *, model: str | None, gpus: str = "") -> dict[str, Any]:
    """The options of `vramcast serve` that ask for a job; `gpus`: how its cards are named, where the cluster's own name
    means others.

    Raises: Unsupported where no options say what the job is
    """
    found: dict[str, Any] = {"model": model, "gpus": gpus or job.cluster.name, "engine": named(job.engine, job.version)}
    found |= _differing(job.requests, Requests(), SERVE_OPTIONS, "requests")
    found |= _differing(replace(job.plan, draft=None), ServePlan(), SERVE_OPTIONS, "plan")
    draft = job.plan.draft
    if draft is not None:
        name = draft.model.name if draft.model is not None else draft.kind
        found |= {"draft": name, "draft-tokens": draft.tokens}
    found |= {"engine-option": engine_option_words(job.engine_options)}
    if job.traffic is not None:
        found.pop("concurrency", None)
        searched = {"replicas": job.traffic.replicas, "num-requests": job.traffic.num_requests}
        given = {**given, **{name: value for name, value in searched.items() if value not in (None, 1)}}
    networks = {} if draft is None or draft.model is None else {draft.model.name: draft.model}

    def asked(options: Mapping[str, Any]) -> ServeJob:
        def resolve(name: str) -> Checkpoint:
            return Checkpoint(model=networks.get(name, job.model))

        again = build_serving(options, resolve=resolve)
        return replace(again, weights=job.weights) if isinstance(again, ServeJob) else job

    return _completed(found, given, job, _same(asked), SERVE_OPTIONS, ("requests", "plan"))


def _completed(
    found: Mapping[str, Any], given: Mapping[str, Any], job: Any, asked: Callable[[Mapping[str, Any]], Any],
    table: Mapping[str, Option], nouns: Iterable[str],
) -> dict[str, Any]:
    """The options with those that say what the engine or the number of cards would otherwise settle.

    Args:
        found: options of what is not as usual
        given: the question's, of which some are repeated
        job: what is asked for
        asked: what options ask for, the network apart
        table: of the command
        nouns: parts of the job that options are about
    """
    repeated = {
        name: value for name, value in given.items()
        if name in table and value is not None and (table[name].section in KEPT or name in FILES)
    }
    options = {name: value for name, value in found.items() if value not in (None, ())} | repeated
    bare = {name: value for name, value in options.items() if name not in table or table[name].section != "model"}
    bare["model"] = job.model.name
    for noun in nouns:
        again, own = (_part(one, noun) for one in (asked(bare), job))
        if own is None:
            continue
        for name, option in table.items():
            if option.section != noun.rpartition(".")[2] or name in OTHERWISE:
                continue
            value = getattr(own, option.field)
            if getattr(again, option.field) != value and value is not None:
                bare[name] = options[name] = value
    _check(asked(bare), job)
    return options


def _same(ask: Callable[[Mapping[str, Any]], Any]) -> Callable[[Mapping[str, Any]], Any]:
    """What options ask for, where the table of options does not even take them: that no options ask for it."""

    def asked(options: Mapping[str, Any]) -> Any:
        try:
            return ask(options)
        except (InvalidSpec, UnknownName) as reason:
            raise Unsupported("no options ask for this plan again: {}", reason) from None

    return asked


def _check(again: Any, job: Any) -> None:
    """Raise Unsupported where two jobs are not the same."""
    pairs = [(field, getattr(again, field), getattr(job, field)) for field in job.__struct_fields__]
    pairs += [(f"cluster.{name}", getattr(again.cluster, name), getattr(job.cluster, name)) for name in CARDS]
    pairs.append(("calibration", again.calibration is None, job.calibration is None))
    while pairs:
        field, one, other = pairs.pop(0)
        if field in APART or one == other or (field == "engine_options" and engine_option_words(one) == (
                engine_option_words(other))):
            continue
        if isinstance(one, Struct) and isinstance(other, Struct):
            pairs += [(f"{field}.{name}", getattr(one, name), getattr(other, name)) for name in one.__struct_fields__]
            continue
        raise Unsupported("no options ask for this plan again: {} is {}", field, other)


def _part(job: Any, path: str) -> Any:
    for name in path.split("."):
        job = getattr(job, name)
    return job


def _differing(
    noun: Struct, usual: Struct, table: Mapping[str, Option], section: str, *, always: tuple[str, ...] = ()
) -> dict[str, Any]:
    """Options of the fields that are not as usual."""
    found = {}
    for name, option in table.items():
        if option.section != section or name in OTHERWISE:
            continue
        value = getattr(noun, option.field)
        if value is not None and (value != getattr(usual, option.field) or name in (*WRITTEN, *always)):
            found[name] = value
    return found


def engine_option_words(options: Mapping[str, object]) -> tuple[str, ...]:
    """Engine options as the command line and job files write them."""
    return tuple(
        f"{name}={str(value).lower() if isinstance(value, bool) else value}" for name, value in options.items()
    )
