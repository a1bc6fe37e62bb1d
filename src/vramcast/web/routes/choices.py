"""Choices of an option that a question cannot have, each with why and with what makes it possible."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

from vramcast.api import job_of, serve_answer, train_answer
from vramcast.catalogue.clusters import cluster_of
from vramcast.engines.serving.table import SERVING
from vramcast.errors import Note, VramcastError
from vramcast.estimate.training import rank_programs
from vramcast.question.build import Resolve
from vramcast.question.commands import table_of
from vramcast.question.diffusion import trains_pipeline
from vramcast.web.exchange import Asked, Refused, choice_field, refuse_others
from vramcast.web.routes.answers import question_in
from vramcast.web.visitor import options_of, resolver

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
