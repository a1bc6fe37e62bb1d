"""What there is to ask: the catalogue, forms, words, measured cases and the description of the API.

Which model of the catalogue a visitor's file describes: a config.json, or the header of a GGUF file.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import date
from functools import cache
from importlib.resources import files
from io import BytesIO
from typing import Any, Final

import msgspec

from vramcast.catalogue.clusters import Market
from vramcast.catalogue.gpus import search_gpus
from vramcast.catalogue.index import find_models, summary
from vramcast.catalogue.machines import Filter, listed
from vramcast.catalogue.models import shape_of
from vramcast.domain.job import Peft, Workload
from vramcast.domain.serving import Requests
from vramcast.errors import UnknownName
from vramcast.families import model_from_config
from vramcast.question.option import SUBJECTS, Kind, Option, table_of
from vramcast.report.chinese import help_of, terms
from vramcast.report.document import plain
from vramcast.report.messages import MESSAGES, rare_messages
from vramcast.report.sentences import TONES
from vramcast.sources.gguf import config_of, read_header
from vramcast.units import GIB
from vramcast.version import __version__
from vramcast.web.exchange import BYTES, JSON, Asked, Refused, Reply
from vramcast.web.visitor import always_of, may_be_asked


def models(asked: Asked) -> dict[str, Any]:
    """Models and diffusion pipelines whose name or alias holds every word of the query."""
    found = find_models(asked.query.get("query", ""))
    return {"schema": 1, "models": [summary(name) for name in found]}


def gpus(asked: Asked) -> dict[str, Any]:
    """The cards, as `vramcast gpus --json` prints them."""
    return {"schema": 1, "gpus": search_gpus(asked.query.get("query", ""))}


def instances(asked: Asked) -> dict[str, Any]:
    """The machines, as `vramcast instances --json` prints them."""
    names = tuple(asked.query.get("query", "").split())
    found = plain(listed(names, Filter(), Market()))
    said = [row | {"note": asked.words.said(row["note"])} if "note" in row else row for row in found]
    return {"schema": 1, "instances": said}


def version(asked: Asked) -> dict[str, Any]:
    """What answers, and what it may be asked about."""
    return {
        "schema": 1, "version": __version__, "hubs": sorted(asked.sources.hubs), "today": date.today().isoformat(),
        "measured": _measured(),
    }


def accuracy(asked: Asked) -> Reply:
    """Every measured case beside its prediction; `python -m truth.page` writes the file they come from."""
    return _accuracy()


@cache
def _accuracy() -> Reply:
    return Reply(200, JSON, msgspec.json.encode(cases_of(_record())))


@cache
def _measured() -> int:
    """How many measured figures have a prediction beside them."""
    return sum(group["predicted"] for group in msgspec.json.decode(_record())["groups"])


def _record() -> bytes:
    return (files("vramcast.web.routes") / "accuracy.json").read_bytes()


def cases_of(text: bytes) -> dict[str, Any]:
    """The file, where texts that repeat stand once, as one object for each case."""
    packed = msgspec.json.decode(text)
    columns, lists = packed["columns"], packed["lists"]
    return {
        "schema": packed["schema"],
        "groups": packed["groups"],
        "cases": [_case(dict(zip(columns, case, strict=True)), lists) for case in packed["cases"]],
    }


def _case(packed: dict[str, Any], lists: dict[str, list[Any]]) -> dict[str, Any]:
    case = {
        name: lists[name][value] if name in lists else value
        for name, value in packed.items() if value is not None and not (name in lists and value < 0)
    }
    case["source"], *url = case.get("source", ("",))
    if url:
        case["url"] = url[0]
    if case.get("measured") and "predicted" in case:
        case["error"] = round(case["predicted"] / case["measured"] - 1, 5)
    return case


KINDS: Final = ("category", "phase", "cause", "bound", "short", "held", "verdict")
"""What stands before the point in the keys of names."""
TEMPLATES: Final = ("trust",)
"""The same of sentences whose gaps the page fills."""


def words(asked: Asked) -> dict[str, Any]:
    """Names of categories, phases, causes, bounds, figures and verdicts with their tones, costs, trust lines."""
    own = asked.words
    known = MESSAGES | rare_messages()
    kinds = {key: key.partition(".")[0] for key in known}
    named = {key: known[key][own.language] for key, kind in kinds.items()
             if kind in TEMPLATES or (kind in KINDS and "{" not in known[key]["en"])}
    costs = {f"cost.{english}": own.term("cost", english) for english in terms("cost")}
    tones = {f"tone.{fit}": tone for fit, tone in TONES.items()}
    return {"schema": 1, "lang": own.language, "words": named | costs | tones}


MODEL: Final = Option("job", "model", Kind.TEXT, "a model of the catalogue, by name; without one, numbers")
GPUS: Final = Option("job", "gpus", Kind.TEXT, "[NODESx]COUNTxGPU, [COUNTx]INSTANCE: 8xh100-sxm-80gb, aws:p5.48xlarge")

REST: Final = "advanced"


NOUNS: Final[dict[str, dict[str, type[msgspec.Struct]]]] = {
    "train": {"workload": Workload, "peft": Peft}, "serve": {"requests": Requests},
    "plan train": {"workload": Workload, "peft": Peft}, "plan serve": {"requests": Requests},
}
"""Command -> section of its options -> the noun whose defaults hold whatever the engine."""


def asked_options(command: str) -> dict[str, Option]:
    """What a visitor may give."""
    always, table = always_of(command), table_of(command)
    return {name: option for name, option in (("model", MODEL), ("gpus", GPUS)) if name in always} | {
        name: option for name, option in table.items() if may_be_asked(name, table)
    }


def options(command: str, language: str = "en") -> list[dict[str, Any]]:
    """The options that a visitor may give, group by group; last what is of no subject."""
    rows = asked_options(command)
    groups = {name: subject for subject, names in SUBJECTS.items() for name in names if name in rows}
    groups |= {name: REST for name in rows if name not in groups}
    found = [_row(name, rows[name], group, NOUNS[command]) for name, group in groups.items()]
    return [row | {"help": help_of(row["help"], language)} for row in found]


def _form(command: str) -> Callable[[Asked], dict[str, Any]]:

    def answered(asked: Asked) -> dict[str, Any]:
        return {"schema": 1, "options": options(command, asked.words.language)}

    answered.__doc__ = f"The options of `vramcast {command}` that a visitor may give, in the order of a form."
    return answered


train_options, serve_options, plan_train_options, plan_serve_options = map(_form, NOUNS)


def _row(name: str, option: Option, group: str, nouns: Mapping[str, type[msgspec.Struct]]) -> dict[str, Any]:
    row: dict[str, Any] = {
        "name": name, "kind": str(option.kind), "choices": list(option.choices), "help": option.help, "group": group,
    }
    default = _default(option, nouns.get(option.section))
    return row if default is None else row | {"default": default}


def _default(option: Option, noun: type[msgspec.Struct] | None) -> Any:
    """What holds where nothing is said; None where that depends on the rest of the question."""
    if noun is None:
        return None
    field = next(field for field in msgspec.structs.fields(noun) if field.name == option.field)
    value = None if field.default is msgspec.NODEFAULT else field.default
    return list(value) if isinstance(value, tuple) else value


MOST_SIZE: Final = 4096 * GIB
SHAPE: Final = ("family", "parameters", "active_parameters", "layers", "hidden", "vocabulary")
"""What two networks share that need the same memory."""


def network(asked: Asked) -> dict[str, Any]:
    """The model of the catalogue that a config.json or the first bytes of a GGUF file describe.

    Nothing is read but the body; `exact`: whether the context is the same too.
    """
    name = asked.query.get("name", "the file")[:200]
    config = _of_gguf(asked, name) if asked.content_type == BYTES else asked.fields
    model = model_from_config(config, name=name)
    facts = shape_of(model)
    whole = (*SHAPE, "context")
    known = _by_shape(*whole).get(_key(facts, *whole)) or _by_shape(*SHAPE).get(_key(facts, *SHAPE))
    if known is None:
        raise UnknownName("{} describes a {} network that is in no catalogue", name, model.family)
    return {"schema": 1, "model": known, "exact": summary(known).get("context") == model.context}


def _of_gguf(asked: Asked, name: str) -> dict[str, Any]:
    text = asked.query.get("size", "")
    size = int(text) if text.isdecimal() and len(text) < 16 else len(asked.body)
    if not len(asked.body) <= size <= MOST_SIZE:
        raise Refused(422, "InvalidSpec", "size must be that of the whole file in bytes")
    return config_of(read_header(BytesIO(asked.body), name=name, size=size), name=name)


def _key(facts: dict[str, Any], *names: str) -> tuple[Any, ...]:
    return tuple(facts.get(name) for name in names)


@cache
def _by_shape(*names: str) -> dict[tuple[Any, ...], str]:
    """These facts -> the model of the catalogue that has them: the shortest name, which is no tune of another."""
    found = sorted(find_models(""), key=lambda name: (-len(name), name))
    return {_key(summary(name), *names): name for name in found}
