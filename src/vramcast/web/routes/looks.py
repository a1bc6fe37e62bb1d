"""What stands under an answer when a visitor opens it: the same question over two of its options, and the course of
memory over its step.

Choices of an option that a question cannot have, each with why and with what makes it possible.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

from vramcast.api import answer_to, job_of, serve_answer, serve_job_of, train_answer
from vramcast.api.recordings import replayed
from vramcast.catalogue.clusters import cluster_of
from vramcast.domain.serving import ServeJob
from vramcast.emit.memory_snapshot import write_snapshot
from vramcast.engines.serving.table import SERVING
from vramcast.errors import InvalidSpec, Note, VramcastError
from vramcast.estimate.training import rank_programs, recorded
from vramcast.question.build import Resolve, trains_pipeline
from vramcast.question.option import table_of
from vramcast.recordings.examine import Asked as LookAt
from vramcast.report.replay_document import replay_document
from vramcast.web.exchange import BYTES, Asked, Refused, Reply, choice_field, refuse_others
from vramcast.web.routes.answers import question_in
from vramcast.web.visitor import options_of, resolver

COMMANDS: Final = ("train", "serve")
MICRO_BATCHES: Final = (1, 2, 4, 8, 16)
SHARES: Final = (4, 2, 1)
MULTIPLES: Final = (2, 4)
"""Of the sequence that is asked for."""
SHORTEST: Final = 128

WEIGHTS: Final = (None, "fp8", "awq-int4")
GGML_WEIGHTS: Final = ("f16", "q8_0", "q5_k_m", "q4_k_m")
CARDS: Final = (
    "rtx-4090", "rtx-5090", "l40s", "a100-sxm4-80gb", "h100-sxm-80gb", "h200-sxm-141gb", "b200-180gb", "mi300x",
)
"""Of each amount of memory the card that is rented most, the smallest first."""


def matrix(asked: Asked) -> dict[str, Any]:
    """What a question comes to over two of its options: micro-batch and sequence, or weights and cards."""
    refuse_others(asked.fields, ("command", "question"))
    command = choice_field(asked.fields, "command", COMMANDS, "")
    question = dict(question_in(asked.fields))
    down, across = (_training if command == "train" else _serving)(asked, question)
    rows = [
        [_cell(asked, command, question, {down[0]: one, across[0]: other}) for other in across[1]] for one in down[1]
    ]
    return {"schema": 1, "down": down[0], "across": across[0], "rows": [list(down[1]), list(across[1])], "cells": rows}


Axis = tuple[str, Sequence[str | None]]
"""An option and its values; None: without it."""


def _training(asked: Asked, question: Mapping[str, Any]) -> tuple[Axis, Axis]:
    load = job_of(options_of(question, "train"), resolve=resolver(asked.sources)).workload
    lengths = [load.seq_len // share for share in SHARES] + [load.seq_len * times for times in MULTIPLES]
    batches = sorted({*MICRO_BATCHES, load.micro_batch})
    return (
        ("micro-batch", [str(size) for size in batches]),
        ("seq-len", [str(length) for length in lengths if length >= SHORTEST or length == load.seq_len]),
    )


def _serving(asked: Asked, question: Mapping[str, Any]) -> tuple[Axis, Axis]:
    job = serve_job_of(options_of(question, "serve"), resolve=resolver(asked.sources))
    if not isinstance(job, ServeJob):
        raise InvalidSpec("a diffusion pipeline has no table of weights and cards")
    known = GGML_WEIGHTS if SERVING[job.engine].is_ggml else WEIGHTS
    own = question.get("weights")
    cluster = cluster_of(str(question["gpus"]))
    before = f"{cluster.num_nodes}x" if cluster.num_nodes > 1 else ""
    cards = {f"{before}{cluster.gpus_per_node}x{card}": None for card in CARDS}
    same = next((text for text in cards if text.endswith(f"x{cluster.gpu.name}")), None)
    gpus = list(cards) if same else [*cards, str(question["gpus"])]
    return ("weights", list(dict.fromkeys((*known, own) if own else known))), ("gpus", gpus)


def _cell(asked: Asked, command: str, question: dict[str, Any], changed: dict[str, str | None]) -> dict[str, Any]:
    """The verdict on one place, and what a card needs there; where there is none, why."""
    given = {name: value for name, value in (question | changed).items() if value is not None}
    resolve = resolver(asked.sources)
    try:
        found = answer_to(command, options_of(given, command), resolve=resolve, with_changes=False)
    except VramcastError as error:
        return {"apply": changed, "said": asked.words.said(str(error))}
    cell = {"apply": changed, "verdict": found.verdict, "needed_bytes": found.fullest.needed_bytes}
    sequences = getattr(getattr(found, "capacity", None), "concurrency", None)
    return cell if sequences is None else cell | {"concurrency": sequences}


STEP_FORMATS: Final = ("json", "pickle")
"""What a step is answered as: the document of a replay, or the recording itself, as torch writes them."""


def step(asked: Asked) -> dict[str, Any] | Reply:
    """The memory of a training's phases event by event, as a recording of the fullest rank is looked at."""
    refuse_others(asked.fields, ("question", "format"))
    shape = choice_field(asked.fields, "format", STEP_FORMATS, "json")
    options = options_of(question_in(asked.fields), "train")
    snapshot = recorded(job_of(options, resolve=resolver(asked.sources)))
    if shape == "pickle":
        return Reply(200, BYTES, write_snapshot(snapshot))
    return replay_document(replayed(snapshot, LookAt(top=1)).devices, top=1, blocks=True)


FIELDS: Final = ("command", "question", "option")


def _trains(options: Mapping[str, Any], resolve: Resolve) -> object:
    """Whether a training is one, without the memory that its programs take: a third of the time of an answer."""
    if trains_pipeline(options):
        return train_answer(options, resolve=resolve, with_changes=False)
    return rank_programs(job_of(options, resolve=resolve))


def _serves(options: Mapping[str, Any], resolve: Resolve) -> object:
    return serve_answer(options, resolve=resolve, with_changes=False)


CHECKS: Final[dict[str, Callable[[Mapping[str, Any], Resolve], object]]] = {"train": _trains, "serve": _serves}

Cure = dict[str, str]

NAMED: Final[dict[str, tuple[Cure, ...]]] = {
    "train": (
        {"peft": "lora"}, {"shards": "everything"}, {"pp": "2"}, {"pp": "2", "virtual-stages": "2"}, {"cp": "2"},
        {"completion-len": "1024"},
    ),
    "serve": ({"rate": "1"}, {"rate": "1", "dp": "2"}),
}
"""What is tried where the refusal names its first option, alone and with every engine: else it would be another job."""

ENGINES: Final = {"train": table_of("train")["engine"].choices, "serve": tuple(SERVING)}
SEARCHES: Final = ("find",)
"""Options whose choices start a search, which is not done for a mark."""


def choices(asked: Asked) -> dict[str, Any]:
    """Which choices of an option a question cannot have: why, and what to set with them where that is enough."""
    fields = asked.fields
    refuse_others(fields, FIELDS)
    command = choice_field(fields, "command", tuple(CHECKS), "")
    name, question = fields.get("option"), dict(question_in(fields))
    option = table_of(command).get(name) if isinstance(name, str) else None
    if option is None or not option.choices or name in SEARCHES:
        raise Refused(422, "InvalidSpec", Note("{!r} is no option with choices", str(name)[:80]))
    assert isinstance(name, str)
    without = {key: value for key, value in question.items() if key != name}

    def why(cure: Cure, value: str | None) -> VramcastError | None:
        given = without | cure | ({} if value is None else {name: value})
        try:
            CHECKS[command](options_of(given, command), resolver(asked.sources))
        except VramcastError as error:
            return error
        return None

    found = []
    for value in option.choices if why({}, None) is None else ():
        if error := why({}, value):
            cures = (cure for cure in _cures(command, str(error), without) if name not in cure)
            cure = next((cure for cure in cures if why(cure, value) is None), None)
            one = {"value": value, "said": asked.words.said(str(error))}
            found.append(one if cure is None else one | {"cure": cure})
    return {"schema": 1, "option": name, "refused": found}


def _cures(command: str, sentence: str, question: Mapping[str, Any]) -> Iterator[Cure]:
    """What may make a choice possible, the least first; fewer cards come last."""
    words = set(re.findall(r"[\w-]+", sentence.replace("--", "")))
    named = [cure for cure in NAMED[command] if next(iter(cure)) in words]
    engines = [{"engine": engine} for engine in ENGINES[command]]
    yield from (*named, *engines, *(cure | engine for cure in named for engine in engines))
    yield from ({"shards": "everything"} | engine for engine in engines if command == "train")
    try:
        yield {"gpus": cluster_of(str(question.get("gpus", ""))).gpu.name}
    except VramcastError:
        return
