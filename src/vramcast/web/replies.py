"""The shapes of all other replies: files, forms, catalogues, measured cases; and which route answers in which shape."""

from __future__ import annotations

from typing import Any, Final, Literal

from msgspec import UNSET, Struct, UnsetType

from vramcast.domain.answer import HostNeed, Speed, StepTime, Tried
from vramcast.domain.device import Gpu
from vramcast.domain.planning import Decision, MissedLimit, Point, Technique
from vramcast.web.documents import (
    Diagnosis,
    Document,
    Host,
    Looked,
    MaybeFloat,
    MaybeInt,
    MaybeText,
    Options,
    Replay,
    ServeAnswer,
    ServeSearch,
    TrainAnswer,
    TrainSearch,
)


class File(Document):
    """One file of a plan."""

    name: str
    text: str


class Files(Document):
    """The files of the tools that run a plan, and what is to be said of them."""

    schema: Literal[1]
    files: list[File]
    notes: list[str]


class AskedOption(Document):
    """One option of a form."""

    name: str
    kind: str
    choices: list[str]
    help: str
    group: str
    default: Any | UnsetType = UNSET


class AskedOptions(Document):
    """The options of a command that a visitor may give, group by group."""

    schema: Literal[1]
    options: list[AskedOption]


class ModelRow(Document):
    """One model or diffusion pipeline."""

    name: str
    family: str
    parameters: int
    active_parameters: MaybeInt = UNSET
    layers: MaybeInt = UNSET
    hidden: MaybeInt = UNSET
    vocabulary: MaybeInt = UNSET
    context: MaybeInt = UNSET
    components: dict[str, int] | UnsetType = UNSET


class Models(Document):
    """Models and pipelines of the catalogue."""

    schema: Literal[1]
    models: list[ModelRow]


class Gpus(Document):
    """Cards of the catalogue."""

    schema: Literal[1]
    gpus: list[Gpu]


class InstancePrice(Document):
    """What a machine costs an hour."""

    per_hour: float
    currency: str
    tariff: str
    region: MaybeText = UNSET
    date: MaybeText = UNSET
    source: MaybeText = UNSET


class Instance(Document):
    """One machine for rent, or a reference box."""

    name: str
    gpu: str
    gpus: int
    visible_bytes: int
    link: str
    machines: MaybeInt = UNSET
    slices_of_a_card: MaybeInt = UNSET
    link_bytes_per_s: MaybeInt = UNSET
    network_bytes_per_s: MaybeInt = UNSET
    rdma: MaybeText = UNSET
    host_bytes: MaybeInt = UNSET
    nvme_bytes: MaybeInt = UNSET
    vcpus: MaybeInt = UNSET
    price: InstancePrice | UnsetType = UNSET
    note: MaybeText = UNSET
    source: MaybeText = UNSET
    checked: MaybeText = UNSET
    confidence: MaybeText = UNSET


class Instances(Document):
    """Machines of the catalogue."""

    schema: Literal[1]
    instances: list[Instance]


class Case(Document):
    """One measured case beside its prediction; what is unknown is absent."""

    group: str
    level: str
    name: str
    source: str
    unit: MaybeText = UNSET
    card: MaybeText = UNSET
    measured: MaybeFloat = UNSET
    predicted: MaybeFloat = UNSET
    error: MaybeFloat = UNSET
    mark: Literal["scope", "suspect"] | UnsetType = UNSET
    refused: MaybeText = UNSET
    url: MaybeText = UNSET


class Peer(Document):
    """Errors of another tool on the same rows, as shares of what was measured."""

    median: float
    worst: float


class CaseGroup(Document):
    """What the cases of one group and level come to, those marked left out; errors are shares of what was measured."""

    group: str
    level: str
    cases: int
    predicted: int
    median: MaybeFloat = UNSET
    p95: MaybeFloat = UNSET
    worst: MaybeFloat = UNSET
    under: MaybeFloat = UNSET
    peers: dict[str, Peer] | UnsetType = UNSET


class Accuracy(Document):
    """Every measured case beside its prediction."""

    schema: Literal[1]
    groups: list[CaseGroup]
    cases: list[Case]


class Named(Document):
    """What reports call things, in one language."""

    schema: Literal[1]
    lang: Literal["en", "zh"]
    words: dict[str, str]


class Version(Document):
    """What answers."""

    schema: Literal[1]
    version: str
    hubs: list[str]
    today: str


class Description(Struct):
    """An OpenAPI description."""

    openapi: str
    info: Options
    paths: Options
    components: Options


class Error(Document):
    """Why there is no answer: the class of the error, and one sentence; the same in the language asked for."""

    error: str
    message: str
    said: MaybeText = UNSET


REPLIES: Final[dict[str, tuple[type[Struct], ...]]] = {
    "train": (TrainAnswer,),
    "serve": (ServeAnswer,),
    "plan/train": (TrainSearch, TrainAnswer),
    "plan/serve": (ServeSearch,),
    "oom": (Diagnosis,),
    "replay": (Replay,),
    "files": (Files,),
    "words": (Named,),
    "options/train": (AskedOptions,),
    "options/serve": (AskedOptions,),
    "options/plan-train": (AskedOptions,),
    "options/plan-serve": (AskedOptions,),
    "models": (Models,),
    "gpus": (Gpus,),
    "instances": (Instances,),
    "accuracy": (Accuracy,),
    "version": (Version,),
    "openapi.json": (Description,),
}
"""Path of a route -> what it answers, one of them; a report is a text."""

DROPPED: Final = (StepTime, Speed, HostNeed, Host, Tried, Looked, Point, Decision, Technique, MissedLimit, Gpu)
"""Nouns of which documents leave out what is None or an empty text."""
