"""Orders for files and the files: what a plan says, what its model is called, how a file reads back."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from enum import Enum
from typing import Any, Final, NamedTuple

import msgspec.structs

from vramcast.catalogue.formats import Format, load_format, problems
from vramcast.catalogue.index import MODELS
from vramcast.catalogue.models import read_entry
from vramcast.domain.answer import Fleet
from vramcast.domain.job import Job, Peft, Plan, Workload
from vramcast.domain.model import Model
from vramcast.domain.serving import Draft, Requests, ServeJob, ServePlan
from vramcast.errors import Note
from vramcast.formats.lines import options_in, words_of

PLACEHOLDER: Final = "TO-BE-FILLED-IN"
"""Stands where only the user knows the value."""

ALWAYS: Final = ("precision", "optimizer", "attention", "seq_len", "micro_batch", "grad_accum")
"""Settings that have no neutral value: some file must say them, whatever they are."""

NEUTRAL: Final = {Job: (Plan(), Workload()), ServeJob: (ServePlan(), Requests())}
"""What every framework does anyway, by what is asked."""


class Asked:
    """The settings of one job. What is asked for counts as said by the file that asks."""

    def __init__(self, job: Job | ServeJob) -> None:
        self.job = job
        self.settings = settings_of(job)
        self.said: set[str] = set()

    def __call__(self, name: str, default: Any = None) -> Any:
        """The value of a setting: "tp", "peft.rank", "option.capacity_factor", "env.NAME"."""
        self.said.add(name)
        return self.settings.get(name, default)

    def also(self, *names: str) -> None:
        """Settings that the file honours by nature, or that say something about data or code, not about a setting."""
        self.said.update(names)


def settings_of(job: Job | ServeJob) -> dict[str, Any]:
    """Every setting of a job by name, enumerations as their text."""
    found = dict(_fields(job.plan))
    if isinstance(job, Job):
        from vramcast.engines.eager.checks import attention_of  # reading a server's command needs no trainer

        found["attention"] = attention_of(job).value
    found |= _fields(job.workload if isinstance(job, Job) else job.requests)
    for part in ("peft", "draft"):
        inner = found.pop(part, None)
        if inner is not None:
            found |= {f"{part}.{name}": value for name, value in _fields(inner).items()}
    found |= {f"option.{name}": value for name, value in job.engine_options.items()}
    if isinstance(job, Job):
        found["alloc_conf"] = job.alloc_conf
        found |= {f"env.{name}": value for name, value in job.env.items()}
    return found


def _fields(noun: Any) -> dict[str, Any]:
    fields = msgspec.structs.asdict(noun)
    return {name: value.value if isinstance(value, Enum) else value for name, value in fields.items()}


def needed(job: Job | ServeJob) -> dict[str, Any]:
    """The settings that differ from what every framework does anyway, and those that always have to be said."""
    nouns = NEUTRAL[type(job)]
    neutral = {name: value for noun in nouns for name, value in _fields(noun).items()} | {"alloc_conf": ""}
    for part, noun in (("peft", Peft()), ("draft", Draft())):
        neutral |= {f"{part}.{name}": value for name, value in _fields(noun).items()}
    return {name: value for name, value in settings_of(job).items() if _has_to_be_said(name, value, neutral)}


def _has_to_be_said(name: str, value: Any, neutral: Mapping[str, Any]) -> bool:
    if name in ("peft.method", "draft.kind", "context", "concurrency"):
        return value is not None
    if name in ALWAYS:
        return value is not None
    return name not in neutral or value != neutral[name]


def option_of(name: str) -> str:
    """A setting as the command line writes it.

    >>> option_of("grad_accum"), option_of("peft.rank"), option_of("option.fsdp")
    ('--grad-accum', '--lora-rank', '--engine-option fsdp')
    """
    part, dot, rest = name.partition(".")
    if part == "option":
        return f"--engine-option {rest}"
    if part == "env":
        return rest
    known = {"peft.method": "peft", "peft.rank": "lora-rank", "peft.targets": "lora-targets", "peft.base":
             "base-weights", "peft.dropout": "lora-dropout", "draft.kind": "draft", "draft.tokens": "draft-tokens"}
    return "--" + known.get(name, (rest if dot else name)).replace("_", "-")


class Part(NamedTuple):
    """Where names of a snapshot stand in a file that is read back."""

    format: str  # name of the snapshot
    section: str
    path: tuple[str | int, ...] = ()  # keys to them from the top
    further: tuple[str, ...] = ()  # other sections whose names stand among them


class File(NamedTuple):
    """One file of the folder."""

    name: str
    text: str
    parts: tuple[Part, ...] = ()  # what is held against snapshots
    said: frozenset[str] = frozenset()  # settings of the job that it says
    notes: tuple[str, ...] = ()  # what the user should know of it, one sentence each
    reasons: tuple[tuple[str, str], ...] = ()  # of its values, where the file cannot hold comments
    executable: bool = False


class Order(NamedTuple):
    """One request for files: the job, and who asks what of it."""

    job: Any  # Job or ServeJob
    ask: Asked
    beside: tuple[File, ...] = ()  # files of the frameworks, for a launcher
    fleet: Fleet | None = None  # where a search spread a load over replicas of this job

    def file(
        self, name: str, text: str, parts: tuple[Part, ...] = (), notes: tuple[str, ...] = (), *,
        reasons: tuple[tuple[str, str], ...] = (), executable: bool = False,
    ) -> File:
        """A file that says what was asked for so far."""
        return File(name, text, parts, frozenset(self.ask.said), notes, reasons, executable)

    def apart(self) -> Order:
        """The same for a file beside, which says what it says itself."""
        return self._replace(ask=Asked(self.job))


HUB: Final = re.compile(r"https://(?:huggingface\.co|modelscope\.cn/models)/([\w.-]+/[\w.-]+)")


def hub_id(model: Model) -> str:
    """What a hub calls the model; only the user knows where a model of numbers or of a local file lies."""
    name = model.name.split(" cut to ")[0]
    own = MODELS.aliases.get(name.lower())
    if own is None:
        return name if re.fullmatch(r"[\w.-]+/[\w.-]+", name) else PLACEHOLDER
    entry = read_entry(own)
    match = HUB.match(entry.source)
    if match is not None:
        return match[1]
    return next((alias for alias in entry.aliases if alias.count("/") == 1), PLACEHOLDER)


def is_cut(model: Model) -> bool:
    """Whether the question took only some of the model's layers."""
    return " cut to " in model.name


def read_back(file: File) -> Any:
    """The values a file holds, as the tool that it is for reads them.

    JSON and YAML as they stand, of several documents a list; of a script the options of its array ARGS.
    """
    suffix = file.name.rpartition(".")[2]
    if suffix == "json":
        return json.loads(file.text)
    if suffix in ("yaml", "yml"):
        import yaml

        fast = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # where PyYAML was built with libyaml
        documents = list(yaml.load_all(file.text, Loader=fast))
        return documents if len(documents) > 1 else documents[0]
    return nested(options_in(words_of(file.text, "ARGS"))) if suffix == "sh" else {}


def nested(options: dict[str, Any]) -> dict[str, Any]:
    """Options with a point in their name as tables: torchtitan's `--training.seq_len`.

    >>> nested({"training.steps": "3", "config": "planned"})
    {'training': {'steps': '3'}, 'config': 'planned'}
    """
    found: dict[str, Any] = {}
    for name, value in options.items():
        section, point, key = name.partition(".")
        if point:
            found.setdefault(section, {})[key] = value
        else:
            found[name] = value
    return found


def defects(file: File) -> list[str]:
    """What the snapshots say is wrong with a file, one sentence each."""
    found: list[str] = []
    values = read_back(file) if file.parts else {}
    for part in file.parts:
        inner = values
        for key in part.path:
            inner = inner[key]
        known = load_format(part.format)
        by_section: dict[str, dict[str, Any]] = {part.section: {}}
        for name, value in inner.items():
            section, key, typed = _placed(known, part, name, value, words=file.name.endswith(".sh"))
            by_section.setdefault(section, {})[key] = typed
        found += [Note("{}: {}", file.name, text) for section, names in by_section.items()
                  for text in problems(known, section, names)]
    return found


def _placed(known: Format, part: Part, name: str, value: Any, *, words: bool) -> tuple[str, str, Any]:
    """The section that knows a name, the name as it stands there, and the value as its kind wants it.

    Options of a command line are words: dashes for underscores, `--no-` before what is switched off, numbers as text.
    """
    for section in (part.section, *part.further):
        for key in (name, name.replace("-", "_")) if words else (name,):
            entry = known.find(section, key)
            if entry is not None:
                return section, key, _typed(value, entry.kind) if words else value
        off = known.find(section, name.removeprefix("no-").replace("-", "_"))
        if words and name.startswith("no-") and off is not None and off.kind == "bool":
            return section, name.removeprefix("no-").replace("-", "_"), False
    return part.section, name, value


def _typed(value: Any, kind: str) -> Any:
    if kind in ("flag", "bool"):
        return {"true": True, "false": False}.get(value, value)
    if kind == "list":
        return value if isinstance(value, list) else [value]
    if kind == "map" and isinstance(value, str):
        return json.loads(value)
    if kind not in ("int", "number") or not isinstance(value, str):
        return value
    try:
        return int(value) if kind == "int" else float(value)
    except ValueError:
        return value
