"""From a log to the question it answers: what the log says, under what a user gives."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple

from msgspec.structs import replace

from vramcast.doctor.names import checkpoint_of, counted, gpus_of, stored_as
from vramcast.domain.checkpoint import Checkpoint
from vramcast.domain.reconciliation import Remark
from vramcast.domain.serving import ServeJob, Version
from vramcast.domain.version import version_text
from vramcast.engines.serving.table import SERVING
from vramcast.errors import InvalidSpec, UnknownName
from vramcast.question.serving import build_serving, parse_engine
from vramcast.sources.logs.found import ServingLog
from vramcast.sources.resolve import resolve_checkpoint
from vramcast.units import format_bytes

ONLINE: Final = ("fp8", "bitsandbytes")
"""Quantisations that engines apply to whole checkpoints while they load them."""

SAME_CARD: Final = 0.03
"""How far a card's stated memory may lie from the catalogue's before it must be another card [share]."""


class Question(NamedTuple):
    """A job, and what is worth knowing about how it came to be."""

    job: ServeJob
    remarks: tuple[Remark, ...]


def question_of(log: ServingLog, given: Mapping[str, Any]) -> Question:
    """The serving job of a log; options that are given win.

    Raises: InvalidSpec that names the option to give where the log does not say
    """
    given = {name: value for name, value in given.items() if value is not None}
    engine, version, remarks = _engine(log, given.get("engine"))
    options: dict[str, Any] = {**log.options, **given, "engine": f"{engine}@{version_text(version)}"}
    pairs = (*log.options.get("engine-option", ()), *given.get("engine-option", ()))
    if pairs:
        options["engine-option"] = pairs
    _without_orphans(options)
    name, checkpoint = _checkpoint(log, given.get("model"))
    options["model"] = name
    stored = stored_as(log)
    if "weights" not in options and stored is not None and _says_how(log, checkpoint):
        options["weights"] = stored
    _with_unsaid_degree(log, options)
    ranks = _ranks(log, options)
    gpus = given.get("gpus")
    options["gpus"] = gpus_of(log, ranks=ranks) if gpus is None else counted(str(gpus), ranks=ranks)
    job = build_serving(
        options, resolve=lambda text: checkpoint if text == name else resolve_checkpoint(text)
    )
    assert isinstance(job, ServeJob)  # no log of a pipeline's engine is read
    job, more = _on_stated_card(job, log)
    return Question(job, (*remarks, *more, *_assumed(log, gpus=gpus, options=options)))


def _engine(log: ServingLog, given: Any) -> tuple[str, Version, tuple[Remark, ...]]:
    """The engine and the version that is modelled nearest to the log's."""
    if given is not None:
        engine, version = parse_engine(str(given))
        if engine != log.engine:
            raise InvalidSpec(f"--engine {given} contradicts {log.name}, which is a log of {log.engine}")
        if "@" in str(given) or not log.version:
            return engine, version, ()
    if log.engine not in SERVING:
        raise UnknownName.of("serving engine", log.engine, SERVING)
    known = SERVING[log.engine]
    if not log.version:
        shown = ".".join(map(str, known.default))
        return log.engine, known.default, (Remark(key="version_unknown", values={"version": shown}),)
    version = version_of(log.version)
    if version[: len(known.newest)] > known.newest:
        shown = ".".join(map(str, known.newest))
        values = {"version": log.version, "newest": shown, "engine": log.engine}
        return log.engine, known.newest, (Remark(key="version_newer", values=values),)
    return log.engine, version, ()


def version_of(text: str) -> Version:
    """The release that a version belongs to.

    >>> version_of("0.11.1rc2.dev123+g1a2b3c"), version_of("0.6.4.post1"), version_of("5200")
    ((0, 11, 1), (0, 6, 4), (5200,))
    """
    numbers: list[int] = []
    for part in text.split("+")[0].split("."):
        digits = part[: len(part) - len(part.lstrip("0123456789"))]
        if not digits:
            break
        numbers.append(int(digits[:9]))
        if digits != part:
            break
    return tuple(numbers[:3]) or (0,)


def _without_orphans(options: dict[str, Any]) -> None:
    """Leave out what only makes sense beside another option that a user has taken away."""
    if "draft" not in options:
        options.pop("draft-tokens", None)


def _with_unsaid_degree(log: ServingLog, options: dict[str, Any]) -> None:
    """Tensor parallelism where the arguments leave it out: what the ranks that spoke make of it, else the default."""
    if log.over_devices or "tp" in options:
        return
    others = max(1, options.get("pp", 1)) * max(1, options.get("dp", 1))
    if len(log.ranks) > others or log.models:
        options["tp"] = max(1, len(log.ranks) // others)


def _checkpoint(log: ServingLog, given: Any) -> tuple[str, Checkpoint]:
    if given is None:
        return checkpoint_of(log)
    return str(given), resolve_checkpoint(str(given))


def _says_how(log: ServingLog, checkpoint: Checkpoint) -> bool:
    """Whether the log knows better than the checkpoint how weights are stored on the card."""
    if SERVING[log.engine].is_ggml:
        return checkpoint.weights is None
    if checkpoint.model.quantisation is not None:
        return False
    return checkpoint.weights is None or log.quantisation.lower() in ONLINE


def _ranks(log: ServingLog, options: Mapping[str, Any]) -> int:
    """Cards that the plan takes."""
    if log.over_devices:
        return max(1, len(log.ranks))
    degrees = [options.get(name, 1) for name in ("tp", "pp", "dp")]
    product = 1
    for degree in degrees:
        product *= degree if isinstance(degree, int) and degree > 0 else 1
    return product


def _on_stated_card(job: ServeJob, log: ServingLog) -> tuple[ServeJob, tuple[Remark, ...]]:
    """The job on a card of just the memory that the log states, unless that is another card."""
    gpu = job.cluster.gpu
    if log.card_bytes is None:
        return job, ()
    if abs(log.card_bytes / gpu.visible_bytes - 1) > SAME_CARD:
        values = {"stated": format_bytes(log.card_bytes), "gpu": gpu.name, "visible": format_bytes(gpu.visible_bytes)}
        return job, (Remark(key="other_card", values=values),)
    cluster = replace(job.cluster, gpu=replace(gpu, visible_bytes=log.card_bytes))
    return replace(job, cluster=cluster), ()


def _assumed(log: ServingLog, *, gpus: Any, options: Mapping[str, Any]) -> Iterator[Remark]:
    if gpus is None and not log.cards:
        yield Remark(key="card_by_memory", values={"gpus": str(options["gpus"])})
    if log.startups > 1:
        yield Remark(key="last_of_startups", values={"count": str(log.startups)})
    if log.cut:
        yield Remark(key="log_cut")
    if log.quantisation and "weights" not in options and stored_as(log) is None:
        yield Remark(key="storage_unknown", values={"quantisation": log.quantisation[:60]})
